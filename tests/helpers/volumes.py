"""Small made-up volumes with masks, in files, and chains of transforms as bundles have them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import torch
from monai.transforms import (
    Compose,
    EnsureChannelFirstd,
    LoadImaged,
    RandCropByPosNegLabeld,
    RandFlipd,
    RandGaussianNoised,
    ScaleIntensityRanged,
)

from medfl.data.transforms.dataset import TransformDataset
from medfl.types import LoadedBatch

KEYS = ["image", "label"]

NAME = "Doe^Jane"
"""A person's name, in file names and headers; it may be in no output and no message."""


def write_volume(path: Path, values: np.ndarray, spacing: Sequence[float] = (1, 1, 1), origin: float = 0.0) -> str:
    affine = np.diag([*spacing, 1.0])
    affine[0, 3] = origin
    image = nib.Nifti1Image(values, affine)
    image.header["descrip"] = NAME.encode()
    nib.save(image, path)
    return str(path)


def make_cases(folder: Path, count: int = 4, shape: Sequence[int] = (12, 10, 8)) -> list[dict[str, Any]]:
    """Volumes with a box of label 1 or 2, in files that bear a name."""
    draws, cases = np.random.default_rng(7), []
    for number in range(count):
        mask = np.zeros(shape, np.uint8)
        mask[2:6, 3:7, 1:5] = 1 + number % 2
        image = draws.normal(100, 20, shape).astype(np.float32) + 80 * mask
        case = {"image": write_volume(folder / f"{NAME}_{number}.nii.gz", image)}
        case["label"] = write_volume(folder / f"{NAME}_{number}_mask.nii.gz", mask)
        cases.append(case | {"subject_id": NAME})
    return cases


def steady(top: float = 300.0) -> list[Any]:
    """A deterministic beginning."""
    return [
        LoadImaged(KEYS),
        EnsureChannelFirstd(KEYS),
        ScaleIntensityRanged("image", 0, top, 0, 1, clip=True),
    ]


def patches(count: int = 2) -> list[Any]:
    """A random end that cuts patches and changes them."""
    cutter = RandCropByPosNegLabeld(KEYS, "label", (6, 6, 6), num_samples=count)
    return [cutter, RandFlipd(KEYS, prob=0.5), RandGaussianNoised("image", prob=0.9, std=0.05)]


def make_data(cases: Sequence[dict[str, Any]], *end: Any, **options: Any) -> TransformDataset:
    options = {"target_type": torch.int64, "where": "site 'site-01', split 'training'"} | options
    return TransformDataset(cases, Compose([*steady(), *(end or patches())]), **options)


def visit(data: TransformDataset, batches: Sequence[Sequence[int]], stream: int = 5) -> list[LoadedBatch]:
    return list(data.visits([torch.tensor(rows, dtype=torch.int64) for rows in batches], stream))


def same(left: Sequence[LoadedBatch], right: Sequence[LoadedBatch]) -> bool:
    """Return True if batches have the same rows, inputs and targets, bit by bit."""
    return len(left) == len(right) and all(
        torch.equal(getattr(a, name), getattr(b, name))
        for a, b in zip(left, right, strict=True)
        for name in ("rows", "inputs", "targets")
    )
