"""NRRD and MetaImage (MHA) files, which MONAI's reader for ITK decodes (Apache-2.0), as volumes with their place.

The pixels must be in the file itself: a head can name any other file for them, and nothing is read that nobody named.
Messages never name a file.
"""

from __future__ import annotations

import math
import re
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from medfl.data.readers.dicom_header import cannot_open, decoding
from medfl.errors import DataError, pip_install

if TYPE_CHECKING:
    from nibabel import Nifti1Image

ITK_SUFFIXES = (".nrrd", ".mha")
"""Ends of file names, in small letters."""

HEAD = 1 << 16
"""Bytes in which a head must end."""

_READERS = {".nrrd": ("itk", "nrrd"), ".mha": ("itk",)}
"""End of a name to the packages by which MONAI's transforms read such a file, any of them."""

_NRRD_HEAD = re.compile(rb"NRRD000\d\r?\n(?:(?![ \t]*data[ \t]*file[ \t]*:)[^\n]+\n)*?\r?\n", re.IGNORECASE)
"""The lines of an NRRD head, which an empty one ends, without one that names another file for the pixels."""

_MHA_HEAD = re.compile(
    rb"(?:(?![ \t]*elementdatafile)[^\n]*\n)*?[ \t]*elementdatafile[ \t]*[=:][ \t]*local[ \t\r]*\n", re.IGNORECASE
)
"""The lines of a MetaImage's head, the last of which says that the pixels come next."""


def lacks_reader(path: Path) -> str:
    """What to say of a file that nothing installed reads: ends a sentence; empty if something does, or it is another.

    Args:
        path: Of the file, whose name decides.
    """
    packages = _READERS.get(path.suffix.lower(), ())
    if not packages or any(find_spec(name) is not None for name in packages):
        return ""
    return f"NRRD and MHA files need another package: {pip_install('itk')}, or save them as NIfTI"


def open_itk(path: Path, most_voxels: int) -> Nifti1Image:
    """Read a file with one volume or image.

    Args:
        path: An NRRD or MHA file.
        most_voxels: More than that are refused before any memory is taken for them.

    Returns:
        As nibabel has a NIfTI file: float32, (X, Y, Z), with its affine to the right, to the front, up; an image has
        one slice.

    Raises:
        DataError: If it is damaged, is too large, has colours or its pixels in another file, or ITK is not installed.
    """
    lack = "" if find_spec("itk") else f"NRRD files need another package: {pip_install('itk')}"
    if lack := lacks_reader(path) or lack:
        raise DataError("missing_package", f"{lack}.", package="itk", extra="itk")
    try:
        with path.open("rb") as file:
            head = file.read(HEAD)
    except OSError as error:
        raise cannot_open(error) from None
    if not (_NRRD_HEAD if path.suffix.lower() == ".nrrd" else _MHA_HEAD).match(head):
        raise DataError(
            "unsupported_file",
            "the file is no NRRD or MHA file with its pixels inside: it is damaged, or names another file for them. "
            "Save both as one file, or as NIfTI.",
            expected=["NRRD", "MHA"],
        )
    with decoding():
        reader = _reader(path)
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
            f"expected a volume of up to {most_voxels // 10**6} million voxels, its head states another size. Cut out "
            "or shrink what matters.",
            maximum=most_voxels,
        )
    return _read(path, reader)


def _reader(path: Path) -> Any:
    """ITK's reader of that format alone, which has read the head."""
    import itk

    reader = (itk.NrrdImageIO if path.suffix.lower() == ".nrrd" else itk.MetaImageIO).New()
    if not reader.CanReadFile(str(path)):
        raise ValueError("another format")
    reader.SetFileName(str(path))
    reader.ReadImageInformation()
    return reader


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
