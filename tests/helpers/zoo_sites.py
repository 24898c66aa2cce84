"""Made-up cases for the bundles of `zoo_shapes`: a site's folder as each of them expects it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import nibabel
import numpy as np
import zoo_shapes
from PIL import Image


def volumes(folder: Path, count: int, seed: int = 0) -> Path:
    """Volumes of unlike sizes with a ball in each, for `zoo_shapes.spleen`."""
    rng = np.random.default_rng((count, seed))
    for part in ("imagesTr", "labelsTr", "imagesTs"):
        (folder / part).mkdir(parents=True)
    for case in range(count):
        mask = np.zeros((24, 24, 20 + 2 * (case % 3)), np.uint8)
        mask[6:16, 6:16, 5:14] = 1
        image = (mask * 100 + rng.normal(0, 10, mask.shape)).astype(np.float32)
        for part, array in (("imagesTr", image), ("labelsTr", mask)):
            _save(array, folder / part / f"c{case}.nii.gz", [1.5, 1.5, 2.0])
    _save(image, folder / "imagesTs" / "c.nii.gz", [1.5, 1.5, 2.0])
    return folder


def pictures(folder: Path, count: int, seed: int = 0) -> Path:
    """Colour pictures with a square each, for training and validation of `zoo_shapes.tools`."""
    rng = np.random.default_rng((count, seed))
    for side in ("train", "val"):
        for part in ("inputs", "masks"):
            (folder / side / part).mkdir(parents=True)
        for case in range(count):
            mask = np.zeros((16, 16), np.uint8)
            mask[4 : 8 + case, 5:12] = 1
            image = rng.integers(0, 60, (16, 16, 3), np.uint8) + 150 * mask[..., None]
            Image.fromarray(image.astype(np.uint8)).save(folder / side / "inputs" / f"{case}.png")
            Image.fromarray(mask).save(folder / side / "masks" / f"{case}.png")
    return folder


def tumours(folder: Path, count: int, seed: int = 0) -> Path:
    """Four sequences of a head with a tumour of three parts, and a list, for `zoo_shapes.brain_tumours`."""
    rng = np.random.default_rng((count, seed))
    folder.mkdir(parents=True)
    rows = []
    for case in range(count + 2):
        mask = np.zeros((16, 16, 16), np.uint8)
        mask[3:12, 3:12, 3:12], mask[4:10, 4:10, 4:10], mask[5:8, 5:8, 5:8] = 2, 1, 4
        names = [f"p{case}_{sequence}.nii.gz" for sequence in range(4)]
        for name in names:
            _save((mask * 20.0 + rng.normal(50, 5, mask.shape)).astype(np.float32), folder / name, [1.0, 1.0, 1.0])
        _save(mask, folder / f"p{case}_seg.nii.gz", [1.0, 1.0, 1.0])
        rows.append({"image": names, "label": f"p{case}_seg.nii.gz"})
    (folder / "datalist.json").write_text(
        json.dumps({"training": rows[:-2], "validation": rows[-2:-1], "testing": rows[-1:]})
    )
    return folder


def frames(folder: Path, count: int, seed: int = 0) -> Path:
    """Frames of a video, dark or bright, with lists of their classes, for `zoo_shapes.in_body`."""
    rng = np.random.default_rng((count, seed))
    folder.mkdir(parents=True)
    for side, size in (("train", count), ("val", 2)):
        rows = []
        for case in range(size):
            image = rng.integers(0, 60, (20, 18, 3), np.uint8) + 150 * (case % 2)
            Image.fromarray(image.astype(np.uint8)).save(folder / f"{side}{case}.png")
            rows.append({"image": f"{side}{case}.png", "label": case % 2})
        (folder / f"{side}_samples.json").write_text(json.dumps(rows))
    return folder


def decathlon(folder: Path, count: int, seed: int = 0) -> Path:
    """A task of the Medical Decathlon, for `zoo_shapes.hippocampus`."""
    rng = np.random.default_rng((count, seed))
    task = folder / "Task04_Hippocampus"
    for part in ("imagesTr", "labelsTr"):
        (task / part).mkdir(parents=True)
    names = []
    for case in range(count):
        mask = np.zeros((32, 32, 32), np.uint8)
        mask[3:9, 4:12, 4:12], mask[9:13, 4:12, 4:12] = 1, 2
        image = (mask * 50 + rng.normal(0, 10, mask.shape)).astype(np.float32)
        for part, array in (("imagesTr", image), ("labelsTr", mask)):
            _save(array, task / part / f"h{case}.nii.gz", [1.0, 1.0, 1.0])
        names.append({"image": f"./imagesTr/h{case}.nii.gz", "label": f"./labelsTr/h{case}.nii.gz"})
    facts = {"numTraining": count, "numTest": 0, "training": names, "test": [], "name": "Hippocampus"}
    facts |= {"description": "", "reference": "", "licence": "", "release": "", "tensorImageSize": "3D"}
    facts |= {"modality": {"0": "MRI"}, "labels": {"0": "background", "1": "anterior", "2": "posterior"}}
    (task / "dataset.json").write_text(json.dumps(facts))
    return folder


SITES: dict[Callable[[Path], Path], Callable[[Path, int, int], Path]] = {
    zoo_shapes.spleen: volumes,
    zoo_shapes.tools: pictures,
    zoo_shapes.brain_tumours: tumours,
    zoo_shapes.in_body: frames,
    zoo_shapes.hippocampus: decathlon,
}
"""Shape of a bundle to what makes a site of it: a folder, cases for training, a seed."""


def make_sites(shape: Callable[[Path], Path], folder: Path, count: int = 3) -> Path:
    """Two sites with cases of their own for a shape of a bundle."""
    for number, name in enumerate(("north", "south")):
        SITES[shape](folder / name, count + number, number)
    return folder


def _save(array: np.ndarray, path: Path, spacing: list[float]) -> None:
    nibabel.save(nibabel.Nifti1Image(array, np.diag([*spacing, 1.0])), path)
