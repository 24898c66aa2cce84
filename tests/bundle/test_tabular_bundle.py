"""Bundle for tables: every objective, exported bundles, and prediction of tables."""

from __future__ import annotations

import csv
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from inference_file import cases, numbers
from monai.bundle import ConfigWorkflow, verify_net_in_out
from monai.bundle import run as monai_run
from refusals import refused

from medfl.data.datalists import Datalist, write_datalist
from medfl.data.inference import load_rows
from medfl.data.partition.by_column import by_site
from medfl.data.partition.iid import iid
from medfl.data.partition.partition import partition
from medfl.data.partition.plan import PartitionPlan
from medfl.data.partition.writing import feature_scale
from medfl.data.sites import dataset_value, load_sites
from medfl.errors import DataError
from medfl.networks.vectors import MLP
from medfl.objectives import Binary, Multiclass, Multilabel, Objective, Regression, Survival
from medfl.workflow import FederatedWorkflow
from medfl_datasets.flamby_tcga_brca.spec import FlambyTcgaBrca

REAL = Path(os.environ.get("MEDFL_DATA", "nowhere"), "flamby", "fed_tcga_brca")
BUNDLE = Path(__file__).parents[2] / "bundles" / "tabular"
NAMES = ["age", "grade", "size", "nodes"]
UNIT = np.random.default_rng(0).normal(size=(60, 4))
VECTORS = (UNIT * [15.0, 1.0, 0.2, 3.0] + [62.0, 2.0, 0.0, -5.0]).astype(np.float32)
"""Rows with columns of different scales, such as an age in years."""

RISK = UNIT @ np.array([1.0, -1.0, 0.5, 0.0])
KINDS: dict[str, tuple[Objective, list[Any]]] = {
    "binary": (Binary(), (RISK > 0).astype(int).tolist()),
    "multiclass": (Multiclass(3), np.digitize(RISK, [-0.6, 0.6]).tolist()),
    "multilabel": (Multilabel(2), [[float(row[0] > 0), None if row[2] > 1 else float(row[1] > 0)] for row in UNIT]),
    "regression": (Regression(2), np.stack([RISK, -RISK], 1).tolist()),
    "survival": (
        Survival(),
        [[float(np.exp(-risk)), int(row[3] < 1)] for risk, row in zip(RISK, UNIT, strict=True)],
    ),
}
"""Maps each objective to targets computed from the vectors."""


@dataclass(frozen=True)
class Made:
    """Data for an objective, and a run of two rounds."""

    place: Path
    objective: Objective

    @property
    def home(self) -> Path:
        return self.place / "run" / "sites" / "site-01"

    def scale(self) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and standard deviation of each column over the training rows of both sites."""
        lists = [json.loads((self.place / "data" / f"site-0{n}" / "datalist.json").read_text()) for n in (1, 2)]
        rows = VECTORS[[record["image"] for datalist in lists for record in datalist["training"]]].astype(np.float64)
        return rows.mean(0), rows.std(0)

    def options(self, **more: Any) -> dict[str, Any]:
        return {"bundle_root": str(self.home), "dataset_dir": str(self.place / "data")} | more

    def predictions(self) -> np.ndarray:
        """Return the predictions that the federation wrote next to the site's model, without row and target."""
        with (self.home / "predictions.csv").open() as file:
            rows = list(csv.DictReader(file))
        return np.array([[float(row[name]) for name in self.objective.columns(())] for row in rows])


def cohort(folder: Path, kind: str) -> None:
    """Write data of two sites."""
    objective, targets = KINDS[kind]
    (folder / "pool").mkdir(parents=True)
    np.save(folder / "pool" / "images.npy", VECTORS)
    key = "label" if objective.has_class_labels else "target"
    records = [{"image": row, "subject_id": f"s{row}", key: target} for row, target in enumerate(targets)]
    facts, extra = objective.facts, {"features": NAMES}
    write_datalist(
        folder / "pool",
        Datalist("made up", "images.npy", 2, splits={"training": records}, objective=facts, extra=extra),
    )
    plan = PartitionPlan("iid", 2, test_fraction=0.3, val_fraction=0.2, server_test="none")
    partition(folder / "pool", folder / "data", plan, iid)


def federate(place: Path, out: str, **options: Any) -> Path:
    workflow = FederatedWorkflow(
        [str(BUNDLE / "configs" / name) for name in ("train.json", "federate.json")],
        logging_file=False,
        bundle_root=str(BUNDLE),
        dataset_dir=str(place / "data"),
        output_dir=str(place / out),
        **({"rounds": 2, "epochs": 6, "batch_size": 8, "optimizer#lr": 0.1} | options),
    )
    workflow.initialize()
    workflow.run()
    return place / out


@pytest.fixture(scope="module", params=list(KINDS))
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    place = tmp_path_factory.mktemp(request.param)
    cohort(place, request.param)
    federate(place, "run")
    return Made(place, KINDS[request.param][0])


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a table with the columns in another order and with further columns."""
    path = tmp_path_factory.mktemp("table") / "patients.csv"
    lines = [";".join(["id", *NAMES[::-1]])]
    lines += [";".join([f"p{row}", *map(repr, map(float, VECTORS[row][::-1]))]) for row in range(5)]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_it_learns_what_the_data_list_says(made: Made) -> None:
    scores = json.loads((made.place / "run" / "summary.json").read_text())["scores"]["global"]["test"]
    assert scores.keys() == set(made.objective.metrics)
    key = scores[made.objective.metrics[0]]["mean"]
    assert key < 1 if made.objective.name == "regression" else key > 0.6
    settled = json.loads((made.home / "configs" / "train.json").read_text())
    assert settled["goal"] == made.objective.facts
    assert (settled["in_features"], settled["features"], settled["network_name"]) == (4, NAMES, "linear")


def test_rows_are_standardised_by_the_training_rows_of_all_sites(made: Made) -> None:
    """Check that training columns have mean 0 and deviation 1, and that other rows are scaled by the same numbers."""
    mean, std = made.scale()
    for config in ("train.json", "inference.json"):
        settled = json.loads((made.home / "configs" / config).read_text())
        np.testing.assert_allclose(settled["mean"], mean)
        np.testing.assert_allclose(settled["std"], std)
    sites = load_sites(made.place / "data", made.objective, settled["mean"], settled["std"])
    trained = torch.cat([data.train.batch(torch.arange(len(data.train)))[0] for data in sites.values()]).double()
    torch.testing.assert_close(trained.mean(0), torch.zeros(4).double(), atol=1e-5, rtol=0)
    torch.testing.assert_close(trained.std(0, correction=0), torch.ones(4).double(), atol=1e-5, rtol=0)
    for name, data in sites.items():
        records = json.loads((made.place / "data" / name / "datalist.json").read_text())["test"]
        tested = data.test.batch(torch.arange(len(data.test)))[0].numpy()
        np.testing.assert_allclose(tested, (VECTORS[[r["image"] for r in records]] - mean) / std, atol=1e-5)


def test_standardisation_can_be_switched_off_and_overruled(tmp_path: Path) -> None:
    cohort(tmp_path, "binary")
    asis = federate(tmp_path, "asis", rounds=1, standardise=False)
    own = federate(tmp_path, "own", rounds=1, mean=[60.0, 2.0, 0.0, 0.0], std=[10.0, 1.0, 1.0, 1.0])
    for run, mean, std in ((asis, [0.0], [1.0]), (own, [60.0, 2.0, 0.0, 0.0], [10.0, 1.0, 1.0, 1.0])):
        settled = json.loads((run / "sites" / "site-01" / "configs" / "inference.json").read_text())
        assert (settled["mean"], settled["std"]) == (mean, std)


def test_a_constant_column_is_only_shifted() -> None:
    array = np.array([[1.0, 7.0], [3.0, 7.0], [9.0, 8.0]], dtype=np.float32)
    splits = {
        "a": {"training": [{"image": 0}], "test": [{"image": 2}]},
        "b": {"training": [{"image": 1}]},
        "global": {"training": [{"image": 2}]},
    }
    assert feature_scale(array, splits) == {"feature_mean": [2.0, 7.0], "feature_std": [1.0, 1.0]}
    assert feature_scale(np.zeros((3, 4, 4)), splits) == {}, "images have no such scale"


@pytest.mark.skipif(
    not REAL.is_dir(), reason="needs the table of Fed-TCGA-BRCA: MEDFL_DATA names a folder with flamby/"
)
def test_no_unit_is_dead_on_the_real_table(tmp_path: Path) -> None:
    """Check the real table: without scaling, most of the 16 hidden units are always 0 or never 0 at the start."""
    FlambyTcgaBrca(source=REAL).make(
        tmp_path / "pool", force=False, workers=1, require_complete=True, say=lambda _: None
    )
    plan = PartitionPlan("by_site", column="centre", test="official", server_test="none", allow_leaks=("pixels",))
    partition(tmp_path / "pool", tmp_path / "data", plan, by_site)
    facts = [dataset_value(tmp_path / "data", name, None) for name in ("feature_mean", "feature_std")]
    for (mean, std), all_alive in ((facts, True), (([0.0], [1.0]), False)):
        sites = load_sites(tmp_path / "data", Survival(), mean, std)
        rows = torch.cat([data.train.batch(torch.arange(len(data.train)))[0] for data in sites.values()])
        shares = []
        for seed in range(5):
            torch.manual_seed(seed)
            network = MLP(39, 1, (16,))
            shares.append((network.body(rows) > 0).double().mean(0))
        active = torch.stack(shares)
        assert bool(((active > 0) & (active < 1)).all()) == all_alive


def test_a_sites_metadata_fit_its_network(made: Made) -> None:
    configs = made.home / "configs"
    for config in ("train.json", "inference.json"):
        verify_net_in_out(
            "network_def", str(configs / "metadata.json"), config_file=str(configs / config), device="cpu"
        )
    described = json.loads((configs / "metadata.json").read_text())
    assert described["image_classes"].startswith("4 numbers")
    names = described["network_data_format"]["outputs"]["pred"]["channel_def"]
    assert len(names) == made.objective.outputs
    assert made.objective.name != "survival" or names == {"0": "risk"}


def test_its_evaluation_gives_the_scores_of_the_federation(made: Made, tmp_path: Path) -> None:
    configs = [str(made.home / "configs" / name) for name in ("train.json", "evaluate.json")]
    monai_run(config_file=configs, **made.options(output_dir=str(tmp_path)))
    scores = json.loads((made.place / "run" / "summary.json").read_text())["scores"]["global"]["test"]
    lines = (tmp_path / "metrics.csv").read_text().splitlines()
    evaluated = {name: float(value) for name, value in (line.split(",") for line in lines)}
    for name in made.objective.metrics:
        assert evaluated[name] == pytest.approx(scores[name]["sites"]["site-01"], abs=1e-6)


def test_its_inference_on_the_sites_rows_gives_the_predictions_of_the_federation(made: Made, tmp_path: Path) -> None:
    site = str(made.place / "data" / "site-01")
    monai_run(
        config_file=str(made.home / "configs" / "inference.json"),
        **made.options(dataset_dir=site, output_dir=str(tmp_path)),
    )
    path = tmp_path / "predictions.csv"
    assert cases(path) == [f"row {row}" for row in range(len(made.predictions()))]
    np.testing.assert_allclose(numbers(path), made.predictions(), atol=1e-6)


def test_a_table_is_predicted_by_the_names_of_its_columns(made: Made, table: Path, tmp_path: Path) -> None:
    monai_run(
        config_file=str(made.home / "configs" / "inference.json"),
        **made.options(dataset_dir=str(table), output_dir=str(tmp_path)),
    )
    assert cases(tmp_path / "predictions.csv") == [f"row {row}" for row in range(2, 7)]
    state = torch.load(made.home / "models" / "model.pt", weights_only=True)
    mean, std = made.scale()
    outputs = (
        torch.from_numpy(((VECTORS[:5] - mean) / std).astype(np.float32)) @ state["head.weight"].T + state["head.bias"]
    )
    expected = made.objective.predictions(outputs).numpy()
    np.testing.assert_allclose(numbers(tmp_path / "predictions.csv"), expected, atol=1e-6)


def test_workers_and_interruptions_change_no_bit(tmp_path: Path) -> None:
    """Check that a round and then a second round by two processes equal two rounds by one process, with Adam."""
    cohort(tmp_path, "survival")
    options = {"network_name": "mlp", "widths": [5], "optimizer#_target_": "torch.optim.Adam", "optimizer#lr": 0.01}
    whole = federate(tmp_path, "whole", **options)
    federate(tmp_path, "parts", rounds=1, workers=2, **options)
    parts = federate(tmp_path, "parts", workers=2, **options)
    for name in ("global", "sites/site-01", "sites/site-02"):
        states = [torch.load(run / name / "models" / "model.pt", weights_only=True) for run in (whole, parts)]
        assert states[0].keys() == states[1].keys() >= {"body.stage1.fc.weight", "head.bias"}
        assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
    for site in ("site-01", "site-02"):
        texts = [(run / "sites" / site / "predictions.csv").read_text() for run in (whole, parts)]
        assert texts[0] == texts[1]


@pytest.mark.parametrize("kind", ["survival", "multiclass"])
def test_one_site_trains_with_plain_monai(kind: str, tmp_path: Path) -> None:
    cohort(tmp_path, kind)
    copy = Path(shutil.copytree(BUNDLE, tmp_path / "bundle"))
    configs, objective = copy / "configs", KINDS[kind][0]
    flow = ConfigWorkflow(
        str(configs / "train.json"),
        str(configs / "metadata.json"),
        logging_file=False,
        workflow_type="train",
        bundle_root=str(copy),
        dataset_dir=str(tmp_path / "data"),
        in_features=4,
        goal=objective.facts,
        max_epochs=2,
        network_name="mlp",
        balance="loss" if objective.has_class_labels else "none",
    )
    flow.initialize()
    assert flow.check_properties() in (None, [])
    flow.run()
    for name in ("model.pt", "model_final.pt"):
        state = torch.load(copy / "models" / name, weights_only=True)
        assert state["head.weight"].shape == (objective.outputs, 32)
    if objective.has_class_labels:
        weight = flow.parser.get_parsed_content("site_loss").weight
        counts = torch.bincount(flow.parser.get_parsed_content("train#dataset").class_labels, minlength=3)
        assert torch.allclose(weight * counts, (weight * counts)[0].expand(3), rtol=1e-5)


BAD = {
    "a column is missing": ("age;grade;size\n1;2;3\n", NAMES, "missing_column", {"columns": ["nodes"]}),
    "a word": ("age;grade;size;nodes\n1;2;3;4\n1;2;high;4\n", NAMES, "not_finite", {"rows": [3]}),
    "nothing in a cell": ("age;grade;size;nodes\n1;;3;4\n", NAMES, "not_finite", {"rows": [2]}),
    "infinity": ("age;grade;size;nodes\n1;inf;3;4\n", [], "not_finite", {"rows": [2]}),
    "more columns than the network takes": (
        "a;b;c;d;e\n1;2;3;4;5\n",
        [],
        "wrong_column_count",
        {"expected": 4, "found": 5},
    ),
}


@pytest.mark.parametrize(("text", "features", "code", "fields"), BAD.values(), ids=BAD.keys())
def test_a_wrong_table_is_refused(
    text: str, features: list[str], code: str, fields: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "table.csv"
    path.write_text(text)
    with refused(DataError, code, path=str(path), **fields) as caught:
        load_rows(path, 4, Survival(), features)
    assert "high" not in f"{caught.value} {caught.value.fields}"


def test_what_is_neither_a_table_nor_a_site_is_refused(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "nowhere"):
        with refused(DataError, "missing_file", path=str(place)):
            load_rows(place, 4, Survival())
