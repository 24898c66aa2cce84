"""Sites whose every number is known, for descriptions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from medfl.data.datalists import Datalist, write_datalist


def write_site(folder: Path, images: np.ndarray, records: Sequence[dict[str, Any]], **about: Any) -> Path:
    """A site that holds rows 0, 1, ... of its own array; what is named goes into the data list."""
    folder.mkdir(parents=True)
    np.save(folder / "images.npy", images)
    training = [{"image": row} | dict(record) for row, record in enumerate(records)]
    masks = about.pop("masks", None)
    if masks is not None:
        np.save(folder / "masks.npy", masks)
        about["mask_array"] = "masks.npy"
    objective = about.get("objective")
    head = {"name": "known", "num_classes": 2 if objective is None else 1} | about
    write_datalist(folder, Datalist(image_array="images.npy", splits={"training": training}, **head))
    return folder


def write_classes(folder: Path, counts: Sequence[int], seed: int = 0, shift: int = 0, patients: int = 0) -> Path:
    """Grey 8 x 8 images of some brightness, so many of each class; `shift` is added to each pixel."""
    rng = np.random.default_rng(seed)
    total = sum(counts)
    bright = rng.normal(100, 12, (total, 1, 1)) + rng.normal(0, 20, (total, 8, 8)) + shift
    labels = [label for label, count in enumerate(counts) for _ in range(count)]
    owners = [{"subject_id": f"secret-{row % patients}"} if patients else {} for row in range(total)]
    records = [{"label": label} | owner for label, owner in zip(labels, owners, strict=True)]
    names = {str(label): f"kind {label}" for label in range(len(counts))}
    images = np.clip(bright, 0, 255).astype(np.uint8)
    return write_site(folder, images, records, num_classes=len(counts), labels=names)
