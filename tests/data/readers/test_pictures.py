"""Test image files read by Pillow: only permitted formats, with matching extension, and of limited size."""

from __future__ import annotations

import gzip
import os
import shutil
import struct
import subprocess
import tracemalloc
import zlib
from pathlib import Path

import nibabel
import numpy as np
import pytest
from dicom_maker import make_dicom
from image_makers import picture
from PIL import EpsImagePlugin, Image
from pydicom.uid import DeflatedExplicitVRLittleEndian
from refusals import refused

import medfl
from medfl.data.readers.dicom import read_dicom
from medfl.data.readers.images import inspect_image, read_image
from medfl.data.readers.mammogram_image import read_mammogram
from medfl.data.readers.pillow_images import FORMATS, read_pillow_image
from medfl.data.readers.rgb import read_rgb
from medfl.errors import DataError
from medfl_datasets.mias.pgm import read_pgm

GREY = np.arange(96 * 80, dtype=np.uint16).reshape(96, 80).astype(np.uint8)
READERS = {
    "inspect_image": inspect_image,
    "read_image": lambda path: read_image(path, (4, 4), 1),
    "read_rgb": read_rgb,
    "read_mammogram": lambda path: read_mammogram(path, (4, 4), 1),
    "read_pgm": read_pgm,
}
PSD = b"8BPS" + struct.pack(">H6xHIIHH", 1, 1, 4, 4, 8, 1) + bytes(12) + bytes(2) + bytes(16)
OUTSIDE = ("eps", "gif", "webp", "tga", "ico", "pcx", "dds", "sgi", "jp2")
"""Formats that Pillow writes and reads, but medfl does not read."""


def disguised(folder: Path) -> dict[str, bytes]:
    """Write files with contents of many formats; Pillow would open all of them but PDF."""
    colours = Image.fromarray(np.stack([GREY] * 3, axis=-1))
    contents = {"psd": PSD, "text": b"no picture"}
    for ending in (*OUTSIDE, "pdf"):
        colours.save(folder / f"whole.{ending}")
        contents[ending] = (folder / f"whole.{ending}").read_bytes()
    with Image.open(folder / "whole.eps") as image:
        assert image.format == "EPS", "Pillow takes it for what it is"
    return contents


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Record every program start instead of performing it. Pillow believes that an interpreter is installed."""
    programs: list[object] = []
    for module, name in ((subprocess, "Popen"), (os, "system"), (os, "posix_spawn"), (EpsImagePlugin, "Ghostscript")):
        monkeypatch.setattr(module, name, lambda *words, **options: programs.append(words))
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", "gs")
    return programs


def test_other_formats_under_the_names_of_pictures_are_refused_and_start_nothing(tmp_path, started):
    contents = disguised(tmp_path)
    for ending in ("", *FORMATS):
        path = tmp_path / f"secret-sally{ending}"
        code, fields = ("wrong_file_ending", {"ending": ending}) if ending else ("unsupported_file", {})
        for content in contents.values():
            path.write_bytes(content)
            for name, read in READERS.items():
                with refused(DataError, code, **fields) as error:
                    read(path)
                assert "sally" not in f"{error.value}{error.value.fields}", name
    assert not started


def test_the_formats_that_are_read_are_refused_under_the_names_of_others(tmp_path):
    real = {ending: picture(tmp_path / f"real{ending}", GREY) for ending in FORMATS if ending != ".ppm"}
    for ending, path in real.items():
        np.testing.assert_array_equal(read_pillow_image(path).shape, GREY.shape)
        nameless = shutil.copy(path, tmp_path / "nameless")
        assert read_pillow_image(nameless).shape == GREY.shape, "without an ending the content decides"
        for other in real:
            same = FORMATS[other] == FORMATS[ending]
            renamed = shutil.copy(path, tmp_path / f"renamed{other.upper()}")
            if same:
                assert read_pillow_image(renamed).shape == GREY.shape
            else:
                with refused(DataError, "wrong_file_ending", ending=other):
                    read_pillow_image(renamed)
    named = make_dicom(tmp_path / "scan.png", GREY)
    with refused(DataError, "wrong_file_ending", ending=".png"):
        read_image(named, (4, 4), 1)


def test_pictures_are_opened_in_one_place():
    """Only this module names the permitted formats: code elsewhere would open every format that Pillow recognises."""
    top = Path(medfl.__file__).parent
    places = [path for folder in (top, top.parent / "plugins") for path in folder.rglob("*.py")]
    assert [path.name for path in places if "Image.open(" in path.read_text()] == ["pillow_images.py"]
    configs = [*top.rglob("bundles/*/configs/*"), *top.rglob("templates/**/*.json")]
    assert configs
    assert not [path for path in configs if path.is_file() and "PILReader" in path.read_text(errors="replace")]


def chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def test_pictures_that_claim_too_many_pixels(tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)  # as other libraries leave it behind
    head = struct.pack(">IIBBBBB", 20_000, 10_000, 8, 0, 0, 0, 0)
    bomb = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(100))) + chunk(b"IEND", b"")
    (tmp_path / "a.png").write_bytes(bomb)
    (tmp_path / "a.pgm").write_bytes(b"P5\n20000 10000\n255\n")
    for path in (tmp_path / "a.png", tmp_path / "a.pgm"):
        for read in (inspect_image, READERS["read_image"], READERS["read_mammogram"]):
            with refused(DataError, "invalid_image_size", maximum=178_956_970):
                read(path)


def test_volumes_and_deflated_files_that_would_fill_the_memory(tmp_path, monkeypatch):
    header = nibabel.Nifti1Header()
    header.set_data_shape((2000, 2000, 2000))
    header.set_data_dtype(np.float64)
    (tmp_path / "a.nii.gz").write_bytes(gzip.compress(header.binaryblock + bytes(4)))
    monkeypatch.setattr("medfl.data.readers.dicom_header.MAX_INFLATED_BYTES", 3 << 20)
    good = make_dicom(tmp_path / "good", GREY, syntax=DeflatedExplicitVRLittleEndian)
    np.testing.assert_array_equal(read_dicom(good).pixels, GREY)
    bomb = make_dicom(tmp_path / "bomb", np.zeros((8192, 8192), np.uint8), syntax=DeflatedExplicitVRLittleEndian)
    tracemalloc.start()
    try:
        for path, code, fields in (
            (tmp_path / "a.nii.gz", "invalid_image_size", {"found": [2000, 2000, 2000]}),
            (bomb, "excessive_inflation", {"maximum": 3 << 20}),
        ):
            for read in (inspect_image, lambda file: read_image(file, (4, 4, 4), 1)):
                with refused(DataError, code, **fields):
                    read(path)
        assert tracemalloc.get_traced_memory()[1] < 40 << 20, "of 64 MB and more"
    finally:
        tracemalloc.stop()
