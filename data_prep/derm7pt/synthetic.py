"""Write a synthetic Derm7pt release: its layout, columns and diagnoses, with images of one colour each."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from medfl.utils.seeds import seed_of
from medfl_datasets.derm7pt.splits import INDEX_FILES
from medfl_datasets.derm7pt.tables import DIAGNOSIS_GROUPS, DOUBLED_CASES, HEADER

CASE_COUNTS = {
    "training": dict.fromkeys(DIAGNOSIS_GROUPS, 2) | {"NEV": 4},
    "validation": dict.fromkeys(DIAGNOSIS_GROUPS, 1),
    "test": dict.fromkeys(DIAGNOSIS_GROUPS, 1),
}
"""Maps each split to a mapping from group to number of cases: 12, 5 and 5 cases in all."""

OFFICIAL_DIAGNOSES = {
    "clark nevus": 399,
    "reed or spitz nevus": 79,
    "dermal nevus": 33,
    "blue nevus": 28,
    "congenital nevus": 17,
    "combined nevus": 13,
    "recurrent nevus": 6,
    "melanoma": 1,
    "melanoma (in situ)": 64,
    "melanoma (less than 0.76 mm)": 102,
    "melanoma (0.76 to 1.5 mm)": 53,
    "melanoma (more than 1.5 mm)": 28,
    "melanoma metastasis": 4,
    "vascular lesion": 29,
    "lentigo": 24,
    "dermatofibroma": 20,
    "melanosis": 16,
    "miscellaneous": 8,
    "basal cell carcinoma": 42,
    "seborrheic keratosis": 45,
}
"""Maps each diagnosis to its number of cases in the real release. Synthetic cases of a group get the diagnoses of the
group in this order."""

OFFICIAL_WOMEN, OFFICIAL_CASES = 522, 1011
"""Numbers of cases in the real release: `OFFICIAL_WOMEN` of women, `OFFICIAL_CASES` of all patients."""


def write_release(
    folder: Path,
    cases: Mapping[str, Mapping[str, int]] = CASE_COUNTS,
    doubled: int = DOUBLED_CASES,
    images: bool = True,
    seed: int = 0,
) -> Path:
    """Write the folder ``release_v0``; file names, identifiers and notes contain the word secret.

    Args:
        folder: Target folder; created if needed.
        cases: Maps each split to a mapping from group to number of cases, at most the number in the real release.
        doubled: Number of cases whose clinical image is the dermoscopic one; these are the first rows.
        images: Whether to write images. Each has one colour: red encodes the view, green the row.
        seed: Seed of the order of the cases.

    Returns:
        The folder ``release_v0``.
    """
    release = folder / "release_v0"
    (release / "meta").mkdir(parents=True)
    dealt = [(split, group) for split, counts in cases.items() for group, count in counts.items() for _ in range(count)]
    diagnoses = {
        group: iter([name for name, count in OFFICIAL_DIAGNOSES.items() if name in names for _ in range(count)])
        for group, names in DIAGNOSIS_GROUPS.items()
    }
    rows: list[dict[str, str]] = []
    indexes: dict[str, list[int]] = {split: [] for split in cases}
    for row, place in enumerate(np.random.default_rng(seed_of(seed, "derm7pt phantom")).permutation(len(dealt))):
        split, group = dealt[place]
        indexes[split].append(row)
        rows.append(_case(row, next(diagnoses[group]), row < doubled))
        if images:
            _write_images(release / "images", row, rows[-1])
    write_meta(release, rows)
    for split, numbers in indexes.items():
        write_indexes(release, split, numbers)
    return release


def write_meta(release: Path, rows: Sequence[Mapping[str, str]]) -> None:
    """Write the rows as ``meta.csv``, with the keys of the first row as columns."""
    with (release / "meta" / "meta.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def write_indexes(release: Path, split: str, indexes: Sequence[int]) -> None:
    """Write the index file of a split, which lists the row indices of its cases in ``meta.csv``."""
    (release / "meta" / INDEX_FILES[split]).write_text("\n".join(["indexes", *map(str, indexes)]) + "\n")


def _case(row: int, diagnosis: str, doubled: bool) -> dict[str, str]:
    """Make the table row of a case."""
    derm = f"FAL/Secret{row:04d}.jpg" if row % 3 else f"NML/SECRET{row:04d}.JPG"
    clinic = derm if doubled else f"A1l/Secret{row:04d}c.{('jpg', 'JPG')[row % 2]}"
    return dict.fromkeys(HEADER.split(","), "absent") | {
        "case_num": str(row + 1),
        "diagnosis": diagnosis,
        "location": ("back", "head neck", "upper limbs")[row % 3],
        "sex": "female" if row * OFFICIAL_WOMEN % OFFICIAL_CASES < OFFICIAL_WOMEN else "male",
        "clinic": clinic,
        "derm": derm,
        "case_id": "SECRET-77" if row == 1 else "",
        "notes": 'secret "note", with a comma\nand a second line' if row == 2 else "",
    }


def _write_images(folder: Path, row: int, case: Mapping[str, str]) -> None:
    """Write the dermoscopic and the clinical image of a case, unless the file exists."""
    for red, view in ((200, "derm"), (40, "clinic")):
        path = folder / case[view]
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            pixels = np.full((16, 24, 3), (red, row * 10 % 256, 100), np.uint8)
            Image.fromarray(pixels).save(path, format="JPEG", quality=95)
