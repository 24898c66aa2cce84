"""Made-up releases of CelebA: its layout and tables, other images. Names of files are secrets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

NAMES = ("5_o_Clock_Shadow", "Male", "Smiling", "Young")
PERSONS = (2880, 2880, 17, 2880, 17, 5, 10177, 17)
"""Of each image."""

SPLITS = (0, 0, 1, 0, 1, 2, 2, 1)


def value(image: int, attribute: str) -> int:
    """1 or -1."""
    place = NAMES.index(attribute)
    return 1 if (image * (place + 1) + place) % 5 < 2 else -1


def file_name(image: int) -> str:
    return f"{100 + image:06d}.jpg"


def colour_of(image: int) -> tuple[int, int, int]:
    return 200, image * 25, 100


def write_images(folder: Path, size: tuple[int, int] = (218, 178)) -> None:
    """One colour each; what is outside of the square in the middle is black."""
    folder.mkdir(parents=True)
    height, width = size
    for image in range(len(PERSONS)):
        pixels = np.zeros((height, width, 3), np.uint8)
        pixels[(height - width) // 2 : (height + width) // 2] = colour_of(image)
        Image.fromarray(pixels).save(folder / file_name(image), quality=95, subsampling=0)


def make_release(folder: Path) -> Path:
    """As the authors have it: three folders, tables with blanks."""
    release = folder / "CelebA"
    write_images(release / "Img" / "img_align_celeba")
    (release / "Anno").mkdir()
    (release / "Eval").mkdir()
    rows = [
        f"{file_name(image)} {' '.join(f'{value(image, name):2d}' for name in NAMES)}" for image in range(len(PERSONS))
    ]
    lines = [str(len(rows)), " ".join(NAMES) + " ", *rows]
    (release / "Anno" / "list_attr_celeba.txt").write_text("\r\n".join(lines) + "\r\n")
    write_pairs(release / "Anno" / "identity_CelebA.txt", PERSONS, " ")
    write_pairs(release / "Eval" / "list_eval_partition.txt", SPLITS, " ")
    return release


def write_pairs(path: Path, values: tuple[int, ...], mark: str, head: str = "") -> None:
    path.write_text(head + "".join(f"{file_name(image)}{mark}{one}\n" for image, one in enumerate(values)))


def make_kaggle(folder: Path) -> Path:
    """As Kaggle has it: csv, images one folder deeper, no persons."""
    release = folder / "archive"
    write_images(release / "img_align_celeba" / "img_align_celeba")
    rows = [",".join([file_name(image), *(str(value(image, name)) for name in NAMES)]) for image in range(len(PERSONS))]
    (release / "list_attr_celeba.csv").write_text("\n".join([",".join(["image_id", *NAMES]), *rows]) + "\n")
    write_pairs(release / "list_eval_partition.csv", SPLITS, ",", "image_id,partition\n")
    (release / "list_bbox_celeba.csv").write_text("image_id,x_1,y_1,width,height\n")
    return release
