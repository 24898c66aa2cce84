"""Test that an exported bundle is an ordinary MONAI bundle, which MONAI runs without further options."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from inference_file import cases, numbers, read_inference
from monai.bundle import ckpt_export, verify_net_in_out
from monai.bundle import run as monai_run
from monai.data import load_net_with_metadata
from PIL import Image

from medfl.data.datalists import read_datalist, write_datalist
from medfl.data.sites import load_site
from medfl.engine.runs.records import read_run
from medfl.objectives import Multiclass
from medfl.testing.synthetic import make_cohort
from medfl.workflow import FederatedWorkflow

SEXES = ("female", None, "male")
"""Metadata of the first test images of the second site; unknown for all other images."""

BUNDLE = Path(__file__).parents[3] / "bundles" / "medmnist_classification"


@pytest.fixture(scope="module")
def cohort(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("cohort") / "sites"
    make_cohort(out, sites=2, images_per_site=20, classes=4, size=12, seed=1)
    datalist = read_datalist(out / "site-02")
    for record, sex in zip(datalist.splits["test"], SEXES, strict=False):
        record["sex"] = sex
    write_datalist(out / "site-02", datalist)
    (out / "partition.json").unlink()
    return out


@pytest.fixture(scope="module")
def finished(cohort: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    configs = [str(BUNDLE / "configs" / name) for name in ("train.json", "federate.json")]
    options = {"bundle_root": str(BUNDLE), "dataset_dir": str(cohort), "output_dir": str(folder)}
    workflow = FederatedWorkflow(configs, logging_file=False, rounds=2, **options, **{"optimizer#lr": 0.1})
    workflow.initialize()
    workflow.run()
    return folder


@pytest.fixture(params=["sites/site-01", "global"])
def home(finished: Path, request: pytest.FixtureRequest) -> Path:
    return finished / request.param


def configs(home: Path, *names: str) -> list[str]:
    return [str(home / "configs" / name) for name in names]


def test_numbers_of_the_data_are_written_in(home: Path) -> None:
    for name in ("train.json", "inference.json"):
        content = json.loads((home / "configs" / name).read_text())
        assert (content["num_classes"], content["in_channels"], content["size"]) == (4, 3, [12, 12])
    metadata = json.loads((home / "configs" / "metadata.json").read_text())["network_data_format"]
    assert metadata["inputs"]["image"]["spatial_shape"] == [12, 12]
    assert metadata["outputs"]["pred"]["num_channels"] == 4
    assert list(metadata["outputs"]["pred"]["channel_def"].values()) == [
        "lymphocyte",
        "neutrophil",
        "eosinophil",
        "monocyte",
    ]
    assert not (home / "configs" / "federate.json").exists()
    docs = (home / "docs" / "README.md").read_text()
    assert docs.startswith("# A network 'cnn4' trained by a federation")
    assert "lymphocyte; neutrophil; eosinophil; monocyte" in docs
    assert docs.count("trained by a federation") == 1


def test_the_metadata_speak_of_the_data_of_the_run(home: Path, cohort: Path) -> None:
    metadata = json.loads((home / "configs" / "metadata.json").read_text())
    datalist = read_datalist(cohort / "site-01")
    assert metadata["data_source"] == datalist.name
    assert metadata["network_data_format"]["inputs"]["image"]["modality"] == datalist.modality
    assert metadata["image_classes"].startswith("3 channels of 12 x 12, ")
    assert metadata["label_classes"] == "one of 4 classes: lymphocyte; neutrophil; eosinophil; monocyte"
    assert "BloodMNIST" not in json.dumps({name: metadata[name] for name in ("description", "pred_classes")})


@pytest.mark.parametrize("config", ["train.json", "inference.json"])
def test_the_metadata_fit_the_network(home: Path, config: str) -> None:
    (meta,) = configs(home, "metadata.json")
    verify_net_in_out(net_id="network_def", meta_file=meta, config_file=configs(home, config)[0], device="cpu")


def test_it_is_exported_to_torchscript(home: Path, cohort: Path, tmp_path: Path) -> None:
    (config,) = configs(home, "train.json")
    ckpt_export(bundle_root=str(home), config_file=config, filepath=str(tmp_path / "model.ts"))
    scripted, _, _ = load_net_with_metadata(str(tmp_path / "model.ts"))
    data = load_site(cohort / "site-01", Multiclass(4), (0.5,), (0.5,)).test
    images, _ = data.batch(torch.arange(len(data)))
    probabilities = scripted.eval()(images).softmax(dim=1)
    expected = predictions(home / "predictions.csv") if home.name != "global" else probabilities
    assert probabilities.shape == (len(data), 4)
    np.testing.assert_allclose(probabilities.detach().numpy(), np.asarray(expected.detach()), atol=1e-5)


def predictions(path: Path) -> torch.Tensor:
    rows = list(csv.reader(path.open()))[1:]
    return torch.tensor([[float(value) for value in row[2:]] for row in rows])


def test_predictions_show_the_sex_where_the_data_list_does(finished: Path) -> None:
    pytest.importorskip("medfl_report")
    from medfl_report.predictions import read_prediction_sets

    known, unknown = (read_prediction_sets(read_run(finished))[site] for site in ("site-02", "site-01"))
    assert known.sex[:4] == ("female", "", "male", "")
    assert len(known.sex) == len(known.targets)
    assert unknown.sex == ()
    header = (finished / "sites/site-01/predictions.csv").read_text().splitlines()[0]
    assert header == "row,label,p0,p1,p2,p3", "no column where nothing is known"


def test_its_evaluation_gives_the_scores_of_the_federation(home: Path, cohort: Path, finished: Path) -> None:
    options = {"bundle_root": str(home), "dataset_dir": str(cohort), "output_dir": str(home / "eval")}
    monai_run(config_file=configs(home, "train.json", "evaluate.json"), **options)
    lines = (home / "eval" / "metrics.csv").read_text().splitlines()
    metrics = {name: float(value) for name, value in (line.split(",") for line in lines)}
    scores = json.loads((finished / "summary.json").read_text())["scores"]["global"]["test"]
    assert metrics == pytest.approx({name: values["sites"]["site-01"] for name, values in scores.items()}, abs=1e-6)
    assert len(metrics) == 8


def test_its_inference_predicts_a_sites_test_images(finished: Path, cohort: Path) -> None:
    home = finished / "sites" / "site-01"
    monai_run(config_file=configs(home, "inference.json"), bundle_root=str(home), dataset_dir=str(cohort / "site-01"))
    path = home / "eval" / "predictions.csv"
    classes = json.loads((finished / "summary.json").read_text())["holdings"]["classes"]
    np.testing.assert_allclose(numbers(path), predictions(home / "predictions.csv"), atol=1e-6)
    header = ["case", "predicted_class", "decision_rule", *(f"probability_{name}" for name in classes)]
    rows = read_inference(path)
    assert list(rows[0]) == header, "the classes of the data list"
    predicted = [classes[number] for number in numbers(path).argmax(1)]
    assert [row["predicted_class"] for row in rows] == predicted


def test_its_inference_predicts_a_folder_of_image_files_alike(finished: Path, cohort: Path, tmp_path: Path) -> None:
    home, images = finished / "sites" / "site-01", np.load(cohort / "images.npy")
    rows = [record["image"] for record in json.loads((cohort / "site-01" / "datalist.json").read_text())["test"]]
    for number, row in enumerate(rows):
        Image.fromarray(images[row]).save(tmp_path / f"image-{number:02d}.png")
    (config,) = configs(home, "inference.json")
    monai_run(config_file=config, bundle_root=str(home), dataset_dir=str(tmp_path), output_dir=str(tmp_path / "out"))
    path = tmp_path / "out" / "predictions.csv"
    assert cases(path) == [f"image-{number:02d}.png" for number in range(len(rows))]
    np.testing.assert_allclose(numbers(path), predictions(home / "predictions.csv"), atol=1e-6)
