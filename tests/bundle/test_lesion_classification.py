"""Bundle for benign and malignant lesions: networks of different widths, and exported bundles in MONAI."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from inference_file import numbers
from masked_cohorts import federate, make_lesions
from monai.bundle import ckpt_export, verify_net_in_out
from monai.bundle import run as monai_run

from medfl.bundle.bundle_folders import shipped_bundles

NAME = "lesion_classification"
WIDTHS = {"busbra_toshiba": "encoder_wide", "breast_pl": "encoder_narrow"}
"""Maps sites to networks of different widths."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write data and a run of fedskd, and return their folder."""
    folder = tmp_path_factory.mktemp(NAME)
    data = make_lesions(folder, "pathology")
    federate(NAME, data, folder / "run", "fedskd", method_args={"p2p_scale": 1}, networks_by_site=WIDTHS)
    return folder


@pytest.fixture(scope="module")
def home(place: Path) -> Path:
    return place / "run" / "sites" / "breast_pl"


def test_sites_of_unlike_widths_learn_classes(place: Path) -> None:
    summary = json.loads((place / "run" / "summary.json").read_text())
    assert summary["status"] == "finished"
    assert summary["holdings"]["classes"] == ["benign", "malignant"]
    widths = {}
    for site in ("busbra_logiq7", *WIDTHS):
        tensors = torch.load(place / "run" / "sites" / site / "models" / "model.pt", weights_only=True)
        widths[site] = tensors["head.weight"].shape
    assert widths == {"busbra_logiq7": (2, 8), "busbra_toshiba": (2, 12), "breast_pl": (2, 6)}


def config(home: Path, *names: str) -> list[str]:
    return [str(home / "configs" / name) for name in names]


def test_plain_monai_scores_a_sites_own_model_as_the_federation_did(place: Path, home: Path, tmp_path: Path) -> None:
    options = {"bundle_root": str(home), "dataset_dir": str(place / "data"), "output_dir": str(tmp_path)}
    monai_run(config_file=config(home, "train.json", "evaluate.json"), **options)
    metrics = dict(line.split(",") for line in (tmp_path / "metrics.csv").read_text().splitlines())
    scores = json.loads((place / "run" / "summary.json").read_text())["scores"]["personal"]["test"]
    expected = {name: values["sites"][home.name] for name, values in scores.items()}
    assert expected["accuracy"] is not None
    for name, value in expected.items():
        assert float(metrics[name]) == pytest.approx(float("nan") if value is None else value, abs=1e-6, nan_ok=True)


def test_inference_reads_the_files_of_the_release_as_prep_did(place: Path, home: Path, tmp_path: Path) -> None:
    options = {"bundle_root": str(home), "dataset_dir": str(place / "release" / "images"), "output_dir": str(tmp_path)}
    monai_run(config_file=config(home, "inference.json")[0], **options)
    rows = numbers(tmp_path / "predictions.csv")
    expected = [[float(row["p0"]), float(row["p1"])] for row in csv.DictReader((home / "predictions.csv").open())]
    assert expected
    for prediction in expected:
        assert np.abs(rows - prediction).max(axis=1).min() < 1e-5


def test_it_exports_and_knows_what_it_takes_and_gives(home: Path, tmp_path: Path) -> None:
    (train, meta) = config(home, "train.json", "metadata.json")
    verify_net_in_out("network_def", meta_file=meta, config_file=train, device="cpu")
    ckpt_export(bundle_root=str(home), config_file=train, filepath=str(tmp_path / "model.ts"))
    assert (tmp_path / "model.ts").is_file()
    pred = json.loads(Path(meta).read_text())["network_data_format"]["outputs"]["pred"]
    assert list(pred["channel_def"].values()) == ["benign", "malignant"]


def test_it_differs_from_the_bundle_for_dermoscopy_only_where_it_must() -> None:
    for name in ("train.json", "federate.json", "evaluate.json", "inference.json"):
        first, other = (
            json.loads((shipped_bundles()[bundle] / "configs" / name).read_text())
            for bundle in ("dermoscopy_classification", NAME)
        )
        unlike = {key for key in first.keys() | other.keys() if first.get(key) != other.get(key)}
        own = {"num_classes", "in_channels", "size", "std", "batch_size", "networks", "network_name"}
        own |= {"width", "levels", "res_units", "norm", "dropout", "optimizer", "shift", "augmentation"}
        assert unlike <= own | {"rounds", "settings", "federation"}, (name, unlike - own)


def test_its_networks_and_changes_of_images_are_those_of_the_bundle_for_masks() -> None:
    ours, masks = (
        json.loads((shipped_bundles()[bundle] / "configs" / "train.json").read_text())
        for bundle in (NAME, "lesion_segmentation")
    )
    shared = ("channels", "num_res_units", "norm", "dropout", "spatial_dims", "size")
    unets = {name: definition for name, definition in masks["networks"].items() if name.startswith("unet")}
    assert len(unets) == 3
    for network, definition in unets.items():
        same = ours["networks"][network.replace("unet", "encoder")]
        assert [same[key] for key in shared] == [definition[key] for key in shared]
    assert all(ours[key] == masks[key] for key in ("mean", "std", "width", "levels", "res_units", "norm", "optimizer"))
    for changed, transform in zip(ours["augmentation"]["transforms"], masks["augmentation"]["transforms"], strict=True):
        options = ("_target_", "prob", "spatial_axis", "rotate_range", "scale_range", "factors", "offsets")
        assert [changed.get(key) for key in options] == [transform.get(key) for key in options]
