"""DICOM files that can't be used, each with its reason; no message names a file or a patient."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from dicom_maker import cut, insert, make_dicom, nested, without_preamble
from pydicom.data import get_testdata_file
from pydicom.uid import JPEGLSLossless, RLELossless

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
    "nothing": (lambda folder: folder / "Secret-Sally.dcm", "can't be opened: No such file"),
    "empty": (lambda folder: written(folder, b""), "no DICOM file, or is cut short in its header"),
    "a text": (lambda folder: written(folder, b"Secret^Sally was here. " * 40), "no DICOM file"),
    "a PNG": (lambda folder: written(folder, b"\x89PNG\r\n\x1a\n" + bytes(400)), "no DICOM file"),
    "a header cut in its meta part": (lambda folder: cut(made(folder), 0.04), "no pixels .*cut short|no DICOM file"),
    "a header cut in its middle": (lambda folder: cut(made(folder), 0.08), "holds no pixels .*cut short|lacks"),
    "cut pixels": (lambda folder: cut(made(folder), 0.6), r"cut short: it holds \d+ of 3840 bytes of pixels"),
    "cut compressed pixels": (lambda folder: cut(made(folder, syntax=JPEGLSLossless), 0.6), "no pixels .*cut short"),
    "cut run lengths": (lambda folder: cut(made(folder, syntax=RLELossless), 0.6), "no pixels .*cut short"),
    "too few pixels": (lambda folder: made(folder, Rows=49), "it holds 3840 of 3920 bytes of pixels"),
    "400 sequences in each other": (
        lambda folder: insert(made(folder), nested(400, undefined=True)),
        "nests sequences too deep to be read safely",
    ),
    "compressed pixels and no transfer syntax": (
        lambda folder: without_preamble(made(folder, syntax=JPEGLSLossless), meta=False),
        "states no transfer syntax, and its pixels are compressed or cut short",
    ),
    "JPEG of 12 bits": (lambda folder: real("JPGExtended.dcm"), "JPEG Extended of 12 bits.*no freely licensed decoder"),
    "no pixel data": (lambda folder: made(folder, without=("PixelData",)), "holds no pixels"),
    "no size": (lambda folder: made(folder, without=("Rows",)), "holds no pixels"),
    "no columns": (lambda folder: made(folder, without=("Columns",)), "lacks Columns"),
    "no meaning": (lambda folder: made(folder, without=("PhotometricInterpretation",)), "lacks PhotometricInterp"),
    "a report": (lambda folder: real("reportsi.dcm"), "holds no pixels"),
    "a plan": (lambda folder: real("rtplan.dcm"), "expected an image of modality MG.*got another"),
    "slope 0": (
        lambda folder: made(folder, RescaleSlope="0", RescaleIntercept="3"),
        r"slope that is finite and not 0, got 0 \(intercept 3\)",
    ),
    "absurd size": (lambda folder: made(folder, Rows=65535, Columns=65535), "header states 65535 x 65535"),
    "absurd size, compressed": (
        lambda folder: patched_size(made(folder, syntax=RLELossless), 60000),
        "header states 60000 x 60000",
    ),
    "no rows": (lambda folder: made(folder, Rows=0), "header states 0 x 40"),
    "too many bits": (lambda folder: made(folder, BitsStored=17), "states 17 bits stored in 16"),
    "CT": (lambda folder: made(folder, Modality="CT"), "modality MG, RG, CR, DX, OT, SC or none stated, got CT"),
    "MR": (lambda folder: real("MR_small.dcm"), "or none stated, got MR. Leave it out"),
    "a secret as modality": (lambda folder: made(folder, Modality="SALLY SECRET"), "none stated, got another"),
    "frames": (lambda folder: made(folder, NumberOfFrames=2), "holds 2 frames"),
    "a palette": (lambda folder: made(folder, meaning="PALETTE COLOR"), "got PALETTE COLOR with 1 samples of 16"),
    "a secret as meaning": (lambda folder: made(folder, meaning="Secret Sally"), "got another kind with 1 samples"),
    "one bit": (lambda folder: made(folder, BitsAllocated=1, BitsStored=1), "with 1 samples of 1 bits"),
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
    make, message = BAD[case]
    path = make(tmp_path)
    caplog.clear()
    modalities = MAMMOGRAPHY if "modality" in message or "none stated" in message else None
    with quiet_decoders(), pytest.raises(DataError, match=message) as error:
        read_dicom(path, modalities=modalities)
    assert not any(word in str(error.value).lower() for word in ("sally", "secret", str(tmp_path)))
    assert error.value.__suppress_context__ or error.value.__context__ is None
    assert "sally" not in caplog.text.lower()


def test_an_absurd_size_is_refused_before_memory_is_taken(tmp_path, monkeypatch):
    import pydicom.pixels

    def decode(*_):
        raise AssertionError("nothing may be decoded")

    monkeypatch.setattr(pydicom.pixels, "get_decoder", decode)
    with pytest.raises(DataError, match="header states 65535 x 65535"):
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
    with pytest.raises(
        DataError, match=r"\(JPEG-LS Lossless.*\) needs another package: pip install 'medfl-monai\[dicom\]'"
    ):
        read_dicom(path)
