"""Test that a run with low-rank adapters exports ordinary bundles, in which the adapters are merged."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from inference_file import numbers
from monai.bundle import ConfigParser
from monai.bundle import run as monai_run

from medfl.data.sites import load_site
from medfl.objectives import Multiclass
from medfl.testing.synthetic import make_cohort
from medfl.utils.wire import tensors_equal
from medfl.workflow import FederatedWorkflow

BUNDLE = Path(__file__).parents[3] / "bundles" / "medmnist_classification"


@pytest.fixture(scope="module")
def cohort(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("cohort") / "sites"
    make_cohort(out, sites=2, images_per_site=20, classes=4, size=12, seed=1)
    return out


def run_bundle(cohort: Path, folder: Path, **options: object) -> Path:
    files = [str(BUNDLE / "configs" / name) for name in ("train.json", "federate.json")]
    places = {"bundle_root": str(BUNDLE), "dataset_dir": str(cohort), "output_dir": str(folder)}
    lora = {"train_part": "lora", "lora#rank": 4, "lora#alpha": 8.0, "optimizer#lr": 0.5}
    workflow = FederatedWorkflow(files, logging_file=False, **{"rounds": 2} | places | lora | options)
    workflow.initialize()
    workflow.run()
    return folder


@pytest.fixture(scope="module", params=["frozen_a", "exact"])
def finished(cohort: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    return run_bundle(cohort, folder, **{"lora#aggregation": request.param})


def test_the_weights_have_the_names_of_the_plain_network_and_predict_as_the_run(finished: Path, cohort: Path) -> None:
    home = finished / "sites" / "site-01"
    weights = torch.load(home / "models" / "model.pt", weights_only=True)
    parser = ConfigParser()
    parser.read_config(str(home / "configs" / "train.json"))
    network = parser.get_parsed_content("network_def")
    assert weights.keys() == network.state_dict().keys()
    network.load_state_dict(weights)
    data = load_site(cohort / "site-01", Multiclass(4), (0.5,), (0.5,)).test
    images, _ = data.batch(torch.arange(len(data)))
    with torch.no_grad():
        probabilities = network.eval()(images).softmax(dim=1).numpy()
    rows = list(csv.reader((home / "predictions.csv").open()))[1:]
    np.testing.assert_allclose(probabilities, [[float(value) for value in row[2:]] for row in rows], rtol=0, atol=1e-6)


def test_its_inference_and_evaluation_are_those_of_the_run(finished: Path, cohort: Path) -> None:
    home = finished / "sites" / "site-01"
    configs = {name: str(home / "configs" / f"{name}.json") for name in ("train", "evaluate", "inference")}
    monai_run(config_file=configs["inference"], bundle_root=str(home), dataset_dir=str(cohort / "site-01"))
    rows = list(csv.reader((home / "predictions.csv").open()))[1:]
    expected = [[float(value) for value in row[2:]] for row in rows]
    np.testing.assert_allclose(numbers(home / "eval" / "predictions.csv"), expected, rtol=0, atol=1e-6)
    options = {"bundle_root": str(home), "dataset_dir": str(cohort), "output_dir": str(home / "scores")}
    monai_run(config_file=[configs["train"], configs["evaluate"]], **options)
    lines = (home / "scores" / "metrics.csv").read_text().splitlines()
    metrics = {name: float(value) for name, value in (line.split(",") for line in lines)}
    scores = json.loads((finished / "summary.json").read_text())["scores"]["global"]["test"]  # of the adapters
    assert metrics == pytest.approx({name: values["sites"]["site-01"] for name, values in scores.items()}, abs=1e-6)


def test_a_run_of_adapters_starts_from_the_merged_weights_of_another_one(
    finished: Path, cohort: Path, tmp_path: Path
) -> None:
    begun = torch.load(finished / "global" / "models" / "model.pt", weights_only=True)
    again = run_bundle(cohort, tmp_path / "run", start=str(finished), epochs=0, rounds=1)
    assert tensors_equal(torch.load(again / "global" / "models" / "model.pt", weights_only=True), begun)
    more = run_bundle(cohort, tmp_path / "more", start=str(finished), rounds=1)
    trained = torch.load(more / "global" / "models" / "model.pt", weights_only=True)
    changed = {name for name, tensor in trained.items() if not torch.equal(tensor, begun[name])}
    convolutions = {name for name, tensor in begun.items() if tensor.dim() == 4}
    assert convolutions <= changed
    assert all(begun[name].dim() in (2, 4) or "head" in name or "classifier" in name for name in changed), changed
