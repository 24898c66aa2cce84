"""Masks of 2-D images: values of 16 bits, colours and DICOM segmentations keep their meaning or are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from refusals import refused
from segmentation_maker import segmentation, source_image

from medfl.data.ingest.columns.mask_files import ImageAndMask, read_image_and_mask
from medfl.data.ingest.folder_format import choose_format
from medfl.data.readers.images import inspect_image
from medfl.errors import DataError

SQUARE = (slice(2, 5), slice(2, 5))
PIXELS = np.arange(64, dtype=np.uint8).reshape(8, 8)


def read(folder: Path, mask: Path, structures: int) -> np.ndarray:
    """Return the mask of an image as a data set gets it."""
    image = folder / "image.png"
    Image.fromarray(PIXELS).save(image)
    form = choose_format({2: inspect_image(image)}, (8, 8), None, None)
    return read_image_and_mask(ImageAndMask(image, mask), form, structures).pixels[..., -1]


def save(path: Path, values: np.ndarray) -> Path:
    Image.fromarray(values).save(path)
    return path


@pytest.mark.parametrize("name", ["mask.png", "mask.tif"])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_a_mask_with_the_second_structure_only_keeps_its_number(tmp_path: Path, name: str, dtype: type) -> None:
    mask = np.zeros((8, 8), dtype)
    mask[SQUARE] = 2
    np.testing.assert_array_equal(read(tmp_path, save(tmp_path / name, mask), 2), mask)


def test_a_mask_in_one_colour_is_one_structure(tmp_path: Path) -> None:
    mask = np.zeros((8, 8, 3), np.uint8)
    mask[SQUARE] = (200, 10, 0)
    expected = np.zeros((8, 8), np.uint8)
    expected[SQUARE] = 1
    np.testing.assert_array_equal(read(tmp_path, save(tmp_path / "mask.png", mask), 1), expected)


@pytest.mark.parametrize("structures", [1, 2])
def test_a_mask_in_several_colours_is_refused(tmp_path: Path, structures: int) -> None:
    mask = np.zeros((8, 8, 3), np.uint8)
    mask[SQUARE], mask[6, 6] = (2, 0, 0), (0, 2, 0)
    with refused(DataError, "ambiguous_mask", count=2):
        read(tmp_path, save(tmp_path / "mask.png", mask), structures)


def test_a_dicom_segmentation_of_an_image_is_one_structure(tmp_path: Path) -> None:
    pytest.importorskip("highdicom", reason="highdicom is not installed (pip install 'medfl-monai[highdicom]')")
    mask = np.zeros((1, 8, 8, 2), np.uint8)
    mask[0, 2:5, 2:5, 0], mask[0, 6, 6, 1] = 1, 1
    path = segmentation(tmp_path / "mask.dcm", mask, [source_image(tmp_path / "a.dcm", PIXELS)])
    np.testing.assert_array_equal(read(tmp_path, path, 1), mask[0].max(axis=-1))
    with refused(DataError, "unsupported_mask", what="mask"):
        read(tmp_path, path, 2)
