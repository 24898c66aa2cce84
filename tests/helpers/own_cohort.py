"""A hospital's own files and their table. Names and identifiers here are secrets."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
from image_makers import picture

from medfl.data.datalists import read_datalist
from medfl.ingest.labels import Columns
from medfl.ingest.own_images import prepare

HEAD = ("file", "diagnosis", "patient", "hospital", "part", "sex")
ROWS = [
    ("secret-sally-1.png", "benign", "SECRET-7", "north", "Train", "f"),
    ("sub/secret-tom.png", "malignant", "SECRET-3", "south", "val", "m"),
    ("secret-sally-2.png", "malignant", "SECRET-7", "north", "training", "f"),
    ("secret-uma.jpg", "benign", "SECRET-9", "south", "TEST", ""),
]
SOME = Columns("file", "diagnosis")
ALL = Columns("file", "diagnosis", "patient", "hospital", "part", ("sex",))


def make_own(folder: Path) -> tuple[Path, Path]:
    """Write four images and their table; gives the folder of images and the table."""
    images = folder / "images"
    (images / "sub").mkdir(parents=True)
    rng = np.random.default_rng(0)
    for row in ROWS:
        picture(images / row[0], rng.integers(0, 256, (20, 30), dtype=np.uint8))
    return images, write_table(folder / "labels.csv")


def write_table(path, rows=ROWS, head=HEAD):
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([head, *rows])
    return path


def prepared(own, out, columns=SOME, size=(10, 15), **options):
    datalist = prepare(*own, columns, size, out, **options)
    assert datalist == read_datalist(out)
    return np.load(out / "images.npy"), datalist
