"""Test PGM files: headers with comments, 8 and 16 bits, and refused files."""

from __future__ import annotations

import numpy as np
import pytest
from monai.data import PILReader
from monai.transforms import LoadImage
from refusals import refused

from medfl.errors import DataError
from medfl_datasets.mias.pgm import read_pgm
from medfl_datasets.mias.synthetic import FILE_HEADER, write_film

GREY = np.arange(6, dtype=np.uint8).reshape(2, 3) * 51


def written(tmp_path, content):
    path = tmp_path / "secret-sally.pgm"
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    "head",
    [
        FILE_HEADER % (3, 2),
        b"P5 3 2 255\n",
        b"P5\n3 2 # width and height\n# Creator: XV\n255\n",
        b"P5\n#\n#\n3\n2\n255 ",
    ],
    ids=str,
)
def test_comments_may_stand_anywhere_in_the_head(tmp_path, head):
    pixels = read_pgm(written(tmp_path, head + GREY.tobytes()))
    np.testing.assert_array_equal(pixels, GREY)
    assert pixels.dtype == np.uint8


def test_16_bits_are_big_endian(tmp_path):
    pixels = np.array([[0, 1, 258], [4660, 40000, 65535]], np.uint16)
    image = read_pgm(written(tmp_path, b"P5\n3 2\n65535\n" + pixels.astype(">u2").tobytes()))
    np.testing.assert_array_equal(image, pixels)
    assert image.dtype == np.uint16


@pytest.mark.parametrize(("top", "kind", "white"), [(100, "u1", 255), (4095, ">u2", 65535)])
def test_the_files_largest_value_becomes_white(tmp_path, top, kind, white):
    stored = np.array([[0, top // 2, top]])
    pixels = read_pgm(written(tmp_path, b"P5 3 1 %d\n" % top + stored.astype(kind).tobytes()))
    assert np.abs(pixels.astype(float) - stored * (white / top)).max() <= 1


def test_plain_files(tmp_path):
    pixels = read_pgm(written(tmp_path, b"P2\n# plain\n3 2\n255\n0 51 102\n153 204 255\n"))
    np.testing.assert_array_equal(pixels, GREY)


@pytest.mark.parametrize(
    ("content", "code", "fields"),
    [
        (FILE_HEADER % (3, 2) + GREY.tobytes()[:4], "damaged_file", {}),
        (FILE_HEADER % (300, 200) + bytes(300 * 199), "damaged_file", {}),
        (b"P5\n3 2\n", "damaged_file", {}),
        (b"P5\n3 2\n0\n" + bytes(6), "damaged_file", {}),
        (b"P5\n0 2\n255\n", "damaged_file", {}),
        (b"P5\n3 x\n255\n" + bytes(6), "damaged_file", {}),
        (b"P5\n99999 99999\n255\n", "invalid_image_size", {"maximum": 178_956_970}),
        (b"P6\n1 2\n255\n" + bytes(6), "unsupported_pixel_format", {"found": "RGB"}),
        (b"", "wrong_file_ending", {"ending": ".pgm"}),
        (b"\x89PNG\r\n\x1a\n" + bytes(60), "wrong_file_ending", {"ending": ".pgm"}),
    ],
    ids=str,
)
def test_what_is_refused_and_that_the_file_is_not_named(tmp_path, content, code, fields):
    with refused(DataError, code, **fields) as error:
        read_pgm(written(tmp_path, content))
    assert "secret" not in f"{error.value}{error.value.fields}"


def test_a_file_that_is_not_there(tmp_path):
    with refused(DataError, "unreadable_file", reason="No such file or directory"):
        read_pgm(tmp_path / "absent.pgm")


def test_monais_reader_gives_the_same_turned(tmp_path):
    path = write_film(tmp_path, 7, edge=16)
    image = LoadImage(reader=PILReader(formats=("PPM",)), image_only=True)(path)
    np.testing.assert_array_equal(np.asarray(image).T, read_pgm(path))
