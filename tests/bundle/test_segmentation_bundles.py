"""Bundles for volumes and lesions: methods, reproducibility, and exported bundles in MONAI."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
import torch
from masked_cohorts import MAKERS, WIDTHS, federate
from monai.bundle import ckpt_export, verify_net_in_out
from monai.bundle import run as monai_run
from PIL import Image

from medfl.data.sites import load_sites
from medfl.data.transforms.frame import Frame
from medfl.objectives import Segmentation

METHODS: dict[str, dict[str, Any]] = {  # the conformance suite trains all methods on masks
    "fedavg": {},
    "ditto": {},
    "fedskd": {"method_args": {"p2p_scale": 1}, "networks_by_site": WIDTHS},
    "fedkper": {"method_args": {"score": "acc"}},
}


@dataclass(frozen=True)
class Made:
    """Bundle and its data."""

    name: str
    place: Path

    @property
    def data(self) -> Path:
        return self.place / "data"

    @property
    def sites(self) -> list[str]:
        return sorted(path.parent.name for path in self.data.glob("*/datalist.json"))

    def run(self, out: str, method: str, **options: Any) -> Path:
        """Run two rounds unless the run folder exists, and return the folder."""
        known = {name: value for name, value in options.get("networks_by_site", {}).items() if name in self.sites}
        options |= {"networks_by_site": known} if known else {}
        if not (self.place / out / "summary.json").exists() or "rounds" in options:
            federate(self.name, self.data, self.place / out, method, **options)
        return self.place / out


@pytest.fixture(scope="module", params=sorted(MAKERS))
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    if request.param == "lesion_segmentation":
        pytest.importorskip("medfl_encoders")
    federation = Made(request.param, tmp_path_factory.mktemp(request.param))
    MAKERS[federation.name](federation.place)
    return federation


@pytest.mark.parametrize("method", METHODS)
def test_a_method_runs_on_it_and_scores_cases(made: Made, method: str) -> None:
    summary = json.loads((made.run(method, method, **METHODS[method]) / "summary.json").read_text())
    assert summary["status"] == "finished"
    for scores in summary["scores"].values():
        values = [value for value in scores["test"]["dice"]["sites"].values() if value is not None]
        assert values
        assert all(0 <= value <= 1 for value in values)


def bits(run: Path) -> dict[str, bytes]:
    """Return all exported models, and the scores without times."""
    lines = [line for line in (run / "metrics.csv").read_bytes().splitlines() if b"seconds" not in line]
    content = {"scores": b"\n".join(lines)}
    for home in run.glob("sites/*"):
        tensors = torch.load(home / "models" / "model.pt", weights_only=True)
        content |= {f"{home.name}/{name}": tensor.numpy().tobytes() for name, tensor in tensors.items()}
        content[f"{home.name}/predictions"] = (home / "predictions.csv").read_bytes()
    return content


@pytest.mark.parametrize(
    "made", ["lesion_segmentation", pytest.param("volume_segmentation", marks=pytest.mark.slow)], indirect=True
)
def test_workers_and_a_resumed_run_change_no_bit(made: Made) -> None:
    whole = bits(made.run("whole", "fedavg", rounds=2))
    assert len(whole) > 2 * len(made.sites)
    assert bits(made.run("workers", "fedavg", rounds=2, workers=2)) == whole
    made.run("again", "fedavg", rounds=1)
    assert bits(made.run("again", "fedavg", rounds=2)) == whole


def config(home: Path, *names: str) -> list[str]:
    return [str(home / "configs" / name) for name in names]


def test_plain_monai_scores_a_sites_own_model_as_the_federation_did(made: Made) -> None:
    home = made.run("fedskd", "fedskd", **METHODS["fedskd"]) / "sites" / made.sites[1]
    options = {"bundle_root": str(home), "dataset_dir": str(made.data), "output_dir": str(home / "eval")}
    monai_run(config_file=config(home, "train.json", "evaluate.json"), **options)
    lines = (home / "eval" / "metrics.csv").read_text().splitlines()
    metrics = {name: float(value) for name, value in (line.split(",") for line in lines)}
    scores = json.loads((made.place / "fedskd" / "summary.json").read_text())["scores"]["personal"]["test"]
    for name, values in scores.items():
        expected = values["sites"][home.name]
        assert metrics[name] == pytest.approx(float("nan") if expected is None else expected, abs=1e-6, nan_ok=True)


def test_it_is_a_bundle_that_knows_what_it_takes_and_gives(made: Made, tmp_path: Path) -> None:
    home = made.run("fedskd", "fedskd", **METHODS["fedskd"]) / "sites" / made.sites[0]
    options = {"bundle_root": str(home), "config_file": config(home, "train.json")[0]}
    verify_net_in_out("network_def", meta_file=config(home, "metadata.json")[0], device="cpu", **options)
    files = {"ckpt_file": str(home / "models" / "model.pt"), "filepath": str(tmp_path / "model.ts")}
    ckpt_export("network_def", meta_file=config(home, "metadata.json")[0], **files, **options)
    pred = json.loads((home / "configs" / "metadata.json").read_text())["network_data_format"]["outputs"]["pred"]
    volumes = made.name == "volume_segmentation"
    names = ["background", "front", "back"] if volumes else ["background", "lesion"]
    assert list(pred["channel_def"].values()) == names
    assert pred["spatial_shape"] == ([12, 12, 12] if volumes else [16, 16])


def test_inference_writes_masks_on_the_grid_of_the_files(made: Made, tmp_path: Path) -> None:
    """Compare the mask of a test image's file with the prediction of the site's model for the prepared image."""
    home = made.run("fedavg", "fedavg") / "sites" / made.sites[1]
    volumes = made.name == "volume_segmentation"
    files = made.place / "release" / ("imagesTr" if volumes else "images")
    options = {"bundle_root": str(home), "dataset_dir": str(files), "output_dir": str(tmp_path)}
    monai_run(config_file=config(home, "inference.json")[0], **options)
    drawn = sorted(path for path in tmp_path.rglob("*_mask.*"))
    originals = sorted(files.iterdir())
    assert [path.name.partition(".")[0] for path in drawn] == [f"{p.name.partition('.')[0]}_mask" for p in originals]
    _check_volumes(home, made, originals, drawn) if volumes else _check_pictures(home, made, originals, drawn)


def _predicted(home: Path, made: Made, objective: Segmentation) -> np.ndarray:
    """Return the classes that a site's model predicts for its test images, of shape (n, *spatial)."""
    scale = {"mean": (0.0,), "std": (1.0,)} if objective.spacing else {"mean": (0.5,), "std": (0.25,)}
    test = load_sites(made.data, objective, **scale)[home.name].test
    network = torch.jit.load(_exported(home), map_location="cpu").eval()
    with torch.no_grad():
        return network(test.batch(torch.arange(len(test)))[0]).argmax(dim=1).numpy()


def _exported(home: Path) -> str:
    target = home / "models" / "model.ts"
    options = {"bundle_root": str(home), "config_file": config(home, "train.json")[0], "filepath": str(target)}
    meta = config(home, "metadata.json")[0]
    ckpt_export("network_def", meta_file=meta, ckpt_file=str(home / "models" / "model.pt"), **options)
    return str(target)


def _check_volumes(home: Path, made: Made, originals: list[Path], drawn: list[Path]) -> None:
    back = []
    for original, mask in zip(originals, drawn, strict=True):
        before, after = nibabel.load(original), nibabel.load(mask)
        assert after.shape == before.shape
        assert np.allclose(after.affine, before.affine)
        assert after.get_data_dtype() == np.uint8
        frame = Frame((12, 12, 12))
        case = frame.fit(mask=True)(frame.read(mask=True)({"image": str(original), "label": str(mask)}))
        ones = np.ones((1, *case["image"].meta["spatial_shape"]), np.float32)
        back.append(
            (case["label"][0].numpy(), frame.fit(mask=False)({"image": torch.from_numpy(ones)})["image"][0] > 0)
        )
    for expected in _predicted(home, made, Segmentation(3, spacing=(1, 1, 1))):
        assert min((mask != expected)[inside].mean() for mask, inside in back) == 0  # there is nothing in the padding


def _check_pictures(home: Path, made: Made, originals: list[Path], drawn: list[Path]) -> None:
    back = []
    for original, mask in zip(originals, drawn, strict=True):
        picture = Image.open(mask)
        assert picture.size == Image.open(original).size
        assert set(np.unique(np.asarray(picture))) <= {0, 255}
        back.append(np.asarray(picture.resize((16, 16), Image.Resampling.BOX)) >= 128)
    for expected in _predicted(home, made, Segmentation(2)):
        assert min((mask != expected).mean() for mask in back) < 0.12  # outlines, of which it has many, are drawn anew
