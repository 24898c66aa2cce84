"""Bundle for mammograms: real commands, networks of different sizes, and exported bundles in MONAI."""

from __future__ import annotations

import csv
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from inference_file import numbers
from monai.bundle import ConfigParser, ckpt_export, verify_net_in_out
from monai.bundle import run as monai_run
from npz_makers import write_npz

from medfl.bundle.check import check_bundle
from medfl.cli.main import main
from medfl.workflow import FederatedWorkflow
from medfl_datasets.mias.synthetic import KNOWN_ROWS, write_release

BUNDLES = Path(__file__).parents[2] / "bundles"
BUNDLE = BUNDLES / "mammography_classification"
UNLIKE = {"site-02": "cluster_b", "site-03": "cluster_c", "site-04": "student"}


def command(*words: object) -> None:
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    assert ended.value.code == 0


def federate(place: Path, sites: int, **options: Any) -> None:
    """Split the pooled data set into sites and run a federation."""
    command("partition", place / "pool", "--out", place / "data", "--sites", sites, "--test-fraction", 0.3)
    configs = [str(BUNDLE / "configs" / name) for name in ("train.json", "federate.json")]
    folders = {"bundle_root": str(BUNDLE), "dataset_dir": str(place / "data"), "output_dir": str(place / "run")}
    common = {"rounds": 2, "epochs": 1, "allow_leaks": ["pixels"]}
    workflow = FederatedWorkflow(configs, logging_file=False, **folders, **common, **options)
    workflow.initialize()
    workflow.run()


@dataclass(frozen=True)
class Made:
    """Folders of the data and of a run."""

    place: Path

    @property
    def data(self) -> Path:
        return self.place / "data"

    @property
    def homes(self) -> list[Path]:
        return sorted((self.place / "run" / "sites").iterdir())

    def network_of(self, home: Path) -> str:
        return json.loads((home / "configs" / "inference.json").read_text())["network_name"]


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Prepare mammograms of 64 pixels, and train each site locally with another network."""
    place = tmp_path_factory.mktemp("films")
    rows = {number: KNOWN_ROWS.get(number, [("G NORM", "G CIRC M 9 9 9")[number % 2]]) for number in range(1, 33)}
    write_release(place, rows, edge=80)
    words = ["--labels", "malignant-rest", "--size", 64, "--test-share", 0, "--workers", 1]
    command("prep", "mias", "--source", place / "all-mias", "--out", place / "pool", *words)
    federate(place, 4, method="local", norm="group", networks_by_site=UNLIKE)
    return Made(place)


@pytest.fixture(scope="module")
def breasts(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Prepare images in the layout of BreastMNIST, and run a federation with one network."""
    place = tmp_path_factory.mktemp("breasts")
    rng = np.random.default_rng(0)
    arrays = {}
    for part, size in (("train", 60), ("val", 8), ("test", 8)):
        arrays[f"{part}_images"] = rng.integers(0, 256, (size, 28, 28), dtype=np.uint8)
        arrays[f"{part}_labels"] = (np.arange(size) % 2).astype(np.uint8)[:, None]
    write_npz(place / "breastmnist.npz", **arrays)
    command("prep", "medmnist", "--source", place, "--flag", "breastmnist", "--out", place / "pool")
    federate(place, 2, method="fedavg")
    return Made(place)


@pytest.fixture(params=["films", "breasts"])
def made(request: pytest.FixtureRequest) -> Made:
    return request.getfixturevalue(request.param)


def configs(home: Path, *names: str) -> list[str]:
    return [str(home / "configs" / name) for name in names]


def own(home: Path) -> np.ndarray:
    rows = list(csv.DictReader((home / "predictions.csv").open()))
    return np.array([[float(value) for name, value in row.items() if re.fullmatch(r"p\d+", name)] for row in rows])


def test_the_bundle_has_no_errors() -> None:
    report = check_bundle(BUNDLE)
    assert (report.errors, report.warnings) == ([], [])


def test_each_site_exports_its_own_network(films: Made, breasts: Made) -> None:
    assert [films.network_of(home) for home in films.homes] == ["cluster_a", "cluster_b", "cluster_c", "student"]
    widths = []
    for home in films.homes:
        model = torch.load(home / "models" / "model.pt", weights_only=True)
        convolutions = [model[f"body.stage{stage}.conv.weight"] for stage in (1, 2)]
        widths.append([*(len(weight) for weight in convolutions), *model["body.dense.fc.weight"].shape])
        assert "body.stage1.norm.weight" in model
    assert widths == [[32, 64, 128, 64], [16, 32, 64, 32], [8, 16, 32, 16], [16, 32, 64, 32]], "averaged maps at 64"
    model = torch.load(breasts.homes[1] / "models" / "model.pt", weights_only=True)
    assert model["body.dense.fc.weight"].shape == (128, 64 * 25), "flattened maps at 28 pixels"
    assert (breasts.place / "run" / "global" / "models" / "model.pt").is_file()


def test_plain_monai_scores_every_sites_model_as_the_federation_did(made: Made) -> None:
    scores = json.loads((made.place / "run" / "summary.json").read_text())["scores"]
    federated = scores.get("personal", scores.get("global"))["test"]
    for home in made.homes:
        options = {"bundle_root": str(home), "dataset_dir": str(made.data), "output_dir": str(home / "eval")}
        monai_run(config_file=configs(home, "train.json", "evaluate.json"), **options)
        lines = (home / "eval" / "metrics.csv").read_text().splitlines()
        metrics = {name: float(value) for name, value in (line.split(",") for line in lines)}
        for name, values in federated.items():
            expected = values["sites"][home.name]
            assert metrics[name] == pytest.approx(float("nan") if expected is None else expected, abs=1e-6, nan_ok=True)


def test_inference_on_a_sites_test_images_is_what_the_federation_predicted(made: Made, tmp_path: Path) -> None:
    for home in made.homes:
        options = {"bundle_root": str(home), "output_dir": str(tmp_path / home.name)}
        monai_run(config_file=configs(home, "inference.json")[0], dataset_dir=str(made.data / home.name), **options)
        predicted = numbers(tmp_path / home.name / "predictions.csv")
        assert np.allclose(predicted, own(home), atol=1e-5)


def test_inference_reads_films_as_prep_did(films: Made, tmp_path: Path) -> None:
    """Predict the folder of the data set, and compare with the sites' test images."""
    for home in films.homes[:2]:
        config = json.loads((home / "configs" / "inference.json").read_text())
        assert config["reading"] == {"crop_breast": False, "align": False, "voi": False}
        options = {"bundle_root": str(home), "output_dir": str(tmp_path / home.name)}
        monai_run(config_file=configs(home, "inference.json")[0], dataset_dir=str(films.place / "all-mias"), **options)
        predicted = numbers(tmp_path / home.name / "predictions.csv")
        assert len(predicted) == 32
        assert np.ptp(predicted[:, 0]) > 1e-4, "films give unlike predictions"
        assert len(own(home)) > 0
        for expected in own(home):
            assert np.abs(predicted - expected).max(axis=1).min() < 1e-6


def test_images_that_are_no_mammograms_are_read_as_elsewhere(breasts: Made) -> None:
    assert json.loads((breasts.homes[0] / "configs" / "inference.json").read_text())["reading"] is None


def test_a_sites_bundle_exports_and_fits_its_metadata(made: Made, tmp_path: Path) -> None:
    for home in made.homes[:2]:
        (config, meta) = configs(home, "train.json", "metadata.json")
        verify_net_in_out(net_id="network_def", meta_file=meta, config_file=config, device="cpu")
        ckpt_export(bundle_root=str(home), config_file=config, filepath=str(tmp_path / f"{home.name}.ts"))
        size = json.loads((home / "configs" / "inference.json").read_text())["size"]
        assert torch.jit.load(tmp_path / f"{home.name}.ts")(torch.zeros(1, 1, *size)).shape == (1, 2)


def test_one_site_trains_alone(films: Made, tmp_path: Path) -> None:
    home = films.homes[2]
    options = {"bundle_root": str(home), "dataset_dir": str(films.data), "site": home.name}
    monai_run(config_file=configs(home, "train.json")[0], max_epochs=1, ckpt_dir=str(tmp_path), **options)
    assert (tmp_path / "model_final.pt").is_file()


def test_it_differs_from_the_first_bundle_only_where_it_must() -> None:
    allowed = {
        *{"num_classes", "in_channels", "size", "networks", "network_name", "norm", "metrics", "optimizer"},
        *{"epochs", "imports", "federation", "reading", "image_reading", "dataset", "views"},
        "network_assignment",
    }
    for config in ("train.json", "federate.json", "evaluate.json", "inference.json"):
        first, other = (
            json.loads((BUNDLES / name / "configs" / config).read_text())
            for name in ("medmnist_classification", "mammography_classification")
        )
        first, other = (content.pop("settings", {}) | content for content in (first, other))
        unlike = {key for key in first.keys() | other.keys() if first.get(key) != other.get(key)}
        assert unlike <= allowed, (config, unlike - allowed)
    networks = [json.loads((BUNDLE / "configs" / f"{name}.json").read_text()) for name in ("train", "inference")]
    assert networks[0]["networks"] == networks[1]["networks"]


@pytest.mark.parametrize(
    ("bundle", "edges"), [("mammography", (28, 28)), ("medmnist", (28, 28)), ("medmnist", (12, 12, 12))]
)
def test_its_views_differ_from_each_other_and_from_the_image_and_sites_train_on_the_images(
    bundle: str, edges: tuple[int, ...]
) -> None:
    parser = ConfigParser()
    parser.read_config(str(BUNDLES / f"{bundle}_classification" / "configs" / "train.json"))
    parser.update({"size": list(edges), "spatial_dims": len(edges), "in_channels": 1})
    views = parser.get_parsed_content("task#views")
    assert "augmentation" not in parser["task"]
    images = torch.rand(6, 1, *edges, generator=torch.Generator().manual_seed(0)) * 2 - 1
    first, other = (views.seeded(images, None, range(start, start + 6))[0] for start in (0, 6))
    assert first.shape == images.shape
    for left, right in ((first, other), (first, images), (other, images)):
        assert bool((left - right).flatten(1).abs().amax(dim=1).gt(0.01).all())


@pytest.mark.parametrize("method", ["fedavg", "local"])
def test_breastmnist(tmp_path: Path, method: str) -> None:
    """Run one round of a few steps at ten sites of different sizes, on the real file."""
    folder = Path(os.environ.get("MEDFL_DATA", ".")) / "medmnist"
    if "MEDFL_DATA" not in os.environ or not (folder / "breastmnist.npz").is_file():
        pytest.skip("needs the real medmnist/breastmnist.npz in the folder that MEDFL_DATA names")
    command("prep", "medmnist", "--source", folder, "--flag", "breastmnist", "--out", tmp_path / "pool")
    skewed = ("--scheme", "dirichlet_class", "--alpha", 0.5, "--sites", 10, "--duplicates", "drop")
    command("partition", tmp_path / "pool", "--out", tmp_path / "data", *skewed)
    words = ["--dataset-dir", tmp_path / "data", "--output-dir", tmp_path / "run", "--method", method]
    command("run", "mammography_classification", *words, "--rounds", 1, "--steps", 2)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["status"] == "finished"
    assert len(list((tmp_path / "run" / "sites").iterdir())) == 10
