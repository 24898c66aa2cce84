"""Read masks: of 2-D images from image files or DICOM-SEG, and of volumes from NIfTI, NRRD, MHA, DICOM-SEG or RTSTRUCT.

Masks of 2-D images: a pixel of a DICOM-SEG is lesion if any of its segments contains it, with a fraction of at least
one half if the file stores fractions. Overlaps of segments do not matter.

Masks of volumes (`read_volume_mask`) are returned on the grid of their image:

- A mask with the same voxel edges, directions and voxel centres as its image, which may cover only a part of it or run
  along its axes in another order, is copied voxel by voxel. A DICOM-SEG often contains only the slices with segments.
- A mask on another grid is refused, or on request resampled to the nearest voxel.
- A voxel is inside an RTSTRUCT contour if its centre is. Where contours of one structure overlap in a slice, the
  overlap is outside (a hole), as in the standard. Contours must lie in slices of the image.
- A mask that reaches beyond its image is refused, and so is a DICOM mask in another frame of reference.

`highdicom` decodes DICOM-SEG. Nothing else of a file is kept, in particular no patient data and no names of structures.
Messages never name a file.

Source: DICOM PS3.3 A.51 (segmentation), A.91 (label map segmentation), C.8.8.6 (contours).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from medfl.data.readers.dicom_header import MAX_PIXELS, decoding, read_elements
from medfl.data.readers.dicom_series import MAX_VOXELS, ImageSource, source_files
from medfl.data.readers.images import file_kind, read_voxels, volume_grid
from medfl.data.readers.pillow_images import FORMATS, read_pillow_image
from medfl.data.readers.volumes import SpatialGrid, Volume, resample_labels, share_inside, voxel_edges
from medfl.errors import DataError, pip_install

if TYPE_CHECKING:
    from pydicom import Dataset

SEGMENTATION_SUFFIX = ".dcm"
"""File name suffix of a DICOM-SEG, in lower case."""

MASK_SUFFIXES = (*FORMATS, SEGMENTATION_SUFFIX)
"""File name suffixes of masks, in lower case."""

MIN_FRACTION = 0.5
"""Minimum fraction of a lesion pixel, in a file that stores for each pixel which fraction of it a segment covers."""

_SOP_CLASSES = ("1.2.840.10008.5.1.4.1.1.66.4", "1.2.840.10008.5.1.4.1.1.66.7")
"""SOP class UIDs of segmentation and label map segmentation."""

_STRUCTURE_SET = "1.2.840.10008.5.1.4.1.1.481.3"
"""SOP class UID of an RTSTRUCT."""

_CLOSED_CONTOURS = ("CLOSED_PLANAR", "CLOSEDPLANAR_XOR")
"""Types of contours that enclose voxels; points and open lines of a structure enclose none."""

GRID_TOLERANCE_MM = 0.05
"""Largest distance, in millimetres, of a corner of a mask's grid from the voxel grid of its image."""

CONTOUR_TOLERANCE = 0.1
"""Largest distance of a contour's points from the centre of a slice, in slices."""

MAX_STRUCTURES = 255
"""Largest number of structures of a mask, without the background."""

_LPS_TO_RAS = np.diag([-1.0, -1.0, 1.0, 1.0])


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
    head = read_elements(path, pixels=False)
    with decoding():
        kind = str(head.get("SOPClassUID", ""))
    if kind not in _SOP_CLASSES:
        raise DataError(
            "unsupported_file",
            "expected a DICOM segmentation (DICOM-SEG) as mask, got another kind of DICOM. Export the mask.",
            expected="DICOM-SEG",
        )
    _check_segmentation(head, MAX_PIXELS)
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


def read_volume_mask(
    path: Path, image: ImageSource, structures: Sequence[str] = (), *, resample: bool = False
) -> np.ndarray:
    """Read the mask of a volume on the grid of its image; see the module for the rules.

    Args:
        path: NIfTI, NRRD, MHA, DICOM-SEG or RTSTRUCT file.
        image: File of the volume, or the files of its DICOM series.
        structures: Names of the structures to read, without the background. Structure n, from 1, has the number n. In
            DICOM files it is the segment or region of interest with this name, in any case of letters; a voxel in
            several structures gets the last one. In other files the voxels hold the numbers. If empty, there is one
            structure: all segments or regions of a DICOM file, or the voxels that `one_structure` finds.
        resample: Whether a mask on another grid is resampled to the nearest voxel; otherwise it is refused.

    Returns:
        Structure number of each voxel, 0 outside, uint8, (D, H, W): the shape and orientation of
        `medfl.data.readers.images.read_image` before it resizes the image (`medfl.data.readers.images.volume_grid`).

    Raises:
        DataError: If the file can't be read, lies on another grid and `resample` is False, reaches beyond its image, or
            contains none of the structures.
    """
    if len(structures) > MAX_STRUCTURES:
        raise DataError(
            "too_many_structures",
            f"expected up to {MAX_STRUCTURES} structures, got {len(structures)}. Leave some out.",
            maximum=MAX_STRUCTURES,
            found=len(structures),
        )
    grid = volume_grid(image)
    if file_kind(path) == "volume":
        voxels = read_voxels(path)
        return _place(Volume(_structure_numbers(voxels.values, structures), voxels.affine), grid, resample)
    head = read_elements(path, pixels=False)
    with decoding():
        kind = str(head.get("SOPClassUID", ""))
    if kind == _STRUCTURE_SET:
        return _read_structure_set(head, grid, structures, _frame_of_reference(image), resample)
    if kind not in _SOP_CLASSES:
        raise DataError(
            "unsupported_file",
            "expected NIfTI, NRRD, MHA, DICOM-SEG or RTSTRUCT as mask of a volume, got another file. Export the mask.",
            expected=["NIfTI", "NRRD", "MHA", "DICOM-SEG", "RTSTRUCT"],
        )
    _check_segmentation(head, MAX_VOXELS)
    _check_frame_of_reference(str(head.get("FrameOfReferenceUID") or ""), _frame_of_reference(image))
    return _place(_read_segments(path, structures), grid, resample)


def one_structure(values: np.ndarray) -> np.ndarray:
    """Return 1 where a mask of one structure has a value other than 0, such as 255, uint8.

    Raises:
        DataError: If the mask has several values other than 0, or one that is not finite.
    """
    inside = values != 0
    present = np.unique(values[inside])
    if not np.isfinite(present).all():
        raise DataError("not_finite", "the mask has values that are not finite (NaN or infinite). Replace them by 0.")
    if len(present) > 1:
        raise DataError(
            "ambiguous_mask",
            f"the mask holds {len(present)} values beside 0, expected one. Name the structures in the order of their "
            "values with --structures, or save the mask without smooth edges, not as JPEG.",
            count=len(present),
        )
    return inside.astype(np.uint8)


def _check_segmentation(head: Dataset, maximum: int) -> None:
    """Raise if a DICOM-SEG claims too many pixels, or `highdicom` is not installed."""
    with decoding():
        pixels = int(head.get("Rows", 0)) * int(head.get("Columns", 0)) * int(head.get("NumberOfFrames") or 1)
    if not 1 <= pixels <= maximum:
        raise DataError(
            "invalid_image_size",
            f"expected a DICOM segmentation of 1 to {maximum // 10**6} million pixels, its header states another "
            "size. Export it again.",
            maximum=maximum,
        )
    if find_spec("highdicom") is None:
        raise DataError(
            "missing_package",
            f"masks as DICOM-SEG need another package: {pip_install('highdicom')}, or export them as PNG or NIfTI.",
            package="highdicom",
            extra="highdicom",
        )


def _structure_numbers(values: np.ndarray, structures: Sequence[str]) -> np.ndarray:
    """Return the structure numbers in a volume file, uint8.

    Raises:
        DataError: If a value is no structure number.
    """
    if not structures:
        return one_structure(values)
    wrong = ~((values >= 0) & (values <= len(structures)) & (values == np.floor(values)))
    if wrong.any():
        raise DataError(
            "wrong_label",
            f"the mask holds {values[wrong][0]:g}, expected whole numbers from 0 to {len(structures)}. Correct the "
            "mask, or the list of structures.",
            found=float(values[wrong][0]),
            maximum=len(structures),
        )
    return values.astype(np.uint8)


def _numbers_of(names: Sequence[str], structures: Sequence[str]) -> list[list[int]]:
    """Return the positions in `names` of each structure; without structures, all positions together.

    Raises:
        DataError: If no name is that of a structure.
    """
    if not structures:
        return [list(range(len(names)))]
    plain = [name.strip().casefold() for name in names]
    places = [[place for place, name in enumerate(plain) if name == wanted.strip().casefold()] for wanted in structures]
    if not any(places):
        raise DataError(
            "missing_structure",
            f"expected a segment or region named {' or '.join(structures)}, the file has {len(names)} with other "
            "names. Correct the list of structures.",
            expected=list(structures),
            count=len(names),
        )
    return places


def _read_segments(path: Path, structures: Sequence[str]) -> Volume:
    """Read a DICOM-SEG as structure numbers, (slices, rows, columns), with its position in space."""
    import highdicom

    with decoding():
        segmentation = highdicom.seg.segread(path)
        numbers = list(segmentation.segment_numbers)
        names = [str(segmentation.get_segment_description(number).segment_label) for number in numbers]
        geometry = segmentation.get_volume_geometry()
    places = _numbers_of(names, structures)
    if geometry is None:
        raise DataError(
            "misaligned_mask",
            "the frames of the DICOM segmentation form no regular grid, so they lie on another grid than the image. "
            "Export it for one series.",
        )
    if np.prod(geometry.spatial_shape, dtype=np.int64) > MAX_VOXELS:
        raise DataError(
            "invalid_image_size",
            f"expected a DICOM segmentation of up to {MAX_VOXELS // 10**6} million voxels. Export it again.",
            maximum=MAX_VOXELS,
        )
    labels = np.zeros(geometry.spatial_shape, dtype=np.uint8)
    for structure, segments in enumerate(places, 1):
        for segment in segments:
            with decoding():
                inside = segmentation.get_volume(segment_numbers=[numbers[segment]]).array[..., 0]
            labels[inside >= MIN_FRACTION] = structure
    return Volume(labels, _LPS_TO_RAS @ np.asarray(geometry.affine))


def _place(mask: Volume, grid: SpatialGrid, resample: bool) -> np.ndarray:
    """Return structure numbers on the grid of an image, uint8."""
    to_grid = np.linalg.inv(grid.affine) @ mask.affine
    whole = np.round(to_grid)
    turn = np.abs(whole[:3, :3])
    ends = [(0, length - 1) for length in mask.values.shape]
    corners = np.array([[x, y, z, 1] for x in ends[0] for y in ends[1] for z in ends[2]]).T
    distances = ((to_grid - whole) @ corners)[:3] * voxel_edges(grid.affine)[:, None]
    aligned = (turn.sum(axis=0) == 1).all() and (turn.sum(axis=1) == 1).all()
    aligned = bool(aligned and np.abs(distances).max() <= GRID_TOLERANCE_MM)
    if not aligned and not resample:
        raise DataError(
            "misaligned_mask",
            "the mask lies on another grid than its image: their voxels differ in size, direction or place. Resample "
            "the mask to its image, or export both from one series.",
        )
    inside = mask.values != 0
    if inside.any() and share_inside(inside, mask.affine, grid) < 1:
        raise _outside_error()
    return _copy(mask.values, whole, grid.shape) if aligned else _resample(mask, grid)


def _copy(values: np.ndarray, to_grid: np.ndarray, shape: tuple[int, int, int]) -> np.ndarray:
    """Copy structure numbers to a grid; `to_grid` permutes and flips axes and shifts by whole voxels."""
    source_axes = [int(np.abs(to_grid[axis, :3]).argmax()) for axis in range(3)]
    signs = [to_grid[axis, source] for axis, source in enumerate(source_axes)]
    turned = values.transpose(source_axes)
    turned = np.flip(turned, tuple(axis for axis, sign in enumerate(signs) if sign < 0))
    labels = np.zeros(shape, dtype=np.uint8)
    targets, sources = [], []
    for axis, sign in enumerate(signs):
        length = turned.shape[axis]
        start = int(to_grid[axis, 3]) - (length - 1 if sign < 0 else 0)
        low, high = max(start, 0), min(start + length, shape[axis])
        targets.append(slice(low, max(low, high)))
        sources.append(slice(low - start, max(low, high) - start))
    labels[tuple(targets)] = turned[tuple(sources)]
    return labels


def _resample(mask: Volume, grid: SpatialGrid) -> np.ndarray:
    """Return the structure number of the nearest voxel of a mask for each voxel of a grid, slab by slab."""
    labels = np.zeros(grid.shape, dtype=np.uint8)
    for number in range(grid.shape[0]):
        affine = grid.affine.copy()
        affine[:3, 3] += number * grid.affine[:3, 0]
        labels[number] = resample_labels(mask, SpatialGrid((1, *grid.shape[1:]), affine))[0]
    return labels


# ---- RTSTRUCT


def _read_structure_set(
    header: Dataset, grid: SpatialGrid, structures: Sequence[str], frame_of_reference: str, resample: bool
) -> np.ndarray:
    """Return the structures of an RTSTRUCT on the grid of an image, uint8."""
    with decoding():
        regions = list(header.get("StructureSetROISequence") or ())
        names = [str(region.get("ROIName") or "") for region in regions]
        numbers = [int(region.ROINumber) for region in regions]
    places = _numbers_of(names, structures)
    labels = np.zeros(grid.shape, dtype=np.uint8)
    for structure, chosen in enumerate(places, 1):
        for place in chosen:
            with decoding():
                _check_frame_of_reference(
                    str(regions[place].get("ReferencedFrameOfReferenceUID") or ""), frame_of_reference
                )
                contours = list(_contours(header, numbers[place]))
            labels[_fill(contours, grid, resample)] = structure
    return labels


def _contours(header: Dataset, number: int) -> Iterator[np.ndarray]:
    """Yield the closed contours of a region of interest, each (points, 3), in millimetres in RAS convention."""
    for region in header.get("ROIContourSequence") or ():
        if int(region.ReferencedROINumber) != number:
            continue
        for contour in region.get("ContourSequence") or ():
            if str(contour.get("ContourGeometricType") or "") in _CLOSED_CONTOURS:
                data = contour.ContourData
                if isinstance(data, bytes):  # long values are often stored without their type
                    data = data.decode("ascii").split("\\")
                points = np.array([float(edge) for edge in data]).reshape(-1, 3)
                if not np.isfinite(points).all():
                    raise ValueError("not finite")
                yield points * [-1, -1, 1]


def _fill(contours: Sequence[np.ndarray], grid: SpatialGrid, resample: bool) -> np.ndarray:
    """Return the voxels inside an odd number of contours of one structure, bool, of the grid's shape."""
    from matplotlib.path import Path as Polygon

    inside = np.zeros(grid.shape, dtype=bool)
    back = np.linalg.inv(grid.affine)
    for points in contours:
        places = points @ back[:3, :3].T + back[:3, 3]
        axis = int(np.ptp(places, axis=0).argmin())
        number = round(float(places[:, axis].mean()))
        if np.abs(places[:, axis] - number).max() > (0.5 if resample else CONTOUR_TOLERANCE):
            raise DataError(
                "misaligned_mask",
                "a contour of the RTSTRUCT does not lie in a slice of the image, so it was drawn on another grid. Give "
                "the series on which it was drawn, or resample it.",
            )
        others = [other for other in range(3) if other != axis]
        flat = places[:, others]
        ends = np.array([grid.shape[other] for other in others]) - 0.5
        if not 0 <= number < grid.shape[axis] or (flat < -0.5).any() or (flat > ends).any():
            raise _outside_error()
        low, high = np.ceil(flat.min(axis=0)).astype(int), np.floor(flat.max(axis=0)).astype(int) + 1
        rows, columns = np.arange(low[0], high[0]), np.arange(low[1], high[1])
        centres = np.stack(np.meshgrid(rows, columns, indexing="ij"), axis=-1).reshape(-1, 2)
        filled = Polygon(np.vstack([flat, flat[:1]])).contains_points(centres).reshape(len(rows), len(columns))
        window: list[Any] = [slice(low[0], high[0]), slice(low[1], high[1])]
        window.insert(axis, number)
        inside[tuple(window)] ^= filled
    return inside


def _frame_of_reference(image: ImageSource) -> str:
    """Return the UID of the coordinate system of a DICOM image; empty for other files."""
    first = source_files(image)[0]
    if file_kind(first) != "dicom":
        return ""
    header = read_elements(first, pixels=False, tags=["FrameOfReferenceUID"])
    with decoding():
        return str(header.get("FrameOfReferenceUID") or "")


def _check_frame_of_reference(mask: str, image: str) -> None:
    """Raise if a mask and its image state different coordinate systems."""
    if mask and image and mask != image:
        raise DataError(
            "other_frame_of_reference",
            "the mask belongs to another DICOM frame of reference than the image, so to another study or patient. Give "
            "the mask of this image.",
        )


def _outside_error() -> DataError:
    """Return the error for a mask that reaches beyond its image."""
    return DataError(
        "mask_outside_image",
        "the mask marks voxels outside of its image, so it belongs to another image or series. Give the mask of this "
        "image.",
    )
