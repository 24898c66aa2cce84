"""Images of cells of odd kinds, and what came of a release."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
from PIL import Image

from medfl.data.datalists import SPLITS
from medfl.data.readers.images import read_image

_numbers = itertools.count(1)


def cell(path: Path, shape: tuple[int, int] = (12, 12), mode: str = "RGB", **options: object) -> Path:
    """An image of noise that no other call makes."""
    channels = {"L": (), "RGBA": (4,), "CMYK": (4,)}.get(mode, (3,))
    pixels = np.random.default_rng(next(_numbers)).integers(0, 256, (*shape, *channels), dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels, mode if mode in ("L", "RGBA", "CMYK") else "RGB").save(path, **options)
    return path


def records(datalist):
    """All records, each with its split, in the order of the array."""
    entries = [record | {"split": split} for split in SPLITS for record in datalist.splits.get(split, [])]
    return sorted(entries, key=lambda record: record["image"])


def exclusions(datalist):
    """Reason to count of what was left out."""
    return {entry.reason: entry.count for entry in datalist.exclusions}


def check_pixels(pool, files):
    """Row n of the array is the n-th of the files, read like any image."""
    images = np.load(pool / "images.npy")
    assert images.dtype == np.uint8
    assert len(images) == len(files)
    for row, path in zip(images, files, strict=True):
        np.testing.assert_array_equal(row, read_image(path, row.shape[:2], 3))


def listed(top, suffix):
    """All images below a folder, in the order of folders and names."""
    folders = sorted(folder for folder in top.iterdir() if folder.is_dir())
    return [path for folder in folders for path in sorted(folder.glob(f"[!.]*{suffix}"))]
