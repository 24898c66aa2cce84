"""Made-up releases of white blood cells: layout and names of the real ones, tiny images, no two of them alike."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from PIL import Image

from medfl.data.datalists import SPLITS
from medfl.data.readers.images import read_image
from medfl_datasets.bloodcells.acevedo import FOLDERS
from medfl_datasets.bloodcells.matek import CODES

FOLDER_OF = {code: folder for folder, codes in FOLDERS.items() for code in codes}
ACEVEDO = dict.fromkeys(FOLDER_OF, 1) | {"BA": 5, "BNE": 5, "EO": 6}
MATEK = dict.fromkeys(CODES, 1) | {"MYO": 3}
BODZAS = {
    "Basophile": 2,
    "Eosinophile": 1,
    "Lymphoblast": 2,
    "Lymphocyte": 1,
    "Monocyte": 1,
    "Myeloblast": 1,
    "Neutrophile Band": 1,
    "Neutrophile Segment": 3,
    "Normoblast": 1,
}
_numbers = itertools.count(1)


def cell(path: Path, shape: tuple[int, int] = (12, 12), mode: str = "RGB", **options: object) -> Path:
    """An image of noise that no other call makes."""
    channels = {"L": (), "RGBA": (4,), "CMYK": (4,)}.get(mode, (3,))
    pixels = np.random.default_rng(next(_numbers)).integers(0, 256, (*shape, *channels), dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels, mode if mode in ("L", "RGBA", "CMYK") else "RGB").save(path, **options)
    return path


def make_acevedo(place: Path, counts: Mapping[str, int] = ACEVEDO) -> Path:
    """Classes of JPEG files of three sizes, each name with its kind of cell, and the stray dot file."""
    top = place / "PBC_dataset_normal_DIB"
    for code, count in counts.items():
        for number in range(count):
            shape = ((12, 13), (14, 15), (12, 12))[number % 3]
            cell(top / FOLDER_OF[code] / f"{code}_{100000 + number}.jpg", shape)
    (top / "neutrophil" / ".DS_169665.jpg").write_bytes(b"Bud1")
    return top


def make_matek(place: Path, counts: Mapping[str, int] = MATEK) -> Path:
    """Codes of TIFF files with an alpha channel, and the table."""
    top, lines = place / "AML-Cytomorphology_LMU", []
    for code, count in counts.items():
        for number in range(1, count + 1):
            name = f"{code}/{code}_{number:04d}.tiff"
            cell(top / name, mode="RGBA")
            lines.append(f"{name} {code} {'MON' if number == 2 else 'nan'} {'nan' if number < 3 else code}")
    (top / "annotations.dat").write_text("\n".join(lines) + "\n")
    return top


def make_bodzas(place: Path, counts: Mapping[str, int] = BODZAS) -> Path:
    """Classes of BMP files whose names begin anew in each."""
    top = place / "bodzas"
    for folder, count in counts.items():
        for number in range(count):
            cell(top / folder / f"{number}.bmp")
    return top


def records(datalist):
    """All records, each with its split, in the order of the array."""
    found = [record | {"split": split} for split in SPLITS for record in datalist.splits.get(split, [])]
    return sorted(found, key=lambda record: record["image"])


def exclusions(datalist):
    """Reason to count of what was left out."""
    return {entry["reason"]: entry["count"] for entry in datalist.extra["exclusions"]}


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
