"""Read NRRD and MetaImage (MHA) files with MONAI's ITK reader (Apache-2.0), as volumes with their position in space.

The pixels must be in the file itself: a header can name any other file as pixel data, and medfl reads no file that the
user did not name. Messages never name a file.
"""

from __future__ import annotations

import math
import re
import zlib
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from medfl.data.readers.dicom_header import check_regular_file, decoding, unopenable_file_error
from medfl.data.readers.volumes import check_memory
from medfl.errors import DataError, pip_install

if TYPE_CHECKING:
    from nibabel import Nifti1Image

ITK_SUFFIXES = (".nrrd", ".mha")
"""File name suffixes, in lower case."""

MAX_HEADER_BYTES = 1 << 16
"""Number of bytes in which a header must end."""

_READERS = {".nrrd": ("itk", "nrrd"), ".mha": ("itk",)}
"""Maps each suffix to the packages with which MONAI's transforms can read such a file; one of them suffices."""

_NRRD_HEADER = re.compile(rb"NRRD000\d\r?\n(?:(?![ \t]*data[ \t]*file[ \t]*:)[^\n]+\n)*?\r?\n", re.IGNORECASE)
"""Pattern of a complete NRRD header, up to its empty last line, that names no other file for the pixels."""

_MHA_HEADER = re.compile(
    rb"(?:(?![ \t]*elementdatafile)[^\n]*\n)*?[ \t]*elementdatafile[ \t]*[=:][ \t]*local[ \t\r]*\n", re.IGNORECASE
)
"""Pattern of a complete MetaImage header whose last line states that the pixels follow."""


_COMPRESSED = re.compile(rb"^[ \t]*compresseddata[ \t]*[=:][ \t]*(true|1)", re.IGNORECASE | re.MULTILINE)
"""Pattern of the line of a MetaImage header that states that the pixels are compressed."""

_COMPRESSED_SIZE = re.compile(rb"^[ \t]*compresseddatasize[ \t]*[=:][ \t]*(\d{1,18})", re.IGNORECASE | re.MULTILINE)
"""Pattern of the line of a MetaImage header that states the size of the compressed pixels."""

_NRRD_POSITION = (rb"^space directions:", rb"^space origin:")
_MHA_POSITION = (rb"^[ \t]*elementspacing\b", rb"^[ \t]*(offset|origin|position)\b")
"""Patterns of the header lines that together state the position of a NRRD or MetaImage file in space."""

PIECE_BYTES = 1 << 24
"""Number of bytes that are inflated at a time to check compressed pixels."""


def missing_reader_text(path: Path) -> str:
    """Return the end of an error message for a file that no installed package reads; empty if a package reads it.

    Args:
        path: Path of the file, whose suffix decides. Other suffixes give an empty text.
    """
    packages = _READERS.get(path.suffix.lower(), ())
    if not packages or any(find_spec(name) is not None for name in packages):
        return ""
    return f"NRRD and MHA files need another package: {pip_install('itk')}, or save them as NIfTI"


def itk_states_position(path: Path) -> bool:
    """Return whether the header of an NRRD or MHA file states spacing and position; ITK would assume 1 mm and 0.

    Raises:
        DataError: If the file can't be opened, or its header is not as expected.
    """
    header = _read_header(path)
    lines = _NRRD_POSITION if path.suffix.lower() == ".nrrd" else _MHA_POSITION
    return all(re.search(line, header, re.IGNORECASE | re.MULTILINE) for line in lines)


def open_itk(path: Path, most_voxels: int) -> Nifti1Image:
    """Read a file with one volume or image.

    Args:
        path: An NRRD or MHA file.
        most_voxels: Maximum number of voxels; a larger file is refused before memory is allocated for it.

    Returns:
        Nibabel image: float32, (X, Y, Z), with an affine in RAS convention; a 2-D image has one slice.

    Raises:
        DataError: If the file is damaged or too large, has several numbers per voxel or its pixels in another file, or
            ITK is not installed.
    """
    lack = "" if find_spec("itk") else f"NRRD files need another package: {pip_install('itk')}"
    if lack := missing_reader_text(path) or lack:
        raise DataError("missing_package", f"{lack}.", package="itk", extra="itk")
    header = _read_header(path)
    with decoding():
        reader = _open_reader(path)
        sizes = [int(reader.GetDimensions(axis)) for axis in range(reader.GetNumberOfDimensions())]
        components = int(reader.GetNumberOfComponents())
    if components != 1 or not 2 <= len(sizes) <= 3:
        raise DataError(
            "wrong_shape",
            f"expected a volume or an image of one number for each voxel, got {len(sizes)} axes and {components} "
            "numbers. Save one volume in grey.",
            axes=len(sizes),
            components=components,
        )
    if not 1 <= math.prod(sizes) <= most_voxels:
        raise DataError(
            "invalid_image_size",
            f"expected a volume of up to {most_voxels // 10**6} million voxels, its header states another size. Crop "
            "or downsample it.",
            maximum=most_voxels,
        )
    check_memory(math.prod(sizes))
    if path.suffix.lower() == ".mha" and _COMPRESSED.search(header):
        with decoding():
            _check_compressed(path, header, math.prod(sizes) * int(reader.GetComponentSize()))
    return _read(path, reader)


def _read_header(path: Path) -> bytes:
    """Return the complete header of a file whose pixels follow it.

    Raises:
        DataError: If the file can't be opened, is of another format, or has its pixels in another file.
    """
    check_regular_file(path)
    try:
        with path.open("rb") as file:
            head = file.read(MAX_HEADER_BYTES)
    except OSError as error:
        raise unopenable_file_error(error) from None
    header = (_NRRD_HEADER if path.suffix.lower() == ".nrrd" else _MHA_HEADER).match(head)
    if header is None:
        raise DataError(
            "unsupported_file",
            "the file is no NRRD or MHA file with its pixels inside: it is damaged, or names another file for them. "
            "Save both as one file, or as NIfTI.",
            expected=["NRRD", "MHA"],
        )
    return header[0]


def _open_reader(path: Path) -> Any:
    """Return ITK's reader for exactly this file format, after it has read the header."""
    import itk

    reader = (itk.NrrdImageIO if path.suffix.lower() == ".nrrd" else itk.MetaImageIO).New()
    if not reader.CanReadFile(str(path)):
        raise ValueError("another format")
    reader.SetFileName(str(path))
    reader.ReadImageInformation()
    return reader


def _check_compressed(path: Path, header: bytes, expected: int) -> None:
    """Raise if the compressed pixels of an MHA file are damaged: ITK would return whatever the memory contains.

    Args:
        path: Path of the file.
        header: Its header, as in the file.
        expected: Bytes of its pixels.

    Raises:
        ValueError: If the pixels have another size.
        zlib.error: If they are no zlib stream.
    """
    content = path.read_bytes()[len(header) :]
    stated = _COMPRESSED_SIZE.search(header)
    stream, rest, size = zlib.decompressobj(), content, 0
    while rest and size <= expected:
        size += len(stream.decompress(rest, PIECE_BYTES))
        rest = stream.unconsumed_tail
    if size != expected or stated is None or int(stated[1]) != len(content):
        raise ValueError("another size")


def _read(path: Path, imageio: Any) -> Nifti1Image:
    import nibabel
    from monai.data import ITKReader  # MONAI takes seconds to import

    with decoding():
        reader = ITKReader(imageio=imageio)
        values, meta = reader.get_data(reader.read(str(path)))
        known = np.asarray(meta["affine"], dtype=np.float64)
        axes = values.ndim
        affine = np.eye(4)
        affine[:axes, :axes], affine[:axes, 3] = known[:axes, :axes], known[:axes, axes]
        return nibabel.Nifti1Image(
            np.asarray(values, dtype=np.float32).reshape(*values.shape, *[1] * (3 - axes)), affine
        )
