"""Bundles for brain maps and skin lesions: commands, networks of different widths, and exported bundles in MONAI."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from inference_file import numbers
from monai.bundle import ckpt_export, verify_net_in_out
from monai.bundle import run as monai_run
from refusals import refused

from medfl.cli.main import main
from medfl.data.datalists import SPLITS, read_datalist
from medfl.errors import DataError
from medfl.workflow import FederatedWorkflow
from medfl_datasets.abide.regions import load_regions
from medfl_datasets.abide.synthetic import ATLAS_FILE, EFFECT_REGION, write_release
from medfl_datasets.derm7pt import synthetic as derm7pt

BUNDLES = Path(__file__).parents[2] / "bundles"
MEDMNIST = BUNDLES / "medmnist_classification"


def command(*words: object) -> None:
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    assert ended.value.code == 0


def brains(place: Path) -> None:
    """Prepare four regions of a synthetic ABIDE, with two maps and an atlas, and run a federation."""
    derivatives = ("reho", "vmhc")
    write_release(place / "release", per_centre=5, derivatives=derivatives, size=12)
    words = ["--source", place / "release", "--atlas", place / "release" / ATLAS_FILE, "--size", 16]
    command("prep", "abide", *words, "--out", place / "pool", "--derivatives", ",".join(derivatives))
    words = ["--scheme", "by_site", "--column", "site", "--test", "k_fold", "--folds", 4, "--fold", 1]
    command("partition", place / "pool", "--out", place / "data", *words, "--server-test", "none")


def lesions(place: Path) -> None:
    """Prepare three sites of a synthetic Derm7pt, and run a federation."""
    counts = {"BCC": 4, "NEV": 8, "MEL": 6, "MISC": 4, "SK": 4}
    release = derm7pt.write_release(place, dict.fromkeys(SPLITS, counts))
    words = ["--split", "none", "--size", 16, "--workers", 1]
    command("prep", "derm7pt", "--source", release, "--out", place / "pool", *words)
    words = ["--scheme", "dirichlet_class", "--alpha", 1, "--sites", 3, "--test", "k_fold", "--folds", 4, "--fold", 0]
    command("partition", place / "pool", "--out", place / "data", *words, "--server-test", "none")


@dataclass(frozen=True)
class Made:
    """Bundle, its data, and a run."""

    name: str
    place: Path

    @property
    def data(self) -> Path:
        return self.place / "data"

    @property
    def sites(self) -> list[str]:
        return sorted(path.parent.name for path in self.data.glob("*/datalist.json"))

    @property
    def home(self) -> Path:
        return self.place / "run" / "sites" / self.sites[1]

    def config(self, *names: str) -> list[str]:
        return [str(self.home / "configs" / name) for name in names]


MAKERS: dict[str, Callable[[Path], None]] = {
    "fmri_asd_classification": brains,
    "dermoscopy_classification": lesions,
}


@pytest.fixture(scope="module", params=sorted(MAKERS))
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    federation = Made(request.param, tmp_path_factory.mktemp(request.param))
    MAKERS[federation.name](federation.place)
    bundle = BUNDLES / federation.name
    options = {
        "bundle_root": str(bundle),
        "dataset_dir": str(federation.data),
        "output_dir": str(federation.place / "run"),
    }
    widths = {federation.sites[1]: "resnet10_minus2", federation.sites[2]: "resnet10_minus4"}
    workflow = FederatedWorkflow(
        [str(bundle / "configs" / name) for name in ("train.json", "federate.json")],
        logging_file=False,
        **options,
        method="local",
        rounds=2,
        epochs=1,
        width=8,
        norm="group",
        networks_by_site=widths,
        allow_leaks=["pixels"],
    )
    workflow.initialize()
    workflow.run()
    return federation


def predictions(home: Path) -> np.ndarray:
    rows = list(csv.DictReader((home / "predictions.csv").open()))
    return np.array([[float(value) for name, value in row.items() if name.startswith("p")] for row in rows])


def test_each_site_exports_its_own_architecture(made: Made) -> None:
    widths = [
        torch.load(made.place / "run" / "sites" / site / "models" / "model.pt", weights_only=True)[
            "conv1.weight"
        ].shape[0]
        for site in made.sites[:3]
    ]
    assert widths == [8, 6, 4]


def test_plain_monai_scores_a_sites_own_model_as_the_federation_did(made: Made) -> None:
    options = {"bundle_root": str(made.home), "dataset_dir": str(made.data), "output_dir": str(made.home / "eval")}
    monai_run(config_file=made.config("train.json", "evaluate.json"), **options)
    lines = (made.home / "eval" / "metrics.csv").read_text().splitlines()
    metrics = {name: float(value) for name, value in (line.split(",") for line in lines)}
    scores = json.loads((made.place / "run" / "summary.json").read_text())["scores"]["personal"]["test"]
    for name, values in scores.items():
        expected = values["sites"][made.home.name]
        assert metrics[name] == pytest.approx(float("nan") if expected is None else expected, abs=1e-5, nan_ok=True)


def test_its_inference_reads_the_files_of_the_release_as_prep_did(made: Made, tmp_path: Path) -> None:
    """Predict a folder with all files of the data set, and compare with the site's test images."""
    options = {"bundle_root": str(made.home), "output_dir": str(tmp_path)}
    monai_run(config_file=made.config("inference.json")[0], dataset_dir=str(made.place / FILES[made.name]), **options)
    rows = numbers(tmp_path / "predictions.csv")
    for expected in predictions(made.home):
        assert np.abs(rows - expected).max(axis=1).min() < 1e-5


FILES = {"fmri_asd_classification": "release/Outputs", "dermoscopy_classification": "release_v0/images"}


def test_one_site_trains_exports_and_fits_its_metadata(made: Made, tmp_path: Path) -> None:
    (config, meta) = made.config("train.json", "metadata.json")
    options = {"bundle_root": str(made.home), "dataset_dir": str(made.data), "site": made.home.name}
    monai_run(config_file=config, max_epochs=1, ckpt_dir=str(tmp_path), **options)
    assert (tmp_path / "model_final.pt").is_file()
    verify_net_in_out(net_id="network_def", meta_file=meta, config_file=config, device="cpu")
    ckpt_export(bundle_root=str(made.home), config_file=config, filepath=str(tmp_path / "model.ts"))
    assert (tmp_path / "model.ts").is_file()


@pytest.mark.parametrize("name", sorted(MAKERS))
def test_bundles_differ_only_where_they_must(name: str) -> None:
    """Check that all other parts of the bundles are identical, so that no change in one is forgotten in another."""
    for config in ("train.json", "federate.json", "evaluate.json", "inference.json"):
        first, other = (json.loads((root / "configs" / config).read_text()) for root in (MEDMNIST, BUNDLES / name))
        first, other = (content.pop("settings", {}) | content for content in (first, other))
        unlike = {key for key in first.keys() | other.keys() if first.get(key) != other.get(key)}
        assert unlike <= OWN, (config, unlike - OWN)
    trains = [json.loads((root / "configs" / "train.json").read_text())["train"] for root in (MEDMNIST, BUNDLES / name)]
    assert trains[0]["dataset"] == trains[1]["images"]
    assert [trains[0][key] for key in ("trainer", "handlers", "inferer", "key_metric")] == [
        trains[1][key] for key in ("trainer", "handlers", "inferer", "key_metric")
    ]


OWN = {
    "image_reading",  # maps are not read by a rule of the data list
    "num_classes",
    "in_channels",
    "spatial_dims",
    "size",
    "mean",
    "std",
    "batch_size",
    "metrics",
    "networks",
    "network_name",
    "optimizer",
    "width",
    "norm",
    "shift",
    "augmentation",
    "views",
    "regions",
    "task",
    "class_weights",
    "train",
    "rounds",
    "epochs",
    "derivatives",
    "dataset",
    "imports",
    "federation",
}
"""Ids whose values may differ between the bundles."""


# ---- regions


def test_the_regions_of_a_data_set_are_numbered_from_1(made: Made) -> None:
    regions = load_regions(made.data)
    if made.name != "fmri_asd_classification":
        assert regions is None
        return
    assert regions is not None
    images = np.load(made.place / "pool" / read_datalist(made.place / "pool").image_array, mmap_mode="r")
    assert regions.shape == images.shape[1:4]
    assert regions.dtype == torch.int64
    assert regions.unique().tolist() == list(range(int(regions.max()) + 1))
    assert int(regions.max()) >= EFFECT_REGION


def test_regions_on_another_grid_are_refused(tmp_path: Path) -> None:
    brains(tmp_path)
    path = tmp_path / "pool" / "images.npy"
    np.save(path, np.load(path)[:, :8])
    with refused(DataError, "wrong_shape", expected=[8, 16, 16], found=[16, 16, 16]) as caught:
        load_regions(tmp_path / "data")
    assert Path(caught.value.fields["path"]).name == "atlas.nii.gz"
