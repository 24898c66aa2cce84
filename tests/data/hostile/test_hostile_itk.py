"""Hostile and odd NRRD and MHA files, each through ``medfl prep folder`` and inference, where ITK is installed.

Headers that name another file for the pixels are in `tests/data/readers/test_itk_files.py`.
"""

from __future__ import annotations

import gzip
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hostile_checks import Hostile, check_image

itk = pytest.importorskip("itk", reason="itk is not installed (pip install 'medfl-monai[itk]')")

VOXELS = np.arange(64, dtype="<i2").reshape(4, 4, 4)
UNIT = VOXELS[::-1, ::-1] / VOXELS.max()
"""Pixels in RAS convention, which the files state in LPS."""

CUBE = (4, 4, 4)


def mha(content: bytes = VOXELS.T.tobytes(), **fields: str) -> Callable[[Path], Path]:
    """Return a function that writes an MHA file with the given header fields."""
    known = {"ObjectType": "Image", "NDims": "3", "BinaryData": "True", "BinaryDataByteOrderMSB": "False"}
    known |= {"DimSize": "4 4 4", "ElementSpacing": "1 1 1", "ElementType": "MET_SHORT"} | fields
    head = "".join(f"{name} = {value}\n" for name, value in known.items()) + "ElementDataFile = LOCAL\n"
    return file(".mha", head.encode() + content)


def compressed(content: bytes) -> Callable[[Path], Path]:
    """Return a function that writes an MHA file whose pixels are compressed."""
    whole = zlib.compress(content)
    return mha(whole, CompressedData="True", CompressedDataSize=str(len(whole)))


def nrrd(content: bytes = VOXELS.T.tobytes(), **fields: str) -> Callable[[Path], Path]:
    """Return a function that writes an NRRD file with the given header fields."""
    known = {"type": "int16", "dimension": "3", "sizes": "4 4 4", "endian": "little", "encoding": "raw"}
    known |= {"space": "left-posterior-superior", "space_directions": "(1,0,0) (0,1,0) (0,0,1)"} | fields
    head = "".join(f"{name.replace('_', ' ')}: {value}\n" for name, value in known.items() if value)
    return file(".nrrd", f"NRRD0004\n{head}\n".encode() + content)


def file(ending: str, content: bytes) -> Callable[[Path], Path]:
    """Return a function that writes a file."""

    def make(folder: Path) -> Path:
        path = folder / f"Secret-Sally{ending}"
        path.write_bytes(content)
        return path

    return make


CASES = {
    "MHA": Hostile(mha(), size=CUBE, values=UNIT),
    "MHA with more voxels than the file": Hostile(mha(DimSize="4 4 400"), "damaged_file", size=CUBE),
    "MHA with fewer voxels than the file": Hostile(mha(DimSize="4 4 2"), size=CUBE),
    "MHA with lengths that overflow": Hostile(mha(DimSize="65536 65536 65536"), "invalid_image_size", size=CUBE),
    "MHA with negative lengths": Hostile(mha(DimSize="-4 -4 4"), "invalid_image_size", size=CUBE),
    "MHA of 200 axes": Hostile(mha(NDims="200", DimSize="4 " * 200), "damaged_file", size=CUBE),
    "MHA with a name as length": Hostile(mha(DimSize="Secret Sally 4"), "damaged_file", size=CUBE),
    "MHA of an unknown type": Hostile(mha(ElementType="MET_SALLY"), "damaged_file", size=CUBE),
    "MHA without a spacing": Hostile(mha(ElementSpacing="0 0 0"), "damaged_file", size=CUBE),
    "MHA with axes in one plane": Hostile(mha(TransformMatrix="1 0 0 1 0 0 0 0 1"), "damaged_file", size=CUBE),
    "MHA with no numbers as axes": Hostile(mha(TransformMatrix="nan " * 9), "damaged_file", size=CUBE),
    "MHA that is compressed": Hostile(compressed(VOXELS.T.tobytes()), size=CUBE, values=UNIT),
    "MHA that inflates to 300 MB": Hostile(
        compressed(VOXELS.T.tobytes() + bytes(3 * 10**8)), "damaged_file", size=CUBE
    ),
    "MHA that inflates to too few voxels": Hostile(compressed(bytes(100)), "damaged_file", size=CUBE),
    "MHA that is said to be compressed": Hostile(
        mha(b"Secret Sally", CompressedData="True", CompressedDataSize="12"), "damaged_file", size=CUBE
    ),
    "MHA of another compressed size": Hostile(
        mha(zlib.compress(VOXELS.T.tobytes()), CompressedData="True", CompressedDataSize="999999999"),
        "damaged_file",
        size=CUBE,
    ),
    "NRRD": Hostile(nrrd(), size=CUBE, values=UNIT),
    "NRRD with more voxels than the file": Hostile(nrrd(sizes="4 4 400"), "damaged_file", size=CUBE),
    "NRRD with lengths that overflow": Hostile(nrrd(sizes="65536 65536 65536"), "invalid_image_size", size=CUBE),
    "NRRD with negative lengths": Hostile(nrrd(sizes="-4 -4 4"), "damaged_file", size=CUBE),
    "NRRD of 17 axes": Hostile(nrrd(dimension="17", sizes="1 " * 17), "damaged_file", size=CUBE),
    "NRRD of an unknown encoding": Hostile(nrrd(encoding="sally"), "damaged_file", size=CUBE),
    "NRRD of an unknown type": Hostile(nrrd(type="sally"), "damaged_file", size=CUBE),
    "NRRD without directions": Hostile(nrrd(space="", space_directions=""), size=CUBE),
    "NRRD with no numbers as directions": Hostile(
        nrrd(space_directions="(nan,0,0) (0,nan,0) (0,0,nan)"), "damaged_file", size=CUBE
    ),
    "NRRD with pixels before the file": Hostile(nrrd(byte_skip="-99999"), "damaged_file", size=CUBE),
    "NRRD that is compressed": Hostile(
        nrrd(gzip.compress(VOXELS.T.tobytes()), encoding="gzip"), size=CUBE, values=UNIT
    ),
    "NRRD that inflates to too few voxels": Hostile(
        nrrd(gzip.compress(bytes(100)), encoding="gzip"), "damaged_file", size=CUBE
    ),
    "NRRD that inflates to 300 MB": Hostile(
        nrrd(gzip.compress(VOXELS.T.tobytes() + bytes(3 * 10**8)), encoding="gzip"), size=CUBE
    ),
    "NRRD that is said to be compressed": Hostile(nrrd(b"Secret Sally", encoding="gzip"), "damaged_file", size=CUBE),
}


@pytest.fixture(scope="module", autouse=True)
def loaded() -> None:
    """Load the parts of ITK, which warn of their own age when they are loaded."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert itk.MetaImageIO
        assert itk.NrrdImageIO
        assert itk.image_from_array(VOXELS)


@pytest.mark.parametrize("case", CASES)
def test_a_file_of_itk_is_refused_or_read(tmp_path, capfd, case):
    check_image(tmp_path, CASES[case])
    printed = "".join(capfd.readouterr()).lower()
    assert "sally" not in printed, printed
