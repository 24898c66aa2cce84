"""Made-up releases of HAM10000: layout, columns and counts of the real one, other images. Names are secrets."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from image_makers import picture
from prepare_specs import prepare_spec

from medfl.data.datalists import Datalist
from medfl_datasets.ham10000.spec import HAM10000

HEADER = ("lesion_id", "image_id", "dx", "dx_type", "age", "sex", "localization")
"""As on Kaggle; Dataverse adds ``dataset``."""

IMAGES = {"nv": 6705, "mel": 1113, "bkl": 1099, "bcc": 514, "akiec": 327, "vasc": 142, "df": 115}
LESIONS = {"nv": 5403, "mel": 614, "bkl": 727, "bcc": 327, "akiec": 228, "vasc": 98, "df": 73}
"""Published numbers of each diagnosis."""

COLLECTIONS = {"vidir_molemax": 3954, "vidir_modern": 3363, "rosendahl": 2259, "vienna_dias": 439}

SMALL = dict.fromkeys(IMAGES, (3, 2))
"""Diagnosis to images and lesions: 21 images of 14 lesions."""


def make_rows(counts: dict[str, tuple[int, int]]) -> list[dict[str, str]]:
    """Rows in a random order; the first 57 and 234 in it have no age, sex and localization if there are that many."""
    pairs = [(dx, f"HAM_{dx}_SECRET_{n % lesions}") for dx, (images, lesions) in counts.items() for n in range(images)]
    whole = len(pairs) == sum(IMAGES.values())
    collections = [name for name, count in COLLECTIONS.items() for _ in range(count if whole else 6)]
    rows = []
    for place, pair in enumerate(np.random.default_rng(7).permutation(len(pairs)).tolist()):
        dx, lesion = pairs[pair]
        rows.append(
            {
                "lesion_id": lesion,
                "image_id": f"ISIC_SECRET{place:05d}",
                "dx": dx,
                "dx_type": "histo",
                "age": "" if place < (57 if whole else 2) else f"{place % 17 * 5}.0",
                "sex": ("unknown", "NaN")[place % 2] if place < (57 if whole else 2) else ("female", "male")[place % 2],
                "localization": "unknown" if place < (234 if whole else 3) else "lower extremity",
                "dataset": collections[place],
            }
        )
    return rows


def write_table(path: Path, rows: Sequence[dict[str, str]], separator: str = ",", **options: object) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter=separator, **options)
        writer.writeheader()
        writer.writerows(rows)


def colour_of(place: int) -> tuple[int, int, int]:
    """Of the lesion in the image of a row."""
    return 200, place * 10, 100


def write_images(folder: Path, rows: Sequence[dict[str, str]], masks: bool = False) -> None:
    """Images of one colour, 16 x 24; the first half is in part 1. With masks, in folders below, lesions in black skin.

    The lesion of row n begins at row 4 and column 2 + n % 8, and is 4 rows high and 8 columns wide.
    """
    for place, row in enumerate(rows):
        part = folder / f"HAM10000_images_part_{1 + (place >= len(rows) / 2)}"
        part.mkdir(exist_ok=True, parents=True)
        pixels = np.full((16, 24, 3), colour_of(place), np.uint8)
        if masks:
            lesion = np.zeros((16, 24), np.uint8)
            lesion[4:8, 2 + place % 8 : 10 + place % 8] = 255
            pixels[lesion == 0] = 0
            around = folder / "HAM10000_segmentations_lesion_tschandl"
            around.mkdir(exist_ok=True)
            picture(around / f"{row['image_id']}_segmentation.png", lesion)
        picture(part / f"{row['image_id']}.jpg", pixels, format="JPEG", quality=95, subsampling=0)


def make_release(folder: Path, masks: bool = False) -> tuple[Path, list[dict[str, str]]]:
    """The layout of Kaggle with the columns of Dataverse."""
    release, rows = folder / "HAM10000", make_rows(SMALL)
    write_images(release, rows, masks)
    write_table(release / "HAM10000_metadata.csv", rows)
    return release, rows


def prepare(source: Path, out: Path, size: int = 4, **options: object) -> Datalist:
    """Prepare it in this process, small."""
    return prepare_spec(HAM10000, source, out, size=(size, size), **{"workers": 1} | options)


def exclusions(datalist: Datalist) -> dict[str, int]:
    return {entry["reason"]: entry["count"] for entry in datalist.extra["exclusions"]}
