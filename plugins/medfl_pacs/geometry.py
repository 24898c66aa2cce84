"""Plane, number of slices and spacing of a series, read from its headers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from pydicom import Dataset

MIN_COSINE = 0.8
"""Minimum cosine between the normal of a slice and a body axis, for the slice to belong to that axis' plane."""

_PLANES = ("sagittal", "coronal", "axial")


@dataclass(frozen=True)
class Geometry:
    """Geometry of a series.

    Attributes:
        plane: ``axial``, ``coronal``, ``sagittal`` or ``oblique``; empty if unknown.
        slices: Number of slices or frames.
        row_spacing_mm: Distance of rows; None if unknown.
        column_spacing_mm: Distance of columns; None if unknown.
        slice_spacing_mm: Median distance of slices; None if unknown.
    """

    plane: str
    slices: int
    row_spacing_mm: float | None
    column_spacing_mm: float | None
    slice_spacing_mm: float | None


def read_geometry(headers: Sequence[Dataset]) -> Geometry:
    """Return the geometry of a series.

    Args:
        headers: Data sets of all files, at least one; pixels are not needed.
    """
    first = headers[0]
    slices = sum(max(1, int(_number(header.get("NumberOfFrames")) or 1)) for header in headers)
    spacing = _vector(_first(first, "PixelSpacing"), 2) or _vector(first.get("ImagerPixelSpacing"), 2)
    orientation = _vector(_first(first, "ImageOrientationPatient"), 6)
    plane, distance = "", None
    if orientation:
        normal = np.cross(orientation[:3], orientation[3:])
        axis = int(np.abs(normal).argmax())
        plane = _PLANES[axis] if abs(normal[axis]) >= MIN_COSINE else "oblique"
        points = [_vector(point, 3) for header in headers for point in _all(header, "ImagePositionPatient")]
        depths = np.unique(np.round([np.dot(point, normal) for point in points if point], 3))
        distance = round(float(np.median(np.diff(depths))), 4) if len(depths) > 1 else None
    if distance is None:
        distance = _number(_first(first, "SpacingBetweenSlices"))
    return Geometry(plane, slices, spacing[0] if spacing else None, spacing[1] if spacing else None, distance)


def _all(header: Dataset, keyword: str) -> Iterator[Any]:
    """Yield the values of an element in a header and in its functional groups."""
    if header.get(keyword) is not None:
        yield header.get(keyword)
    for group in ("SharedFunctionalGroupsSequence", "PerFrameFunctionalGroupsSequence"):
        for frame in header.get(group) or ():
            for element in frame:
                for item in (element.value or ()) if element.VR == "SQ" else ():
                    if item.get(keyword) is not None:
                        yield item.get(keyword)


def _first(header: Dataset, keyword: str) -> Any:
    """Return the first value of an element in a header and its functional groups, or None."""
    return next(_all(header, keyword), None)


def _vector(value: Any, length: int) -> list[float] | None:
    """Return an element of several numbers, or None if it is not of this length."""
    try:
        numbers = [float(number) for number in value or ()]
    except (TypeError, ValueError):
        return None
    return numbers if len(numbers) == length and np.isfinite(numbers).all() else None


def _number(value: Any) -> float | None:
    """Return an element of one number, or None."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if np.isfinite(number) else None
