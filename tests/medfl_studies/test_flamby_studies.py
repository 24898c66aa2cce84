"""FLamby's two studies have the published settings and splits, and a run has the expected score."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from medfl.bundle.federation import read_federation
from medfl.cli.run import parse_overrides
from medfl.data.sites import load_sites
from medfl.objectives import Binary, Objective, Survival
from medfl_datasets.flamby_heart.synthetic import write_release as write_heart
from medfl_datasets.flamby_tcga_brca.spec import OFFICIAL_COUNTS
from medfl_datasets.flamby_tcga_brca.synthetic import write_release as write_brca
from medfl_studies.study import CheckedStudy, load_study
from medfl_studies.study_data import make_data

STUDIES = Path(__file__).parents[2] / "studies"
REAL = Path(os.environ.get("MEDFL_DATA", "nowhere"), "flamby")
ADAPTIVE = {"beta1": 0.9, "tau": 1e-8, "v0": "zero"}
PUBLISHED: dict[str, dict[str, tuple[float, dict[str, Any]]]] = {
    "flamby_heart": {
        "fedavg": (0.001, {}),
        "fedprox": (0.001, {"mu": 0.01}),
        "scaffold": (0.001, {"server_lr": 1.0}),
        "cyclic": (0.01, {}),
        "fedadagrad": (0.003162, {"eta": 0.316228} | ADAPTIVE),
        "fedadam": (0.01, {"eta": 0.01, "beta2": 0.999} | ADAPTIVE),
        "fedyogi": (0.003162, {"eta": 0.01, "beta2": 0.999} | ADAPTIVE),
    },
    "flamby_tcga_brca": {
        "fedavg": (0.1, {}),
        "fedprox": (0.1, {"mu": 0.1}),
        "scaffold": (0.01, {"server_lr": 1.0}),
        "cyclic": (0.01, {}),
        "fedadagrad": (0.01, {"eta": 1.0} | ADAPTIVE),
        "fedadam": (0.01, {"eta": 0.1, "beta2": 0.999} | ADAPTIVE),
        "fedyogi": (0.01, {"eta": 0.1, "beta2": 0.999} | ADAPTIVE),
    },
}
"""Study and strategy to the sites' learning rate and the settings of the method, of FLamby's configurations."""

ROUNDS = {"flamby_heart": (15, 4, 0.001, 50), "flamby_tcga_brca": (5, 8, 0.1, 30)}
"""Study to rounds and batch size; learning rate and epochs of pooled and local training."""


def prepared(name: str, source: Path, out: Path) -> CheckedStudy:
    return load_study(STUDIES / f"{name}.yaml", source, out)


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """Make synthetic files of both data sets, in folders with FLamby's names."""
    write_heart(tmp_path / "release" / "fed_heart_disease")
    write_brca(tmp_path / "release" / "fed_tcga_brca")
    return tmp_path / "release"


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_plan_is_flambys(name: str, release: Path, tmp_path: Path) -> None:
    study = prepared(name, release, tmp_path / "out")
    rounds, batch, lr, epochs = ROUNDS[name]
    runs: dict[str, dict[str, Any]] = {}
    for job in study.jobs:
        options = parse_overrides(job.command()[5:])
        assert options["allow_leaks"] == ["pixels"]
        assert options["batch_size"] == batch
        runs.setdefault(job.row, options)
    for row, (rate, args) in PUBLISHED[name].items():
        assert runs[row]["method"] == row
        assert (runs[row]["rounds"], runs[row]["steps"], runs[row]["optimizer#lr"]) == (rounds, 100, rate)
        assert "optimizer#_target_" not in runs[row], "SGD, as the bundle has it"
        settings = {key.partition("#")[2]: value for key, value in runs[row].items() if key.startswith("method_args#")}
        assert settings == args
    for row in ("pooled", "local"):
        alone = {key: runs[row][key] for key in ("rounds", "steps", "epochs", "optimizer#_target_", "optimizer#lr")}
        assert list(alone.values()) == [1, None, epochs, "torch.optim.Adam", lr]
    assert study.study.seed_list() == [42, 43, 44, 45, 46]
    assert {job.seed for job in study.jobs} == {42, 43, 44, 45, 46}
    if name == "flamby_heart":
        scales = {data.prep.options().get("scale") for data in study.study.data.values() if data.prep}
        assert scales == {None, "mixed"}
        assert [job.row for job in study.jobs if job.data == "pooled"] == ["pooled"] * 5
    else:
        assert all(job.options["loss"] == {"_target_": "medfl.objectives.losses.FlambyCoxLoss"} for job in study.jobs)


def test_all_seeds_share_the_published_split_of_the_real_patients(tmp_path: Path) -> None:
    if not REAL.is_dir():
        pytest.skip("needs flamby in the folder that MEDFL_DATA names")
    study = prepared("flamby_tcga_brca", REAL, tmp_path / "out")
    make_data(study.study, study.source, study.out, study.registry, lambda line: None)
    (folder,) = {job.dataset_dir for job in study.jobs}
    sites = load_sites(folder, Survival(), (0.0,), (1.0,))
    assert {name: (len(site.train), len(site.test)) for name, site in sites.items()} == OFFICIAL_COUNTS


def accuracy(outputs: torch.Tensor, labels: torch.Tensor) -> float:
    return float(((outputs > 0) == labels.bool()).double().mean())


def c_index(risks: torch.Tensor, targets: torch.Tensor) -> float:
    """Return the share of correctly ordered pairs of an event and a patient still under observation at that time."""
    times, events = targets.T
    pairs = (times[:, None] < times[None]) & (events[:, None] == 1)
    gaps = (risks[:, None] - risks[None])[pairs]
    return float(((gaps > 0) + 0.5 * (gaps == 0)).double().mean())


SHORT: dict[str, tuple[str, str, Objective, Callable[[torch.Tensor, torch.Tensor], float]]] = {
    "flamby_heart": ("cyclic", "cleveland", Binary(), accuracy),
    "flamby_tcga_brca": ("fedadam", "europe", Survival(), c_index),
}


@pytest.mark.parametrize("name", SHORT)
def test_a_short_run_on_the_real_patients(name: str, tmp_path: Path) -> None:
    """A site's score equals the score of the exported linear model, computed here."""
    if not REAL.is_dir():
        pytest.skip("needs flamby in the folder that MEDFL_DATA names")
    row, site, objective, score = SHORT[name]
    study = prepared(name, REAL, tmp_path / "out")
    make_data(study.study, study.source, study.out, study.registry, lambda line: None)
    job = next(job for job in study.jobs if job.row == row)
    values = dict(job.options) | {"dataset_dir": str(job.dataset_dir), "output_dir": str(job.folder)}
    run = read_federation(job.bundle, values | {"bundle_root": str(job.bundle), "rounds": 1, "steps": 20})
    summary = run.simulate().summary
    state = torch.load(job.folder / "global" / "models" / "model.pt", weights_only=True)
    test = load_sites(job.dataset_dir, objective, (0.0,), (1.0,), [site])[site].test
    samples, targets = test.batch(torch.arange(len(test)))
    outputs = (samples @ state["head.weight"].T + state["head.bias"])[:, 0]
    scores = summary.scores["global"]["test"][study.study.metrics[0]]
    assert scores.sites[site] == pytest.approx(score(outputs, targets))
