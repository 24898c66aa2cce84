"""Random changes of valid files: each is refused by medfl's own errors, or read; nothing else is raised or warned."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from dicom_maker import make_dicom
from hostile_checks import bounded, check_discreet, silent
from image_makers import nifti, picture
from own_cohort import SOME
from pydicom import dcmread
from pydicom.encaps import encapsulate
from pydicom.uid import ExplicitVRLittleEndian, JPEG2000Lossless, JPEGBaseline8Bit, JPEGLSLossless, RLELossless
from series_maker import hounsfield, write_enhanced, write_series

from medfl.data.inference import load_images
from medfl.data.ingest.columns.labels import read_rows
from medfl.data.readers.images import inspect_image, read_image
from medfl.data.readers.quiet import quiet_decoders
from medfl.data.table import read_table
from medfl.errors import DataError
from medfl.objectives import Multiclass

CHANGES = 200
"""Number of changed copies of each file."""

PIXELS = np.random.default_rng(1).integers(0, 256, (48, 40), dtype=np.uint8)
ROWS = "".join(f'"{number}.png";{"ab"[number % 2]};"Secret, Sally {number}"\n' for number in range(40))


def dicom(syntax: str) -> Callable[[Path], Path]:
    """Return a function that writes a DICOM file with a transfer syntax."""
    return lambda folder: make_dicom(folder / "a.dcm", PIXELS.astype(np.uint16) * 9, syntax=syntax)


def jpeg(folder: Path) -> Path:
    dataset = dcmread(make_dicom(folder / "a.dcm", PIXELS))
    dataset.file_meta.TransferSyntaxUID = JPEGBaseline8Bit
    dataset.PixelData = encapsulate([picture(folder / "a.jpg", PIXELS).read_bytes()])
    dataset["PixelData"].VR = "OB"
    dataset.save_as(folder / "a.dcm", enforce_file_format=True)
    return folder / "a.dcm"


def series(folder: Path) -> Path:
    return write_series(folder, hounsfield((4, 6, 6)), names="{}.dcm") / "2.dcm"


def table(folder: Path) -> Path:
    (folder / "a.csv").write_text(f"file;diagnosis;Größe\n{ROWS}", encoding="utf-8-sig")
    return folder / "a.csv"


def read_flat(path: Path) -> None:
    with quiet_decoders():
        inspect_image(path)
        assert np.isfinite(read_image(path, (4, 4), 1)).all()


def read_deep(path: Path) -> None:
    with quiet_decoders():
        inspect_image(path)
        assert np.isfinite(read_image(path, (4, 4, 4), 1)).all()


def read_folder(path: Path) -> None:
    files = load_images(path.parent, 4, 3, 1, Multiclass(2))
    assert [np.isfinite(files.pixels(row)).all() for row in range(len(files))]


FILES: dict[str, tuple[Callable[[Path], Path], Callable[[Path], object]]] = {
    "DICOM": (dicom(ExplicitVRLittleEndian), read_flat),
    "DICOM in JPEG 2000": (dicom(JPEG2000Lossless), read_flat),
    "DICOM in JPEG-LS": (dicom(JPEGLSLossless), read_flat),
    "DICOM in JPEG": (jpeg, read_flat),
    "DICOM in run lengths": (dicom(RLELossless), read_flat),
    "enhanced DICOM": (lambda folder: write_enhanced(folder / "a.dcm", hounsfield((3, 6, 6))), read_deep),
    "series": (series, read_folder),
    "NIfTI": (lambda folder: nifti(folder / "a.nii", hounsfield((4, 6, 6))), read_deep),
    "NIfTI in gzip": (lambda folder: nifti(folder / "a.nii.gz", hounsfield((4, 6, 6))), read_deep),
    "PNG": (lambda folder: picture(folder / "a.png", PIXELS), read_flat),
    "JPEG": (lambda folder: picture(folder / "a.jpg", PIXELS), read_flat),
    "TIFF": (lambda folder: picture(folder / "a.tif", PIXELS, compression="tiff_lzw"), read_flat),
    "BMP": (lambda folder: picture(folder / "a.bmp", PIXELS), read_flat),
    "PGM": (lambda folder: picture(folder / "a.pgm", PIXELS), read_flat),
    "CSV": (table, lambda path: read_rows(read_table(path), SOME)),
}


def change(content: bytes, rng: np.random.Generator) -> bytes:
    """Return a copy that is cut, or in which a few bytes, or one number of four bytes, are replaced."""
    if rng.random() < 0.15:
        return content[: rng.integers(len(content))]
    changed = bytearray(content)
    reach = min(len(content), 1500) if rng.random() < 0.5 else len(content)  # headers are at the beginning
    if rng.random() < 0.2:
        place = int(rng.integers(reach))
        number = rng.choice([b"\xff\xff\xff\xff", b"\0\0\0\0", b"\xff\xff\xff\x7f", b"\0\0\0\x80"])
        changed[place : place + 4] = bytes(number).ljust(4, b"\0")
        return bytes(changed)
    for place in rng.integers(reach, size=rng.integers(1, 8)):
        changed[place] = rng.integers(256)
    return bytes(changed)


@pytest.mark.slow
@pytest.mark.parametrize("kind", FILES)
def test_nothing_but_our_own_errors(tmp_path, kind):
    make, read = FILES[kind]
    path = make(tmp_path)
    read(path)
    content, rng, codes = path.read_bytes(), np.random.default_rng(50), []
    for number in range(CHANGES):
        path.write_bytes(change(content, rng))
        with silent(), bounded(tmp_path):
            try:
                read(path)
            except DataError as error:
                codes.append(error.code)
                if kind != "CSV" and error.code != "out_of_memory":  # names of columns are shown; within the limits
                    check_discreet(error, tmp_path)
            except BaseException as error:
                raise AssertionError(f"change {number}: {error!r}") from error
    assert len(codes) > CHANGES // 20, "most changes matter"
