"""Write a synthetic HAM10000 release with the layout and columns of the real one.

Names that must stay private contain SECRET.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

HEADER = ("lesion_id", "image_id", "dx", "dx_type", "age", "sex", "localization")
"""Columns of the table on Kaggle; Dataverse adds ``dataset``."""

IMAGES_BY_DIAGNOSIS = {"nv": 6705, "mel": 1113, "bkl": 1099, "bcc": 514, "akiec": 327, "vasc": 142, "df": 115}
"""Published number of images of each diagnosis."""

LESIONS_BY_DIAGNOSIS = {"nv": 5403, "mel": 614, "bkl": 727, "bcc": 327, "akiec": 228, "vasc": 98, "df": 73}
"""Published number of lesions of each diagnosis."""

IMAGES_BY_COLLECTION = {"vidir_molemax": 3954, "vidir_modern": 3363, "rosendahl": 2259, "vienna_dias": 439}
"""Published number of images of each collection (value of the column ``dataset``)."""

SMALL_COUNTS = dict.fromkeys(IMAGES_BY_DIAGNOSIS, (3, 2))
"""Default of the synthetic release: maps each diagnosis to its numbers of images and lesions, 21 and 14 in all."""


def make_rows(counts: Mapping[str, tuple[int, int]] = SMALL_COUNTS, seed: int = 0) -> list[dict[str, str]]:
    """Make the rows of a table with the columns of Dataverse.

    Args:
        counts: Maps each diagnosis to its numbers of images and of lesions. With the numbers of the release
            (`IMAGES_BY_DIAGNOSIS`, `LESIONS_BY_DIAGNOSIS`), 57 rows lack age and sex and 234 the localization, as
            published; otherwise 2 and 3.
        seed: Seed of the order of the rows.
    """
    pairs = [(dx, f"HAM_{dx}_SECRET_{n % lesions}") for dx, (images, lesions) in counts.items() for n in range(images)]
    whole = len(pairs) == sum(IMAGES_BY_DIAGNOSIS.values())
    collections = [name for name, count in IMAGES_BY_COLLECTION.items() for _ in range(count if whole else 6)]
    rows = []
    for place, pair in enumerate(np.random.default_rng(seed).permutation(len(pairs)).tolist()):
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


def write_release(
    folder: Path, counts: Mapping[str, tuple[int, int]] = SMALL_COUNTS, masks: bool = False, seed: int = 0
) -> Path:
    """Write a release with the layout of Kaggle and the columns of Dataverse.

    Args:
        folder: Target folder; created if needed.
        counts: Maps each diagnosis to its numbers of images and of lesions; see `make_rows`.
        masks: Whether to write lesion masks and draw skin around the lesions.
        seed: Seed of the order of the rows.

    Returns:
        The folder ``HAM10000``.
    """
    release, rows = folder / "HAM10000", make_rows(counts, seed)
    write_images(release, rows, masks)
    write_table(release / "HAM10000_metadata.csv", rows)
    return release


def write_table(path: Path, rows: Sequence[Mapping[str, str]], separator: str = ",", **options: Any) -> None:
    """Write rows as a table with the keys of the first row as header; `options` are passed to `csv.DictWriter`."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter=separator, **options)
        writer.writeheader()
        writer.writerows(rows)


def lesion_colour(place: int) -> tuple[int, int, int]:
    """Return the RGB colour of the lesion in the image of the row with index `place`."""
    return 200, place * 10 % 256, 100


def write_images(folder: Path, rows: Sequence[Mapping[str, str]], masks: bool = False) -> None:
    """Write an image of one colour, 16 x 24 pixels, for each row.

    The first half of the images goes into ``HAM10000_images_part_1``, the others into ``HAM10000_images_part_2``. With
    `masks`, black skin surrounds the lesions, and lesion masks are written into a subfolder. The lesion of row n starts
    at pixel row 4 and column 2 + n % 8, and is 4 rows high and 8 columns wide.
    """
    for place, row in enumerate(rows):
        part = folder / f"HAM10000_images_part_{1 + (place >= len(rows) / 2)}"
        part.mkdir(exist_ok=True, parents=True)
        pixels = np.full((16, 24, 3), lesion_colour(place), np.uint8)
        if masks:
            lesion = np.zeros((16, 24), np.uint8)
            lesion[4:8, 2 + place % 8 : 10 + place % 8] = 255
            pixels[lesion == 0] = 0
            around = folder / "HAM10000_segmentations_lesion_tschandl"
            around.mkdir(exist_ok=True)
            Image.fromarray(lesion).save(around / f"{row['image_id']}_segmentation.png")
        Image.fromarray(pixels).save(part / f"{row['image_id']}.jpg", quality=95, subsampling=0)
