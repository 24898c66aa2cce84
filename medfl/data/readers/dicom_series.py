"""Read DICOM series as volumes: find the slices, check their geometry, stack them with their position in space.

A series is the set of slices with one SeriesInstanceUID, in files of one frame each or in one file with several frames
(enhanced CT, MR or PET). The slices are ordered along their normal, the cross product of the row and column directions
of ImageOrientationPatient, by ImagePositionPatient. Instance numbers and file names do not matter.

The slices must form a regular grid: equal sizes, pixel spacings and directions, equal distances, and positions on one
line along the normal. Other series are refused with a reason, because a volume would show the anatomy distorted: a
tilted gantry, missing slices, several images at one position (echoes, phases, repetitions).

Messages never name a file or repeat a header's text; series are described by modality, plane, size and spacing.

Source: DICOM PS3.3 C.7.6.2 (planes), C.7.6.16 (functional groups of files with several frames).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from medfl.data.readers.dicom import read_dicom, read_frame
from medfl.data.readers.dicom_header import decoding, open_dicom
from medfl.data.readers.dicom_identity import check_identity, is_burned_in, refuse_identity
from medfl.data.readers.image_reading import DEFAULT_READING, ImageReading
from medfl.data.readers.suv import suv_factor
from medfl.errors import DataError

if TYPE_CHECKING:
    from pydicom import Dataset

MAX_VOXELS = 512 * 512 * 2048
"""Maximum number of voxels of a volume."""

TOLERANCE = 0.02
"""Largest accepted relative difference between the pixel spacings, or between the distances of slices, of a series.
Scanners round positions; a missing slice changes a distance by 100 %."""

MIN_DISTANCE_MM = 0.01
"""Distance along the normal, in millimetres, up to which two slices are at one position; also the absolute tolerance of
distances."""

MAX_TILT_DEGREES = 0.2
"""Largest accepted angle between the line through the slices' positions and their normal."""

MAX_DIRECTION_ERROR = 1e-3
"""Largest accepted difference between the direction cosines of a series; the cosines of one slice may be ten times as
far from perpendicular unit vectors."""


@dataclass(frozen=True)
class SeriesFiles:
    """Files of the slices of one DICOM series, in any order.

    Attributes:
        paths: Paths of the files.
    """

    paths: tuple[Path, ...]


ImageSource = Path | SeriesFiles
"""Source of one image or volume: a file, or the files of a DICOM series."""


def source_files(source: ImageSource) -> list[Path]:
    """Return the files of an image."""
    return list(source.paths) if isinstance(source, SeriesFiles) else [source]


@dataclass(frozen=True)
class SlicePlane:
    """One slice of a series and its plane in space, in the LPS coordinates of DICOM in millimetres.

    Attributes:
        path: File of the slice.
        frame: Number of the frame in the file, from 0; None if the file contains one image.
        shape: Rows and columns.
        spacing: Distance between rows, and between columns, in millimetres.
        position: Centre of the first pixel, (3,).
        row: Direction in which the column number grows, a unit vector (3,).
        column: Direction in which the row number grows, a unit vector (3,).
    """

    path: Path
    frame: int | None
    shape: tuple[int, int]
    spacing: tuple[float, float]
    position: np.ndarray
    row: np.ndarray
    column: np.ndarray

    @property
    def normal(self) -> np.ndarray:
        """Direction along which slices are ordered, a unit vector (3,)."""
        return np.cross(self.row, self.column)


@dataclass(frozen=True)
class SeriesGeometry:
    """Grid of the volume of a series.

    Attributes:
        slices: Slices in the order of the volume.
        affine: Affine (4, 4) from voxel indices (column, row, slice) to millimetres, in RAS convention as in NIfTI.
        modality: Modality that the first file states, or empty.
        frame_of_reference: UID of the coordinate system, or empty.
    """

    slices: tuple[SlicePlane, ...]
    affine: np.ndarray
    modality: str
    frame_of_reference: str

    @property
    def shape(self) -> tuple[int, int, int]:
        """Number of columns, rows and slices."""
        rows, columns = self.slices[0].shape
        return columns, rows, len(self.slices)


@dataclass(frozen=True)
class DicomVolume:
    """Volume of a series.

    Attributes:
        values: Modality values, such as HU in CT, or SUV; (columns, rows, slices), float32.
        geometry: Grid of the volume.
        inverted: Whether large values are dark (MONOCHROME1).
    """

    values: np.ndarray
    geometry: SeriesGeometry
    inverted: bool


def inspect_series(
    paths: Sequence[Path], check: str = "strip", reading: ImageReading = DEFAULT_READING
) -> SeriesGeometry:
    """Return the grid of a series from the headers of its files. Pixels are not read.

    Args:
        paths: Files of one series.
        check: Treatment of files that may identify the patient: ``strip`` accepts them, ``refuse`` raises.
        reading: Rule by which the series will be read.

    Raises:
        DataError: If a file can't be read, is in colour, or does not state its plane; if the slices form no regular
            grid; or if the values lack the unit that `reading` needs.
    """
    slices: list[SlicePlane] = []
    headers: list[Dataset] = []
    for path in paths:
        header = open_dicom(path, pixels=False, several_frames=True)
        if header.SamplesPerPixel != 1:
            raise DataError("colour_image", "expected a series of grey slices, got colours. Export it in grey.")
        if check == "refuse":
            with decoding():
                refuse_identity(check_identity(header), is_burned_in(header))
        slices += planes_of(path, header)
        headers.append(header)
    check_units(headers, reading)
    with decoding():
        meanings = {str(header.PhotometricInterpretation) for header in headers}
        modality = str(headers[0].get("Modality") or "")
        frame_of_reference = str(headers[0].get("FrameOfReferenceUID") or "")
    if len(meanings) > 1:
        raise DataError(
            "mixed_formats", "expected slices of one kind, got some with dark and some with bright large values."
        )
    ordered, affine = _order_slices(slices)
    return SeriesGeometry(tuple(ordered), affine, modality, frame_of_reference)


def check_units(headers: Sequence[Dataset], reading: ImageReading) -> float:
    """Check that the values of DICOM files have the unit that a rule needs.

    Args:
        headers: Headers of one grey image, or of all slices of one series.
        reading: Rule by which the image will be read.

    Returns:
        Factor by which values after rescaling are multiplied: 1, or the factor of SUV.

    Raises:
        DataError: If the modality is wrong, the files do not state Hounsfield units although the rule is a named window
            of CT, or SUV can't be computed.
    """
    with decoding():
        modality = str(headers[0].get("Modality") or "")
    reading.require_units("dicom", deep=True, modality=modality)
    if reading.scale == "suv":
        return suv_factor(headers)
    if not reading.hounsfield:
        return 1.0
    for header in headers:
        frames = range(len(header.get("PerFrameFunctionalGroupsSequence") or [None]))
        for rescaling in (_rescaling(header, frame) for frame in frames):
            with decoding():
                stated = all(rescaling.get(name) is not None for name in ("RescaleSlope", "RescaleIntercept"))
                stated = stated or "ModalityLUTSequence" in rescaling
                unit = str(rescaling.get("RescaleType") or "HU")
            if not stated or unit != "HU":
                raise DataError(
                    "missing_element",
                    "the CT file does not state Hounsfield units by RescaleIntercept, RescaleSlope and RescaleType. "
                    "Export the series again, or give --window LEVEL,WIDTH in the unit of the file.",
                    name="RescaleIntercept" if not stated else "RescaleType",
                )
    return 1.0


def read_series(paths: Sequence[Path], reading: ImageReading = DEFAULT_READING) -> DicomVolume:
    """Read a series as a volume.

    Args:
        paths: Files of one series.
        reading: Rule whose unit the values get: SUV for the scale ``suv``, otherwise the unit of the files.

    Raises:
        DataError: As in `inspect_series`, or if pixels can't be decoded.
    """
    geometry = inspect_series(paths, reading=reading)
    values = np.empty(geometry.shape[::-1], dtype=np.float32)  # slice by slice in memory
    opened: dict[Path, Dataset] = {}
    for number, plane in enumerate(geometry.slices):
        if plane.frame is None:
            image = read_dicom(plane.path)
            pixels = image.values()
        else:
            if plane.path not in opened:
                opened = {plane.path: open_dicom(plane.path, several_frames=True)}
            dataset = opened[plane.path]
            pixels = read_frame(dataset, plane.frame, _rescaling(dataset, plane.frame))
        with decoding():  # a file that changed since its header was read has another size
            values[number] = pixels
    needs_all = reading.scale == "suv"
    headers = [open_dicom(path, pixels=False, several_frames=True) for path in (paths if needs_all else paths[:1])]
    if needs_all:
        values *= np.float32(check_units(headers, reading))
    return DicomVolume(values.transpose(2, 1, 0), geometry, str(headers[0].PhotometricInterpretation) == "MONOCHROME1")


def plane_of(normal: np.ndarray) -> str:
    """Return the one of `medfl.data.readers.image_reading.PLANES` that is nearest to the plane with a normal, (3,)."""
    return {2: "axial", 1: "coronal", 0: "sagittal"}[int(np.abs(normal).argmax())]


def planes_of(path: Path, header: Dataset) -> list[SlicePlane]:
    """Return the planes of all frames of a file.

    Args:
        path: Path of the file.
        header: Its header.

    Raises:
        DataError: If the file does not state its planes.
    """
    with decoding():
        frames = int(header.get("NumberOfFrames") or 1)
        groups = header.get("PerFrameFunctionalGroupsSequence")
        if frames == 1 and not groups:
            return [_plane(path, None, header, [header])]
        if not groups or len(groups) != frames:
            raise DataError(
                "several_frames",
                f"the image file holds {frames} frames without a position in space, expected one image or the slices "
                "of a volume. Save the frame to use in its own file.",
                found=frames,
            )
        shared = list(header.get("SharedFunctionalGroupsSequence") or ())
        places = [[groups[frame], *shared] for frame in range(frames)]
        return [_plane(path, frame, header, where) for frame, where in enumerate(places)]


def _plane(path: Path, frame: int | None, header: Dataset, places: Sequence[Dataset]) -> SlicePlane:
    """Return the plane of a frame; `places` are the data sets that may state it, the first one first."""
    position = _numbers(places, "PlanePositionSequence", "ImagePositionPatient", 3)
    directions = _numbers(places, "PlaneOrientationSequence", "ImageOrientationPatient", 6)
    spacing = _numbers(places, "PixelMeasuresSequence", "PixelSpacing", 2)
    row, column = directions[:3], directions[3:]
    lengths = np.linalg.norm([row, column], axis=1)
    if np.abs(lengths - 1).max() > MAX_DIRECTION_ERROR * 10 or abs(row @ column) > MAX_DIRECTION_ERROR * 10:
        raise DataError(
            "invalid_orientation",
            "expected two perpendicular unit vectors in ImageOrientationPatient, got others. Export the series again.",
        )
    if spacing.min() <= 0:
        raise DataError("invalid_spacing", "expected a PixelSpacing above 0, got another one. Export the series again.")
    shape = (int(header.Rows), int(header.Columns))
    return SlicePlane(path, frame, shape, (spacing[0], spacing[1]), position, row / lengths[0], column / lengths[1])


def _numbers(places: Sequence[Dataset], group: str, name: str, count: int) -> np.ndarray:
    """Return the numbers in an element, which may be in a functional group."""
    for place in places:
        inner = place.get(group)
        value = (inner[0] if inner else place).get(name)
        if value is not None and not isinstance(value, str) and np.size(value) == count:
            numbers = np.array([float(number) for number in value])
            if np.isfinite(numbers).all():
                return numbers
    raise DataError(
        "missing_element",
        f"the DICOM file lacks {name}, which a volume needs. Export the series again, or prepare its slices as images.",
        name=name,
    )


def _rescaling(dataset: Dataset, frame: int) -> Dataset:
    """Return the data set with rescale slope and intercept of a frame."""
    with decoding():
        places: list[Any] = list(dataset.get("PerFrameFunctionalGroupsSequence") or ())[frame : frame + 1]
        places += list(dataset.get("SharedFunctionalGroupsSequence") or ())
        for place in places:
            inner = place.get("PixelValueTransformationSequence")
            if inner:
                return inner[0]
    return dataset


def _order_slices(slices: Sequence[SlicePlane]) -> tuple[list[SlicePlane], np.ndarray]:
    """Return slices in the order of their normal, and the affine in RAS convention.

    Raises:
        DataError: If they form no regular grid.
    """
    first = slices[0]
    _check_equal_planes(slices)
    if math.prod(first.shape) * len(slices) > MAX_VOXELS:
        raise DataError(
            "invalid_image_size",
            f"expected a volume of up to {MAX_VOXELS // 10**6} million voxels, the headers of the series state more.",
            maximum=MAX_VOXELS,
        )
    if len(slices) < 2:
        raise DataError(
            "single_slice", "expected a series of at least two slices for a volume, got one.", expected=2, found=1
        )
    normal = first.normal
    ordered = sorted(slices, key=lambda plane: float(plane.position @ normal))
    steps = np.diff([plane.position for plane in ordered], axis=0)
    _check_distances(steps @ normal)
    tilt = np.degrees(np.arctan2(np.linalg.norm(steps - np.outer(steps @ normal, normal), axis=1), steps @ normal))
    if tilt.max() > MAX_TILT_DEGREES:
        raise DataError(
            "gantry_tilt",
            f"expected slices on a line along their normal, got an angle of {tilt.max():.1f} degrees: the gantry was "
            "tilted, or the slices belong to several volumes. Convert the series to NIfTI with a tool that corrects "
            "the tilt, such as dcm2niix.",
            degrees=round(float(tilt.max()), 2),
        )
    affine = np.eye(4)
    affine[:3, 0] = first.row * first.spacing[1]
    affine[:3, 1] = first.column * first.spacing[0]
    affine[:3, 2] = (ordered[-1].position - ordered[0].position) / (len(ordered) - 1)
    affine[:3, 3] = ordered[0].position
    return ordered, np.diag([-1.0, -1.0, 1.0, 1.0]) @ affine


def _check_equal_planes(slices: Sequence[SlicePlane]) -> None:
    """Raise if slices differ in size, pixel spacing or direction."""
    first = slices[0]
    shapes = sorted({plane.shape for plane in slices})
    if len(shapes) > 1:
        raise DataError(
            "mixed_sizes",
            f"expected slices of one size, got {len(shapes)} sizes, such as {shapes[0][0]} x {shapes[0][1]} and "
            f"{shapes[-1][0]} x {shapes[-1][1]}. Split the series.",
            found=[list(shape) for shape in shapes],
        )
    spacings = np.array([plane.spacing for plane in slices])
    if (np.ptp(spacings, axis=0) > TOLERANCE * spacings.min(axis=0)).any():
        raise DataError(
            "mixed_spacing",
            f"expected slices of one pixel spacing, got {spacings.min():.4g} to {spacings.max():.4g} mm. Split the "
            "series.",
            minimum=float(spacings.min()),
            maximum=float(spacings.max()),
        )
    directions = np.array([np.concatenate([plane.row, plane.column]) for plane in slices])
    if np.abs(directions - np.concatenate([first.row, first.column])).max() > MAX_DIRECTION_ERROR:
        raise DataError(
            "mixed_orientation",
            "expected parallel slices, got several directions: the series is a localizer or a rotation, or consists "
            "of several volumes. Split the series.",
        )


def _check_distances(distances: np.ndarray) -> None:
    """Raise if the distances of neighbouring slices along the normal, in millimetres, differ."""
    same = int((distances <= MIN_DISTANCE_MM).sum())
    if same:
        raise DataError(
            "duplicate_slices",
            f"expected one image at each position, got {same} more: the series has copies of slices, or several "
            "echoes, phases or repetitions. Keep one of them.",
            count=same,
        )
    usual = float(np.median(distances))
    wrong = np.abs(distances - usual) > max(MIN_DISTANCE_MM, TOLERANCE * usual)
    if not wrong.any():
        return
    multiples = distances[wrong] / usual
    if (np.abs(multiples - np.round(multiples)) < TOLERANCE * multiples).all() and (multiples > 1.5).all():
        count = int(np.round(multiples - 1).sum())
        raise DataError(
            "missing_slices",
            f"expected slices every {usual:.4g} mm, {count} are missing between others. Export the series again.",
            count=count,
            spacing=usual,
        )
    raise DataError(
        "uneven_spacing",
        f"expected slices at equal distances, got {distances.min():.4g} to {distances.max():.4g} mm. Resample the "
        "series, or export one of equal distances.",
        minimum=float(distances.min()),
        maximum=float(distances.max()),
    )
