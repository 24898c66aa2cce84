"""Masks of pictures: pictures themselves, or DICOM segmentations (DICOM-SEG), which `highdicom` decodes.

A pixel of a DICOM-SEG is lesion if any of its segments holds it, with a fraction of one half or more where the file has
fractions. Where the segments lie on each other does not matter. Nothing else of the file is kept: what it says of a
patient stays in it. Messages never name a file.

Source: DICOM PS3.3 A.51 (segmentation), A.91 (label map segmentation).
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from medfl.data.readers.dicom_header import MOST_PIXELS, check_start, decoding
from medfl.data.readers.pictures import FORMATS, read_picture
from medfl.errors import DataError, pip_install

SUFFIX = ".dcm"
"""How the name of a DICOM-SEG ends, in small letters."""

MASK_SUFFIXES = (*FORMATS, SUFFIX)
"""Ends of names of masks, in small letters."""

HALF = 0.5
"""The fraction from which a pixel is lesion."""

_CLASSES = ("1.2.840.10008.5.1.4.1.1.66.4", "1.2.840.10008.5.1.4.1.1.66.7")
"""Segmentation, and label map segmentation."""


def read_mask(path: Path) -> np.ndarray:
    """The mask of a picture.

    Returns:
        (H, W) or (H, W, colours); 0 outside of lesions.

    Raises:
        DataError: If it can't be read; see `read_picture` and `read_segmentation`.
    """
    return read_segmentation(path) if path.suffix.lower() == SUFFIX else read_picture(path)


def read_segmentation(path: Path) -> np.ndarray:
    """What a DICOM-SEG marks in the one image that it is about.

    Args:
        path: The file.

    Returns:
        (H, W), uint8: 1 where any segment is, 0 elsewhere.

    Raises:
        DataError: If it is no DICOM-SEG, is damaged, is about several images, or `highdicom` is not installed.
    """
    import pydicom

    check_start(path)
    with decoding():
        head = pydicom.dcmread(path, stop_before_pixels=True, force=True)
        kind = str(head.get("SOPClassUID", ""))
        pixels = int(head.get("Rows", 0)) * int(head.get("Columns", 0)) * int(head.get("NumberOfFrames") or 1)
    if kind not in _CLASSES:
        raise DataError(
            "unsupported_file",
            "expected a DICOM segmentation (DICOM-SEG) as mask, got another kind of DICOM. Export the mask.",
            expected="DICOM-SEG",
        )
    if not 1 <= pixels <= MOST_PIXELS:
        raise DataError(
            "invalid_image_size",
            f"expected a DICOM segmentation of 1 to {MOST_PIXELS // 10**6} million pixels, its header states another "
            "size. Export it again.",
            maximum=MOST_PIXELS,
        )
    if find_spec("highdicom") is None:
        raise DataError(
            "missing_package",
            f"masks as DICOM-SEG need another package: {pip_install('highdicom')}, or export them as PNG.",
            package="highdicom",
            extra="highdicom",
        )
    import highdicom

    with decoding():
        segmentation = highdicom.seg.segread(path)
        images = sorted({uid for *_, uid in segmentation.get_source_image_uids()})
    if len(images) != 1:
        raise DataError(
            "several_source_images",
            f"expected a DICOM segmentation of one image, got one of {len(images)}. Export one for each image.",
            found=len(images),
        )
    with decoding():
        segments = segmentation.get_pixels_by_source_instance(
            images, combine_segments=False, assert_missing_frames_are_empty=True, ignore_spatial_locations=True
        )
    inside: np.ndarray = (segments[0] >= HALF).any(axis=-1)
    return inside.astype(np.uint8)
