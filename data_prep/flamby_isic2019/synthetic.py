"""Write a synthetic Fed-ISIC2019 release: FLamby's folders, tables and columns, and small images."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from medfl.utils.seeds import seed_of
from medfl_datasets.flamby_isic2019.spec import CLASSES, IMAGE_FOLDER, METADATA_TABLE, OFFICIAL_COUNTS, SPLIT_TABLE

IMAGES_OF_CENTRE = 4
"""Default number of images of each centre; every fourth image of a centre is in the test split."""


def write_release(folder: Path, count: int = IMAGES_OF_CENTRE, seed: int = 0) -> Path:
    """Write the image folder and both tables; in each centre, the first two images show the same lesion.

    The shorter edge of an image has 14 pixels or more.

    Args:
        folder: Target folder; created if needed.
        count: Number of images of each of the six centres, >= 4.
        seed: Seed of the pixels and of the order of the rows.

    Returns:
        `folder`.
    """
    (folder / IMAGE_FOLDER).mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed_of(seed, "flamby_isic2019 phantom"))
    splits, metadata = [], []
    for place in rng.permutation(count * len(OFFICIAL_COUNTS)).tolist():
        centre, own = divmod(place, count)
        name = f"ISIC_SECRET{place:03d}" + ("_downsampled" if place % 7 == 0 else "")
        label, word = place % len(CLASSES), "test" if own % 4 == 3 else "train"
        kinds = {kind: float(kind == CLASSES[label]) for kind in CLASSES} | {"UNK": 0.0}
        splits.append(
            {"image": name, **kinds, "target": label, "center": centre, "fold": word, "fold2": f"{word}_{centre}"}
        )
        metadata.append(
            {
                "image": name,
                "age_approx": "" if own == 0 else f"{30 + 5 * own}.0",
                "anatom_site_general": "" if own == 1 else "anterior torso",
                "lesion_id": f"SECRET_{centre}_{own // 2 if own < 2 else own}",
                "sex": ("female", "male")[place % 2],
            }
        )
        pixels = rng.integers(0, 256, (14 + place % 3, 14 + place % 5, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(folder / IMAGE_FOLDER / f"{name}.jpg", quality=95, subsampling=0)
    _write_table(folder / SPLIT_TABLE, splits)
    _write_table(folder / METADATA_TABLE, metadata)
    return folder


def _write_table(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Write rows as a CSV table with a header."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
