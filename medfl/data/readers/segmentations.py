"""Read lesion masks of 2-D images: image files, or DICOM segmentations (DICOM-SEG), which `highdicom` decodes.

A pixel of a DICOM-SEG is lesion if any of its segments contains it, with a fraction of at least one half if the file
stores fractions. Overlaps of segments do not matter. Nothing else of the file is kept, in particular no patient data.
Messages never name a file.

Source: DICOM PS3.3 A.51 (segmentation), A.91 (label map segmentation).
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from medfl.data.readers.dicom_header import MAX_PIXELS, check_start, decoding
from medfl.data.readers.pillow_images import FORMATS, read_pillow_image
from medfl.errors import DataError, pip_install

SEGMENTATION_SUFFIX = ".dcm"
"""File name suffix of a DICOM-SEG, in lower case."""

MASK_SUFFIXES = (*FORMATS, SEGMENTATION_SUFFIX)
"""File name suffixes of masks, in lower case."""

MIN_FRACTION = 0.5
"""Minimum fraction of a lesion pixel, in a file that stores for each pixel which fraction of it a segment covers."""

_SOP_CLASSES = ("1.2.840.10008.5.1.4.1.1.66.4", "1.2.840.10008.5.1.4.1.1.66.7")
"""SOP class UIDs of segmentation and label map segmentation."""


def read_mask(path: Path) -> np.ndarray:
    """Read the mask of a 2-D image.

    Returns:
        Mask (H, W) or (H, W, colours); 0 outside of lesions.

    Raises:
        DataError: If the file can't be read; see `read_pillow_image` and `read_segmentation`.
    """
    return read_segmentation(path) if path.suffix.lower() == SEGMENTATION_SUFFIX else read_pillow_image(path)


def read_segmentation(path: Path) -> np.ndarray:
    """Read the union of the segments that a DICOM-SEG marks in its single source image.

    Args:
        path: Path of the file.

    Returns:
        Mask (H, W), uint8: 1 inside any segment, 0 elsewhere.

    Raises:
        DataError: If the file is no DICOM-SEG, is damaged, refers to several images, or `highdicom` is not installed.
    """
    import pydicom

    check_start(path)
    with decoding():
        head = pydicom.dcmread(path, stop_before_pixels=True, force=True)
        kind = str(head.get("SOPClassUID", ""))
        pixels = int(head.get("Rows", 0)) * int(head.get("Columns", 0)) * int(head.get("NumberOfFrames") or 1)
    if kind not in _SOP_CLASSES:
        raise DataError(
            "unsupported_file",
            "expected a DICOM segmentation (DICOM-SEG) as mask, got another kind of DICOM. Export the mask.",
            expected="DICOM-SEG",
        )
    if not 1 <= pixels <= MAX_PIXELS:
        raise DataError(
            "invalid_image_size",
            f"expected a DICOM segmentation of 1 to {MAX_PIXELS // 10**6} million pixels, its header states another "
            "size. Export it again.",
            maximum=MAX_PIXELS,
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
    inside: np.ndarray = (segments[0] >= MIN_FRACTION).any(axis=-1)
    return inside.astype(np.uint8)
