"""Hostile and odd DICOM files, each through ``medfl prep folder`` and inference.

Further classes of input are in other modules: files cut in their parts, absurd sizes, missing elements and 400 nested
sequences in `tests/data/readers/test_dicom_bad_input.py`; series that form no grid in `test_dicom_series.py`; deflated
bombs in `test_pictures.py`; masks on another grid in `test_volume_masks.py`; pictures, volumes and what is no file in
`test_hostile_files.py`; tables and names in `test_hostile_tables.py`.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from dicom_maker import insert, make_dicom, nested
from hostile_checks import Hostile, check_image
from PIL import Image
from pydicom import dcmread
from pydicom.data import get_testdata_file
from pydicom.encaps import encapsulate
from pydicom.uid import (
    MPEG4HP41,
    UID,
    DeflatedExplicitVRLittleEndian,
    EncapsulatedPDFStorage,
    ExplicitVRBigEndian,
    JPEG2000Lossless,
    JPEGBaseline8Bit,
    JPEGLSLossless,
    RLELossless,
    TwelveLeadECGWaveformStorage,
)
from series_maker import hounsfield, write_series

NAME = "Secret-Sally.dcm"
TWELVE = np.arange(16, dtype=np.uint16).reshape(4, 4) * 200
BYTES = np.arange(16, dtype=np.uint8).reshape(4, 4) * 16
UNIT = TWELVE / TWELVE.max()
COLOURS = np.stack([BYTES, BYTES[::-1], BYTES.T], axis=-1)
VALUES = hounsfield((4, 6, 6))


def dicom(pixels: np.ndarray = TWELVE, **tags) -> Callable[[Path], Path]:
    """Return a function that writes a DICOM file."""
    return lambda folder: make_dicom(folder / NAME, pixels, **tags)


def with_elements(content: bytes, **tags) -> Callable[[Path], Path]:
    """Return a function that writes a DICOM file with raw elements before the description of its pixels."""
    return lambda folder: insert(make_dicom(folder / NAME, TWELVE, **tags), content)


def replaced(old: bytes, new: bytes, pixels: np.ndarray = TWELVE, **tags) -> Callable[[Path], Path]:
    """Return a function that writes a DICOM file in which bytes are replaced."""

    def make(folder: Path) -> Path:
        path = make_dicom(folder / NAME, pixels, **tags)
        content = path.read_bytes()
        assert old in content
        path.write_bytes(content.replace(old, new, 1))
        return path

    return make


def without_image(sop_class: str, **tags) -> Callable[[Path], Path]:
    """Return a function that writes a DICOM file of another class, without pixels."""
    gone = ("Rows", "Columns", "PixelData", "BitsAllocated", "PhotometricInterpretation")
    return dicom(SOPClassUID=sop_class, without=gone, SeriesInstanceUID="1.2.3.4", **tags)


def encapsulated(content: bytes | list[bytes], syntax: UID, pixels: np.ndarray = BYTES) -> Callable[[Path], Path]:
    """Return a function that writes a DICOM file with compressed pixels made elsewhere."""
    whole = content if isinstance(content, bytes) else encapsulate(content)

    def make(folder: Path) -> Path:
        dataset = dcmread(make_dicom(folder / NAME, pixels))
        dataset.file_meta.TransferSyntaxUID = syntax
        dataset.PixelData = whole
        dataset["PixelData"].is_undefined_length = True
        dataset["PixelData"].VR = "OB"
        dataset.save_as(folder / NAME, enforce_file_format=True)
        return folder / NAME

    return make


def picture(kind: str, pixels: np.ndarray, **options) -> bytes:
    """Return the bytes of a picture."""
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, kind, **options)
    return stream.getvalue()


def series(**tags) -> Callable[[Path], Path]:
    """Return a function that writes a series of four slices into a folder."""
    return lambda folder: write_series(folder / "secret-sally", VALUES, names="{}.dcm", **tags)


def spoiled_series(spoil: Callable[[Path], object]) -> Callable[[Path], Path]:
    """Return a function that writes a series, one file of which is spoiled."""

    def make(folder: Path) -> Path:
        place = write_series(folder / "secret-sally", VALUES, names="{}.dcm")
        spoil(place / "2.dcm")
        return place

    return make


def real(name: str) -> Callable[[Path], Path]:
    """Return a function that copies one of pydicom's files."""

    def make(folder: Path) -> Path:
        (folder / NAME).write_bytes(Path(get_testdata_file(name, download=False)).read_bytes())
        return folder / NAME

    return make


def element(group: int, number: int, vr: bytes, length: int, content: bytes = b"") -> bytes:
    """Return an element in explicit little endian, whose length may lie."""
    long = vr in (b"OB", b"OW", b"SQ", b"UN", b"UT", b"OF", b"OD")
    head = struct.pack("<HH2sHI" if long else "<HH2sH", group, number, vr, *((0, length) if long else (length,)))
    return head + content


def changed_size(codestream: bytes, marker: bytes, skip: int, form: str, edge: int) -> bytes:
    """Return a codestream whose header states another size."""
    place = codestream.index(marker) + skip
    size = struct.pack(form, edge, edge)
    return codestream[:place] + size + codestream[place + len(size) :]


JPEG = picture("JPEG", BYTES)
J2K = picture("JPEG2000", BYTES, no_jp2=True)
HIDDEN_SYNTAX = "1.2." + "3" * 2000
"""Identifier so long that the transfer syntax comes after the first kilobyte."""

LENGTHS = {
    "pixels of two images": Hostile(
        replaced(b"\x28\0\x10\0US\2\0\4\0", b"\x28\0\x10\0US\2\0\2\0"), "wrong_shape", {"expected": [2, 4]}
    ),
    "padding after the pixels": Hostile(dicom(PixelData=TWELVE.tobytes() + bytes(6)), values=UNIT),
    "pixels of an odd length": Hostile(dicom(BYTES[:3, :3], PixelData=BYTES[:3, :3].tobytes() + b"\0")),
    "an element longer than the file": Hostile(
        with_elements(element(0x10, 0x4000, b"UN", 0x7FFFFFF0, b"Secret Sally")), "missing_pixels"
    ),
    "an element that never ends": Hostile(
        with_elements(element(0x18, 0x1000, b"UN", 0xFFFFFFFF, b"Secret Sally")), "damaged_file"
    ),
    "a sequence that never ends": Hostile(
        with_elements(element(0x18, 0x9346, b"SQ", 0xFFFFFFFF, b"\xfe\xff\0\xe0\xff\xff\xff\xff")), "damaged_file"
    ),
    "2,000 nested sequences": Hostile(with_elements(nested(2000, undefined=True)), "nested_too_deep"),
    "2,000 nested sequences with lengths": Hostile(with_elements(nested(2000, undefined=False)), values=UNIT),
    "a text of 10 MB": Hostile(dicom(PatientComments="Secret Sally " * 800_000), values=UNIT),
    "10,000 private elements": Hostile(
        with_elements(b"".join(element(0x19, 0x1000 + n, b"LO", 12, b"Secret Sally") for n in range(10_000))),
        values=UNIT,
    ),
    "pixels of a negative length": Hostile(
        replaced(b"OW\0\0" + struct.pack("<I", 32), b"OW\0\0" + struct.pack("<i", -32)), values=UNIT
    ),
}

NUMBERS = {
    "rubbish above 12 bits": Hostile(dicom(TWELVE | 0xF000, stored=12), values=UNIT),
    "unsigned pixels that are said to be signed": Hostile(dicom(TWELVE * 20, PixelRepresentation=1), values=None),
    "12 signed bits without their sign": Hostile(
        dicom((TWELVE.astype(np.int16) - 1600) & 0x0FFF, stored=12, PixelRepresentation=1), values=UNIT
    ),
    "a slope beyond float32": Hostile(dicom(RescaleSlope="1E38"), "not_finite"),
    "a slope beyond float64": Hostile(dicom(RescaleSlope="1E400"), "invalid_rescaling"),
    "a slope that is no number": Hostile(dicom(RescaleSlope="NaN"), "invalid_rescaling"),
    "a slope that is a name": Hostile(replaced(b"DS\2\x002 ", b"DS\2\0Sa", RescaleSlope="2"), "damaged_file"),
    "a negative slope": Hostile(dicom(RescaleSlope="-1"), values=1 - UNIT),
    "pixels in float": Hostile(
        dicom(without=("PixelData",), FloatPixelData=np.zeros(16, np.float32).tobytes()), "missing_pixels"
    ),
    "pixels in double": Hostile(
        dicom(without=("PixelData",), DoubleFloatPixelData=np.zeros(16).tobytes()), "missing_pixels"
    ),
    "64 bits": Hostile(dicom(TWELVE.astype(np.uint64)), "unsupported_pixel_format", {"bits": 64}),
    "32 bits": Hostile(dicom(TWELVE.astype(np.uint32) * 70_000), values=UNIT),
    "large values are dark": Hostile(dicom(meaning="MONOCHROME1"), values=1 - UNIT),
    "large values are dark, with a negative slope": Hostile(
        dicom(meaning="MONOCHROME1", RescaleSlope="-1"), values=UNIT
    ),
    "a name as colour space": Hostile(dicom(meaning="SECRET SALLY"), "unsupported_pixel_format", {"samples": 1}),
    "several numbers of rows": Hostile(
        replaced(b"\x28\0\x10\0US\2\0\4\0", b"\x28\0\x10\0US\4\0\4\0\4\0"), "damaged_file"
    ),
    "a number of rows without a number": Hostile(
        replaced(b"\x28\0\x10\0US\2\0\4\0", b"\x28\0\x10\0US\0\0"), "damaged_file"
    ),
    "rows as text": Hostile(replaced(b"\x28\0\x10\0US\2\0\4\0", b"\x28\0\x10\0LO\2\0Sa"), "damaged_file"),
    "a billion frames": Hostile(dicom(NumberOfFrames=10**9), "several_frames", {"found": 10**9}),
    "negative frames": Hostile(dicom(NumberOfFrames=-3), "several_frames", {"found": -3}),
    "frames that are a name": Hostile(replaced(b"IS\2\x001 ", b"IS\2\0Sa", NumberOfFrames=1), "damaged_file"),
    "all pixels are padding": Hostile(dicom(TWELVE * 0, PixelPaddingValue=0), "only_padding"),
}

COLOUR = {
    "colours": Hostile(dicom(COLOURS, meaning="RGB")),
    "colours in planes": Hostile(
        dicom(COLOURS, meaning="RGB", PlanarConfiguration=1, PixelData=COLOURS.transpose(2, 0, 1).tobytes())
    ),
    "YBR_FULL": Hostile(dicom(COLOURS, meaning="YBR_FULL")),
    "YBR_FULL_422": Hostile(dicom(COLOURS, meaning="YBR_FULL_422", PixelData=bytes(32))),
    "half of YBR_FULL_422": Hostile(
        dicom(COLOURS, meaning="YBR_FULL_422", PixelData=bytes(16)), "damaged_file", {"expected": 32, "found": 16}
    ),
    "YBR_PARTIAL_420": Hostile(dicom(COLOURS, meaning="YBR_PARTIAL_420", PixelData=bytes(24)), "damaged_file"),
    "colours without an order": Hostile(
        dicom(COLOURS, meaning="RGB", without=("PlanarConfiguration",)), "damaged_file"
    ),
    "colours of 16 bits": Hostile(
        dicom(COLOURS.astype(np.uint16), meaning="RGB"), "unsupported_pixel_format", {"samples": 3, "bits": 16}
    ),
}

SYNTAX = {
    "big endian": Hostile(dicom(syntax=ExplicitVRBigEndian), values=UNIT),
    "a private transfer syntax": Hostile(
        replaced(b"1.2.840.10008.1.2.1\0", b"1.2.840.113619.5.2\0\0"), "unsupported_compression"
    ),
    "a name as transfer syntax": Hostile(
        replaced(b"1.2.840.10008.1.2.1\0", b"Secret Sally 1.2.8.1"), "unsupported_compression"
    ),
    "a video": Hostile(encapsulated([b"\0\0\1\xba" * 99], MPEG4HP41), "unsupported_compression"),
    "no fragment": Hostile(encapsulated(b"\xfe\xff\x00\xe0\0\0\0\0", JPEGBaseline8Bit), "damaged_file"),
    "a fragment without end": Hostile(
        encapsulated(b"\xfe\xff\x00\xe0\0\0\0\0\xfe\xff\x00\xe0\xff\xff\xff\x7f" + JPEG, JPEGBaseline8Bit)
    ),
    "a JPEG": Hostile(encapsulated([JPEG], JPEGBaseline8Bit)),
    "a JPEG of another size": Hostile(
        encapsulated([picture("JPEG", np.zeros((9, 7), np.uint8))], JPEGBaseline8Bit),
        "wrong_shape",
        {"expected": [4, 4, 1], "found": [9, 7, 1]},
    ),
    "a JPEG in colour that is said to be grey": Hostile(
        encapsulated([picture("JPEG", COLOURS)], JPEGBaseline8Bit),
        "wrong_shape",
        {"expected": [4, 4, 1], "found": [4, 4, 3]},
    ),
    "a JPEG of 60,000 pixels a side": Hostile(
        encapsulated([changed_size(JPEG, b"\xff\xc0", 5, ">HH", 60_000)], JPEGBaseline8Bit), "wrong_shape"
    ),
    "a JPEG 2000": Hostile(encapsulated([J2K], JPEG2000Lossless), values=UNIT),
    "a JPEG 2000 of 60,000 pixels a side": Hostile(
        encapsulated([changed_size(J2K, b"\xff\x51", 6, ">II", 60_000)], JPEG2000Lossless), "wrong_shape"
    ),
    "a JPEG-LS that is a text": Hostile(encapsulated([b"Secret Sally" * 9], JPEGLSLossless), "damaged_file"),
    "run lengths that are a text": Hostile(encapsulated([b"Secret Sally" * 9], RLELossless), "damaged_file"),
    "run lengths of four billion segments": Hostile(
        encapsulated([b"\xff" * 64 + bytes(8)], RLELossless), "damaged_file"
    ),
    "a deflated file that is a text": Hostile(
        replaced(
            b"1.2.840.10008.1.2.1.99", b"1.2.840.10008.1.2.1.99Secret Sally", syntax=DeflatedExplicitVRLittleEndian
        ),
        "damaged_file",
    ),
}

OBJECTS = {
    "a report": Hostile(real("reportsi.dcm"), "missing_pixels"),
    "a document": Hostile(without_image(EncapsulatedPDFStorage, EncapsulatedDocument=b"%PDF-1.7"), "missing_pixels"),
    "an electrocardiogram": Hostile(without_image(TwelveLeadECGWaveformStorage), "missing_pixels"),
    "a directory of files": Hostile(real("DICOMDIR"), "missing_pixels"),
    "escapes of another alphabet in a name": Hostile(
        dicom(SpecificCharacterSet=["", "ISO 2022 IR 87"], PatientName=b"Secret\x1b$B\x1b$)Ca^\x1b(BSally\x1b$"),
        values=UNIT,
    ),
    "an alphabet that is no alphabet": Hostile(
        replaced(b"ISO_IR 192", b"hex_codec ", SpecificCharacterSet="ISO_IR 192"), "damaged_file"
    ),
    "a name in no alphabet": Hostile(
        dicom(SpecificCharacterSet="ISO_IR 192", PatientName=b"\xff\xfeSecret\xc3^Sally"), values=UNIT
    ),
}

VOLUMES = {
    "a series": Hostile(series(), size=(4, 4, 4)),
    "positions that are no numbers": Hostile(
        series(ImagePositionPatient=lambda n: ["NaN", "0", str(n)]), "missing_element", size=(4, 4, 4)
    ),
    "positions at the end of the world": Hostile(
        series(ImagePositionPatient=lambda n: ["1E300", "0", str(n)]), size=(4, 4, 4)
    ),
    "directions of length 0": Hostile(series(ImageOrientationPatient=[0] * 6), "invalid_orientation", size=(4, 4, 4)),
    "a spacing of 0": Hostile(series(PixelSpacing=[0, 0]), "invalid_spacing", size=(4, 4, 4)),
    "a negative spacing": Hostile(series(PixelSpacing=[-1, 1]), "invalid_spacing", size=(4, 4, 4)),
    "one spacing": Hostile(series(PixelSpacing=[1]), "missing_element", size=(4, 4, 4)),
    "a spacing that is a name": Hostile(
        spoiled_series(lambda path: path.write_bytes(path.read_bytes().replace(b"0.5\\0.75", b"Sally\\.5"))),
        "damaged_file",
        size=(4, 4, 4),
    ),
    "mixed spacings": Hostile(
        series(PixelSpacing=lambda n: [1, 1 + n]), "mixed_spacing", {"maximum": 4.0}, size=(4, 4, 4)
    ),
    "bright and dark large values": Hostile(
        series(PhotometricInterpretation=lambda n: f"MONOCHROME{1 + n % 2}"), "mixed_formats", size=(4, 4, 4)
    ),
    "an empty slice": Hostile(spoiled_series(lambda path: path.write_bytes(b"")), "damaged_file", size=(4, 4, 4)),
    "a slice that is cut": Hostile(
        spoiled_series(lambda path: path.write_bytes(path.read_bytes()[:-40])), "damaged_file", size=(4, 4, 4)
    ),
}

CASES = LENGTHS | NUMBERS | COLOUR | SYNTAX | OBJECTS | VOLUMES


@pytest.mark.parametrize("case", CASES)
def test_a_dicom_file_is_refused_or_read(tmp_path, case):
    check_image(tmp_path, CASES[case])


def test_a_bomb_whose_syntax_hides_behind_a_long_identifier(tmp_path, monkeypatch):
    monkeypatch.setattr("medfl.data.readers.dicom_header.MAX_INFLATED_BYTES", 1 << 20)
    hidden = dicom(
        np.zeros((2048, 2048), np.uint8), syntax=DeflatedExplicitVRLittleEndian, SOPInstanceUID=HIDDEN_SYNTAX
    )
    check_image(tmp_path, Hostile(hidden, "excessive_inflation", {"maximum": 1 << 20}))
