"""Write a synthetic CelebA release: its layout and tables, and images of one colour each."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image

from medfl_datasets.celeba.files import ATTRIBUTES, IDENTITY, IMAGE_FOLDER_PREFIX, OFFICIAL_IMAGE_SIZE, PARTITION

ATTRIBUTE_NAMES = ("5_o_Clock_Shadow", "Male", "Smiling", "Young")
"""Names of the attributes in the synthetic table."""

PERSONS = (2880, 2880, 17, 2880, 17, 5, 10177, 17)
"""Number of the person in each of the eight images."""

SPLITS = (0, 0, 1, 0, 1, 2, 2, 1)
"""Split of each of the eight images, as the table states it: 0 training, 1 validation, 2 test."""


def write_release(folder: Path, form: Literal["authors", "kaggle"] = "authors", seed: int = 0) -> Path:
    """Write eight images and their tables.

    Args:
        folder: Target folder; created if needed.
        form: ``authors`` for three folders and tables separated by blanks; ``kaggle`` for comma-separated tables,
            images one folder deeper and no table of persons.
        seed: Seed of the images' colours.

    Returns:
        The folder of the release: ``CelebA``, or ``archive`` in Kaggle's form.
    """
    return _write_kaggle(folder / "archive", seed) if form == "kaggle" else _write_authors(folder / "CelebA", seed)


def attribute_value(image: int, attribute: str) -> int:
    """Return 1 if the image with index `image` has an attribute, -1 otherwise, as in the table."""
    place = ATTRIBUTE_NAMES.index(attribute)
    return 1 if (image * (place + 1) + place) % 5 < 2 else -1


def file_name(image: int) -> str:
    """Return the name of the file of the image with index `image`."""
    return f"{100 + image:06d}.jpg"


def colour_of(image: int, seed: int = 0) -> tuple[int, int, int]:
    """Return the RGB colour of the image with index `image`, so that a test can identify the image."""
    return 200, image * 25, 100 + seed % 100


def write_images(folder: Path, seed: int = 0) -> None:
    """Write the eight images into a new folder; each has one colour, and is black outside of the central square."""
    folder.mkdir(parents=True)
    height, width = OFFICIAL_IMAGE_SIZE
    for image in range(len(PERSONS)):
        pixels = np.zeros((height, width, 3), np.uint8)
        pixels[(height - width) // 2 : (height + width) // 2] = colour_of(image, seed)
        Image.fromarray(pixels).save(folder / file_name(image), quality=95, subsampling=0)


def _write_authors(release: Path, seed: int) -> Path:
    """Write the release in the authors' form and return its folder."""
    write_images(release / "Img" / IMAGE_FOLDER_PREFIX, seed)
    (release / "Anno").mkdir()
    (release / "Eval").mkdir()
    rows = [
        f"{file_name(image)} {' '.join(f'{attribute_value(image, name):2d}' for name in ATTRIBUTE_NAMES)}"
        for image in range(len(PERSONS))
    ]
    lines = [str(len(rows)), " ".join(ATTRIBUTE_NAMES) + " ", *rows]
    (release / "Anno" / f"{ATTRIBUTES}.txt").write_text("\r\n".join(lines) + "\r\n")
    _write_pairs(release / "Anno" / f"{IDENTITY}.txt", PERSONS, " ")
    _write_pairs(release / "Eval" / f"{PARTITION}.txt", SPLITS, " ")
    return release


def _write_kaggle(release: Path, seed: int) -> Path:
    """Write the release in Kaggle's form and return its folder."""
    write_images(release / IMAGE_FOLDER_PREFIX / IMAGE_FOLDER_PREFIX, seed)
    rows = [
        ",".join([file_name(image), *(str(attribute_value(image, name)) for name in ATTRIBUTE_NAMES)])
        for image in range(len(PERSONS))
    ]
    (release / f"{ATTRIBUTES}.csv").write_text("\n".join([",".join(["image_id", *ATTRIBUTE_NAMES]), *rows]) + "\n")
    _write_pairs(release / f"{PARTITION}.csv", SPLITS, ",", "image_id,partition\n")
    (release / "list_bbox_celeba.csv").write_text("image_id,x_1,y_1,width,height\n")
    return release


def _write_pairs(path: Path, values: tuple[int, ...], mark: str, head: str = "") -> None:
    """Write a table of two columns, the file name and a number, separated by `mark`."""
    path.write_text(head + "".join(f"{file_name(image)}{mark}{number}\n" for image, number in enumerate(values)))
