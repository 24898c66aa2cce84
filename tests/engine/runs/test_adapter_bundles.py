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
from medfl.workflow import FederatedWorkflow

BUNDLE = Path(__file__).parents[3] / "bundles" / "medmnist_classification"


@pytest.fixture(scope="module")
def cohort(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("cohort") / "sites"
    make_cohort(out, sites=2, images_per_site=40, classes=4, size=32, seed=1)
    return out


@pytest.fixture(scope="module", params=["frozen_a", "exact"])
def finished(cohort: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    files = [str(BUNDLE / "configs" / name) for name in ("train.json", "federate.json")]
    options = {"bundle_root": str(BUNDLE), "dataset_dir": str(cohort), "output_dir": str(folder), "optimizer#lr": 0.5}
    options |= {"train_part": "lora", "lora#rank": 4, "lora#alpha": 8.0, "lora#aggregation": request.param}
    workflow = FederatedWorkflow(files, logging_file=False, rounds=2, **options)
    workflow.initialize()
    workflow.run()
    return folder


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
