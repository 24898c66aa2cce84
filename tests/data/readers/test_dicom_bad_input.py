"""Test unusable DICOM files: each is refused with its reason, and no message names a file or a patient."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from dicom_maker import cut, insert, make_dicom, nested, without_preamble
from pydicom.data import get_testdata_file
from pydicom.uid import JPEGLSLossless, RLELossless
from refusals import refused

from medfl.data.readers.dicom import read_dicom
from medfl.data.readers.dicom_header import MAMMOGRAPHY, open_dicom
from medfl.data.readers.quiet import quiet_decoders
from medfl.errors import DataError

PIXELS = np.random.default_rng(0).integers(0, 4096, (48, 40), dtype=np.uint16)


def made(folder: Path, **tags) -> Path:
    return make_dicom(folder / "Secret-Sally.dcm", PIXELS, **tags)


def written(folder: Path, content: bytes) -> Path:
    path = folder / "Secret-Sally.dcm"
    path.write_bytes(content)
    return path


def real(name: str) -> Path:
    return Path(get_testdata_file(name, download=False))


BAD = {
    "nothing": (lambda folder: folder / "Secret-Sally.dcm", "unreadable_file", {"reason": "No such file or directory"}),
    "empty": (lambda folder: written(folder, b""), "unsupported_file", {"expected": "DICOM"}),
    "a text": (
        lambda folder: written(folder, b"Secret^Sally was here. " * 40),
        "unsupported_file",
        {"expected": "DICOM"},
    ),
    "a PNG": (
        lambda folder: written(folder, b"\x89PNG\r\n\x1a\n" + bytes(400)),
        "unsupported_file",
        {"expected": "DICOM"},
    ),
    "a header cut in its meta part": (lambda folder: cut(made(folder), 0.04), "missing_pixels", {}),
    "a header cut in its middle": (lambda folder: cut(made(folder), 0.08), "missing_pixels", {}),
    "cut pixels": (lambda folder: cut(made(folder), 0.6), "damaged_file", {"expected": 3840}),
    "cut compressed pixels": (lambda folder: cut(made(folder, syntax=JPEGLSLossless), 0.6), "missing_pixels", {}),
    "cut run lengths": (lambda folder: cut(made(folder, syntax=RLELossless), 0.6), "missing_pixels", {}),
    "too few pixels": (lambda folder: made(folder, Rows=49), "damaged_file", {"expected": 3920, "found": 3840}),
    "400 sequences in each other": (
        lambda folder: insert(made(folder), nested(400, undefined=True)),
        "nested_too_deep",
        {},
    ),
    "compressed pixels and no transfer syntax": (
        lambda folder: without_preamble(made(folder, syntax=JPEGLSLossless), meta=False),
        "missing_transfer_syntax",
        {"expected": 3840},
    ),
    "JPEG of 12 bits": (
        lambda folder: real("JPGExtended.dcm"),
        "unsupported_compression",
        {"name": "JPEG Extended", "bits": 12},
    ),
    "no pixel data": (lambda folder: made(folder, without=("PixelData",)), "missing_pixels", {}),
    "no size": (lambda folder: made(folder, without=("Rows",)), "missing_pixels", {}),
    "no columns": (lambda folder: made(folder, without=("Columns",)), "missing_element", {"name": "Columns"}),
    "no meaning": (
        lambda folder: made(folder, without=("PhotometricInterpretation",)),
        "missing_element",
        {"name": "PhotometricInterpretation"},
    ),
    "a report": (lambda folder: real("reportsi.dcm"), "missing_pixels", {}),
    "a plan": (lambda folder: real("rtplan.dcm"), "wrong_modality", {"found": "another"}),
    "slope 0": (
        lambda folder: made(folder, RescaleSlope="0", RescaleIntercept="3"),
        "invalid_rescaling",
        {"slope": 0, "intercept": 3},
    ),
    "absurd size": (
        lambda folder: made(folder, Rows=65535, Columns=65535),
        "invalid_image_size",
        {"found": [65535, 65535]},
    ),
    "absurd size, compressed": (
        lambda folder: patched_size(made(folder, syntax=RLELossless), 60000),
        "invalid_image_size",
        {"found": [60000, 60000]},
    ),
    "no rows": (lambda folder: made(folder, Rows=0), "invalid_image_size", {"found": [0, 40]}),
    "pixels in the upper bits": (
        lambda folder: made(folder, BitsStored=12, HighBit=15),
        "invalid_bit_depth",
        {"found": 12, "high_bit": 15},
    ),
    "too many bits": (lambda folder: made(folder, BitsStored=17), "invalid_bit_depth", {"found": 17, "maximum": 16}),
    "CT": (
        lambda folder: made(folder, Modality="CT"),
        "wrong_modality",
        {"expected": ["MG", "RG", "CR", "DX", "OT", "SC"], "found": "CT"},
    ),
    "MR": (lambda folder: real("MR_small.dcm"), "wrong_modality", {"found": "MR"}),
    "a secret as modality": (
        lambda folder: made(folder, Modality="SALLY SECRET"),
        "wrong_modality",
        {"found": "another"},
    ),
    "frames": (lambda folder: made(folder, NumberOfFrames=2), "several_frames", {"found": 2}),
    "a palette": (
        lambda folder: made(folder, meaning="PALETTE COLOR"),
        "unsupported_pixel_format",
        {"found": "PALETTE COLOR", "samples": 1, "bits": 16},
    ),
    "a secret as meaning": (
        lambda folder: made(folder, meaning="Secret Sally"),
        "unsupported_pixel_format",
        {"found": "another kind", "samples": 1},
    ),
    "one bit": (
        lambda folder: made(folder, BitsAllocated=1, BitsStored=1),
        "unsupported_pixel_format",
        {"samples": 1, "bits": 1},
    ),
}


def patched_size(path: Path, edge: int) -> Path:
    """Write another number of rows and columns into a compressed file."""
    content = path.read_bytes()
    for element, length in ((0x10, 48), (0x11, 40)):
        tag = struct.pack("<HH2sH", 0x28, element, b"US", 2)
        assert tag + struct.pack("<H", length) in content
        content = content.replace(tag + struct.pack("<H", length), tag + struct.pack("<H", edge))
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("case", BAD)
def test_what_can_not_be_read(tmp_path, caplog, case):
    make, code, fields = BAD[case]
    path = make(tmp_path)
    caplog.clear()
    modalities = MAMMOGRAPHY if code == "wrong_modality" else None
    with quiet_decoders(), refused(DataError, code, **fields) as error:
        read_dicom(path, modalities=modalities)
    disclosed = f"{error.value}{error.value.fields}".lower()
    assert not any(word in disclosed for word in ("sally", "secret", str(tmp_path)))
    assert error.value.__suppress_context__ or error.value.__context__ is None
    assert "sally" not in caplog.text.lower()


def test_an_absurd_size_is_refused_before_memory_is_taken(tmp_path, monkeypatch):
    import pydicom.pixels

    def decode(*_):
        raise AssertionError("nothing may be decoded")

    monkeypatch.setattr(pydicom.pixels, "get_decoder", decode)
    with refused(DataError, "invalid_image_size", found=[65535, 65535]):
        open_dicom(made(tmp_path, Rows=65535, Columns=65535), pixels=False)


def test_sequences_with_lengths_may_be_nested_since_nothing_reads_them(tmp_path):
    path = insert(made(tmp_path), nested(400, undefined=False))
    np.testing.assert_array_equal(read_dicom(path).pixels, PIXELS)
    assert "PatientName" in read_dicom(path).identifying


def test_without_its_decoder_a_compression_is_named(tmp_path, monkeypatch):
    from pydicom.pixels.decoders import JPEGLSLosslessDecoder

    path = made(tmp_path, syntax=JPEGLSLossless)
    np.testing.assert_array_equal(read_dicom(path).pixels, PIXELS)
    monkeypatch.setattr(JPEGLSLosslessDecoder, "_available", {})
    with refused(DataError, "missing_package", extra="dicom") as error:
        read_dicom(path)
    assert error.value.fields["compression"].startswith("JPEG-LS Lossless")
    assert "pip install 'medfl-monai[dicom]'" in str(error.value)
