"""Made-up releases of Derm7pt: layout, columns and counts of the real one, other images. Names are secrets."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from image_makers import picture

HEADER = (
    "case_num,diagnosis,seven_point_score,pigment_network,streaks,pigmentation,regression_structures,dots_and_globules,"
    "blue_whitish_veil,vascular_structures,level_of_diagnostic_difficulty,elevation,location,sex,management,clinic,derm,"
    "case_id,notes"
)
DIAGNOSES = {
    "BCC": {"basal cell carcinoma": 42},
    "NEV": {
        "clark nevus": 399,
        "reed or spitz nevus": 79,
        "dermal nevus": 33,
        "blue nevus": 28,
        "congenital nevus": 17,
        "combined nevus": 13,
        "recurrent nevus": 6,
    },
    "MEL": {
        "melanoma": 1,
        "melanoma (in situ)": 64,
        "melanoma (less than 0.76 mm)": 102,
        "melanoma (0.76 to 1.5 mm)": 53,
        "melanoma (more than 1.5 mm)": 28,
        "melanoma metastasis": 4,
    },
    "MISC": {"vascular lesion": 29, "lentigo": 24, "dermatofibroma": 20, "melanosis": 16, "miscellaneous": 8},
    "SK": {"seborrheic keratosis": 45},
}
"""Published number of cases of each diagnosis."""

PUBLISHED = {
    "train": {"NEV": 256, "MEL": 90, "MISC": 32, "BCC": 19, "SK": 16},
    "valid": {"NEV": 100, "MEL": 61, "MISC": 25, "BCC": 7, "SK": 10},
    "test": {"NEV": 219, "MEL": 101, "MISC": 40, "BCC": 16, "SK": 19},
}
"""Published number of cases of each group in each index file."""

SMALL = {
    "train": dict.fromkeys(DIAGNOSES, 2) | {"NEV": 4},
    "valid": dict.fromkeys(DIAGNOSES, 1),
    "test": dict.fromkeys(DIAGNOSES, 1),
}
"""22 cases: 12, 5 and 5."""

FEMALE = 522
"""Published number of women, of 1011."""


def make_release(
    folder: Path, counts: Mapping[str, Mapping[str, int]] = SMALL, doubled: int = 9, images: bool = True
) -> Path:
    """Write ``release_v0`` into a folder.

    Args:
        folder: Where to write.
        counts: Index file to group to cases.
        doubled: Cases whose clinical image is the dermoscopic one.
        images: Whether to write images, each of one colour: red tells the view, green and blue the row.
    """
    release = folder / "release_v0"
    (release / "meta").mkdir(parents=True)
    cases = [
        (split, group) for split, groups in counts.items() for group, count in groups.items() for _ in range(count)
    ]
    order = np.random.default_rng(7).permutation(len(cases))
    pools = {
        group: iter([name for name, count in names.items() for _ in range(count)]) for group, names in DIAGNOSES.items()
    }
    rows, indexes = [], {split: [] for split in counts}
    for row, place in enumerate(order):
        split, group = cases[place]
        indexes[split].append(row)
        rows.append(_case(row, next(pools[group]), row < doubled))
    write_meta(release, rows)
    for split, found in indexes.items():
        write_indexes(release, split, found)
    if images:
        for row, case in enumerate(rows):
            _write_images(release / "images", row, case)
    return release


def read_meta(release: Path) -> list[dict[str, str]]:
    with (release / "meta" / "meta.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def write_meta(release: Path, rows: list[dict[str, str]]) -> None:
    with (release / "meta" / "meta.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def read_indexes(release: Path, split: str) -> list[int]:
    return [int(line) for line in (release / "meta" / f"{split}_indexes.csv").read_text().split()[1:]]


def write_indexes(release: Path, split: str, indexes: list[int]) -> None:
    (release / "meta" / f"{split}_indexes.csv").write_text("\n".join(["indexes", *map(str, indexes)]) + "\n")


def _case(row: int, diagnosis: str, doubled: bool) -> dict[str, str]:
    derm = f"FAL/Secret{row:04d}.jpg" if row % 3 else f"NML/SECRET{row:04d}.JPG"
    clinic = derm if doubled else f"A1l/Secret{row:04d}c.{('jpg', 'JPG')[row % 2]}"
    return dict.fromkeys(HEADER.split(","), "absent") | {
        "case_num": str(row + 1),
        "diagnosis": diagnosis,
        "location": ("back", "head neck", "upper limbs")[row % 3],
        "sex": "female" if row * FEMALE % 1011 < FEMALE else "male",
        "clinic": clinic,
        "derm": derm,
        "case_id": "SECRET-77" if row == 1 else "",
        "notes": 'secret "note", with a comma\nand a second line' if row == 2 else "",
    }


def _write_images(folder: Path, row: int, case: Mapping[str, str]) -> None:
    for red, view in ((200, "derm"), (40, "clinic")):
        path = folder / case[view]
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            picture(path, np.full((16, 24, 3), (red, row * 10 % 256, 100), np.uint8), format="JPEG", quality=95)
