"""Find images that may have text, such as the patient's name, burned into their pixels.

The signs are the header's own statements, the kind of the image, and the shape of extreme pixel values. They find
candidates for a person to look at; an image without a sign may contain text, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from pydicom import Dataset

RISKY_MODALITIES = (
    *("US", "IVUS", "XA", "RF", "OT", "ES", "XC", "GM", "DG", "HC", "DOC", "ECG", "EPS"),
    *("EC", "CD", "DD", "CF", "DF", "VF", "DS"),
)
"""Modalities whose images often contain text: ultrasound, angiography, fluoroscopy, endoscopy, photographs, others. The
second line has retired names of ultrasound, fluoroscopy and angiography."""

CHECKED_FRAMES = 3
"""Number of frames of an image that are searched for text: the first, the middle, and the last."""

MIN_TEXT_ROWS, MIN_RUNS, MAX_RUN = 5, 6, 12
"""A line of text has at least `MIN_TEXT_ROWS` adjacent rows, each with at least `MIN_RUNS` strokes of at most `MAX_RUN`
pixels on average."""

EXTREME_DISTANCES = (0.0, 0.1, 0.3)
"""Distances from the brightest and darkest value, as shares of the range, within which pixels may belong to text: edges
of smoothed letters are less extreme than their strokes."""

EDGE_PIXELS, MIN_CONTRAST = 2, 0.3
"""A stroke is darker by at least `MIN_CONTRAST` of the range `EDGE_PIXELS` pixels to its left, which noise is not."""

MAX_TEXT_SHARE, MIN_COHERENCE = 0.1, 0.5
"""Text covers at most `MAX_TEXT_SHARE` of the pixels. At least `MIN_COHERENCE` of its pixels continue in the next or
previous row, which isolated pixels of noise do not."""


def burned_in_signs(dataset: Dataset) -> tuple[str, ...]:
    """Return the signs that text may be burned into an image.

    Args:
        dataset: Original data set of the image.

    Returns:
        Names of the signs; empty if there is none. ``unreadable_pixels`` means that the pixels could not be searched.
    """
    modality = _code(dataset, "Modality")
    image_type = {str(value).upper() for value in _values(dataset.get("ImageType"))}
    signs = [f"modality_{modality or 'unknown'}"] if not modality or modality in RISKY_MODALITIES else []
    if _code(dataset, "BurnedInAnnotation") == "YES":
        signs.append("declared")
    if _code(dataset, "RecognizableVisualFeatures") == "YES":
        signs.append("recognizable_features")
    if "Secondary Capture" in _class_name(dataset) or dataset.get("ConversionType") is not None:
        signs.append("secondary_capture")
    if any("SCREEN" in value for value in image_type) or "LABEL" in image_type:
        signs.append("screen_or_label")
    if "PixelData" in dataset and "Segmentation" not in _class_name(dataset):
        signs += _pixel_signs(dataset)
    return tuple(signs)


def _pixel_signs(dataset: Dataset) -> list[str]:
    """Return the signs in the pixels of an image."""
    from pydicom.pixels import pixel_array

    try:
        count = max(1, int(dataset.get("NumberOfFrames") or 1))
        frames = sorted({0, count // 2, count - 1})[:CHECKED_FRAMES]
        images = [pixel_array(dataset, index=index, raw=True) for index in frames]
    except Exception:  # decoders raise many kinds; their messages may repeat values of the file
        return ["unreadable_pixels"]
    return ["text_in_pixels"] if any(map(has_text, images)) else []


def has_text(image: np.ndarray) -> bool:
    """Return True if the brightest or darkest pixels of an image look like lines of text.

    Args:
        image: Values, (height, width) or (height, width, channels).
    """
    gray = image.max(axis=2) if image.ndim == 3 else image
    if gray.ndim != 2 or gray.min() == gray.max():
        return False
    scaled = (gray.astype(np.float32) - gray.min()) / (float(gray.max()) - float(gray.min()))
    return any(_has_bright_text(image, distance) for image in (scaled, 1 - scaled) for distance in EXTREME_DISTANCES)


def _has_bright_text(image: np.ndarray, distance: float) -> bool:
    """Return True if the brightest pixels of an image look like lines of text.

    Args:
        image: Values in [0, 1], (height, width).
        distance: Largest distance from 1 of a pixel of a stroke.
    """
    mask = image >= 1 - distance
    if mask.mean() > MAX_TEXT_SHARE:
        return False
    padded = np.pad(mask, 1)
    starts = padded[1:-1, 1:-1] & ~padded[1:-1, :-2]
    before = np.pad(image, ((0, 0), (EDGE_PIXELS, 0)), mode="edge")[:, :-EDGE_PIXELS]
    runs = (starts & (before <= 1 - distance - MIN_CONTRAST)).sum(axis=1)
    pixels = mask.sum(axis=1)
    continued = (mask & (padded[:-2, 1:-1] | padded[2:, 1:-1])).sum(axis=1)
    is_text_row = (runs >= MIN_RUNS) & (pixels <= MAX_RUN * runs) & (continued >= MIN_COHERENCE * pixels)
    rows = np.convolve(is_text_row, np.ones(MIN_TEXT_ROWS, int), "valid")
    return bool((rows == MIN_TEXT_ROWS).any())


def _code(dataset: Dataset, keyword: str) -> str:
    """Return a coded value in upper case, as the standard demands; empty if there is none."""
    return str(dataset.get(keyword) or "").strip().upper()


def _class_name(dataset: Dataset) -> str:
    """Return the name of an image's SOP class."""
    from pydicom.uid import UID

    return UID(str(dataset.get("SOPClassUID") or "")).name


def _values(value: object) -> list[object]:
    """Return the values of an element with one or several values."""
    if value is None or isinstance(value, str):
        return [value] if value else []
    return list(value)  # type: ignore[call-overload]
