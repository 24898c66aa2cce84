"""Read masks: of 2-D images from image files or DICOM-SEG, and of volumes from NIfTI, NRRD, MHA, DICOM-SEG or RTSTRUCT.

Masks of 2-D images: a pixel of a DICOM-SEG is lesion if any of its segments contains it, with a fraction of at least
one half if the file stores fractions. Overlaps of segments do not matter.

Masks of volumes (`read_volume_mask`) are returned on the grid of their image:

- A mask with the same voxel edges, directions and voxel centres as its image, which may cover only a part of it or run
  along its axes in another order, is copied voxel by voxel. A DICOM-SEG often contains only the slices with segments.
- A mask on another grid is refused, or on request resampled to the nearest voxel. Both files must then state their
  position in space, and no structure may disappear.
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
from medfl.data.readers.itk_files import ITK_SUFFIXES, itk_states_position
from medfl.data.readers.mask_placement import VolumeMask, place_mask, refuse_outside
from medfl.data.readers.pillow_images import FORMATS, read_pillow_image
from medfl.data.readers.volumes import SUFFIXES, SpatialGrid, Volume
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
    if path.suffix.lower() == SEGMENTATION_SUFFIX:
        return read_segmentation(path)
    return read_pillow_image(path, scale=lambda values: values)  # the values are numbers of structures


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
) -> VolumeMask:
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
        The mask in the shape and orientation of `medfl.data.readers.images.read_image` before it resizes the image
        (`medfl.data.readers.images.volume_grid`).

    Raises:
        DataError: If the file can't be read, reaches beyond its image, or contains none of the structures; if it lies
            on another grid and `resample` is False, a file does not state its position, or a structure would disappear.
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
        mask = Volume(_structure_numbers(voxels.values, structures), voxels.affine)
        return place_mask(mask, grid, resample, lambda: _check_position(path, image))
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
    return place_mask(_read_segments(path, structures), grid, resample)


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


def _check_position(mask: Path, image: ImageSource) -> None:
    """Raise if a mask or its image does not state its position in space."""
    for path, what in ((mask, "mask"), (source_files(image)[0], "image")):
        if not _states_position(path):
            raise DataError(
                "missing_affine",
                f"the mask lies on another grid than its image, and the {what} does not state its position in space. "
                "Export the mask on the grid of its image, or both with their positions.",
                what=what,
            )


def _states_position(path: Path) -> bool:
    """Return whether the header of a volume file states its position; a DICOM file without one is refused elsewhere."""
    import nibabel

    name = path.name.lower()
    if name.endswith(ITK_SUFFIXES):
        return itk_states_position(path)
    if not name.endswith(SUFFIXES):
        return True
    with decoding():
        header: Any = nibabel.load(path).header
        return bool(int(header["qform_code"]) or int(header["sform_code"]))


# ---- RTSTRUCT


def _read_structure_set(
    header: Dataset, grid: SpatialGrid, structures: Sequence[str], frame_of_reference: str, resample: bool
) -> VolumeMask:
    """Return the structures of an RTSTRUCT on the grid of an image."""
    with decoding():
        regions = list(header.get("StructureSetROISequence") or ())
        names = [str(region.get("ROIName") or "") for region in regions]
        numbers = [int(region.ROINumber) for region in regions]
    places = _numbers_of(names, structures)
    labels, is_resampled = np.zeros(grid.shape, dtype=np.uint8), False
    for structure, chosen in enumerate(places, 1):
        for place in chosen:
            with decoding():
                _check_frame_of_reference(
                    str(regions[place].get("ReferencedFrameOfReferenceUID") or ""), frame_of_reference
                )
                contours = list(_contours(header, numbers[place]))
            filled = _fill(contours, grid, resample)
            labels[filled.values > 0] = structure
            is_resampled |= filled.is_resampled
    return VolumeMask(labels, is_resampled)


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


def _fill(contours: Sequence[np.ndarray], grid: SpatialGrid, resample: bool) -> VolumeMask:
    """Return a mask of the voxels inside an odd number of contours of one structure."""
    from matplotlib.path import Path as Polygon

    inside, is_resampled = np.zeros(grid.shape, dtype=np.uint8), False
    back = np.linalg.inv(grid.affine)
    for points in contours:
        places = points @ back[:3, :3].T + back[:3, 3]
        axis = int(np.ptp(places, axis=0).argmin())
        number = round(float(places[:, axis].mean()))
        distance = np.abs(places[:, axis] - number).max()
        is_resampled |= bool(distance > CONTOUR_TOLERANCE)
        if distance > (0.5 if resample else CONTOUR_TOLERANCE):
            raise DataError(
                "misaligned_mask",
                "a contour of the RTSTRUCT does not lie in a slice of the image, so it was drawn on another grid. Give "
                "the series on which it was drawn, or resample it.",
            )
        refuse_outside(np.where(np.arange(3) == axis, number, places).T, grid)
        others = [other for other in range(3) if other != axis]
        flat = places[:, others]
        low, high = np.ceil(flat.min(axis=0)).astype(int), np.floor(flat.max(axis=0)).astype(int) + 1
        rows, columns = np.arange(low[0], high[0]), np.arange(low[1], high[1])
        centres = np.stack(np.meshgrid(rows, columns, indexing="ij"), axis=-1).reshape(-1, 2)
        filled = Polygon(np.vstack([flat, flat[:1]])).contains_points(centres).reshape(len(rows), len(columns))
        window: list[Any] = [slice(low[0], high[0]), slice(low[1], high[1])]
        window.insert(axis, number)
        inside[tuple(window)] ^= filled
    return VolumeMask(inside, is_resampled)


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
