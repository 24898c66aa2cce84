"""A made-up CelebA: its layout and tables, other images. Nobody was ever photographed for it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image

from medfl_datasets.celeba.files import ALIGNED, ATTRIBUTES, IDENTITY, PARTITION, SIZE

NAMES = ("5_o_Clock_Shadow", "Male", "Smiling", "Young")
"""Attributes."""

PERSONS = (2880, 2880, 17, 2880, 17, 5, 10177, 17)
"""Of each image."""

SPLITS = (0, 0, 1, 0, 1, 2, 2, 1)
"""Of each image, as the table has it: training, validation, test."""


def write_release(folder: Path, form: Literal["authors", "kaggle"] = "authors", seed: int = 0) -> Path:
    """Write eight images and their tables.

    Args:
        folder: Where to write; made if it is not there.
        form: ``authors``: three folders, tables with blanks. ``kaggle``: tables with commas, images one folder deeper,
            and nothing of persons.
        seed: Decides the colours of the images.

    Returns:
        The folder that holds the release: ``CelebA``, or ``archive`` as Kaggle calls it.
    """
    return _write_kaggle(folder / "archive", seed) if form == "kaggle" else _write_authors(folder / "CelebA", seed)


def value(image: int, attribute: str) -> int:
    """1 if an image has an attribute, -1 if not."""
    place = NAMES.index(attribute)
    return 1 if (image * (place + 1) + place) % 5 < 2 else -1


def file_name(image: int) -> str:
    """The name of an image's file."""
    return f"{100 + image:06d}.jpg"


def colour_of(image: int, seed: int = 0) -> tuple[int, int, int]:
    """Of an image, RGB."""
    return 200, image * 25, 100 + seed % 100


def write_images(folder: Path, seed: int = 0) -> None:
    """Write all images: of one colour each, black outside of the square in the middle."""
    folder.mkdir(parents=True)
    height, width = SIZE
    for image in range(len(PERSONS)):
        pixels = np.zeros((height, width, 3), np.uint8)
        pixels[(height - width) // 2 : (height + width) // 2] = colour_of(image, seed)
        Image.fromarray(pixels).save(folder / file_name(image), quality=95, subsampling=0)


def _write_authors(release: Path, seed: int) -> Path:
    write_images(release / "Img" / ALIGNED, seed)
    (release / "Anno").mkdir()
    (release / "Eval").mkdir()
    rows = [
        f"{file_name(image)} {' '.join(f'{value(image, name):2d}' for name in NAMES)}" for image in range(len(PERSONS))
    ]
    lines = [str(len(rows)), " ".join(NAMES) + " ", *rows]
    (release / "Anno" / f"{ATTRIBUTES}.txt").write_text("\r\n".join(lines) + "\r\n")
    _write_pairs(release / "Anno" / f"{IDENTITY}.txt", PERSONS, " ")
    _write_pairs(release / "Eval" / f"{PARTITION}.txt", SPLITS, " ")
    return release


def _write_kaggle(release: Path, seed: int) -> Path:
    write_images(release / ALIGNED / ALIGNED, seed)
    rows = [",".join([file_name(image), *(str(value(image, name)) for name in NAMES)]) for image in range(len(PERSONS))]
    (release / f"{ATTRIBUTES}.csv").write_text("\n".join([",".join(["image_id", *NAMES]), *rows]) + "\n")
    _write_pairs(release / f"{PARTITION}.csv", SPLITS, ",", "image_id,partition\n")
    (release / "list_bbox_celeba.csv").write_text("image_id,x_1,y_1,width,height\n")
    return release


def _write_pairs(path: Path, values: tuple[int, ...], mark: str, head: str = "") -> None:
    path.write_text(head + "".join(f"{file_name(image)}{mark}{number}\n" for image, number in enumerate(values)))
