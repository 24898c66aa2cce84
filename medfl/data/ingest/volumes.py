"""Read volumes with masks from their files and bring them onto the grid of an array.

A case is a volume, in a file or a DICOM series, with its mask file. A structure is a segmented object; its number is
the value of its voxels in the mask, and 0 is the background. A grid is the number of voxels and the voxel size along
each axis. A frame (`medfl.data.transforms.frame.Frame`) is the grid and intensity scale that all cases of a data set
get.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from medfl.data.ingest.masks import masked_row
from medfl.data.ingest.workers import LoadedItem
from medfl.data.readers.dicom_header import decoding
from medfl.data.readers.dicom_series import ImageSource, SeriesFiles, source_files
from medfl.data.readers.image_reading import ImageReading
from medfl.data.readers.images import volume_grid
from medfl.data.readers.itk_files import ITK_SUFFIXES
from medfl.data.readers.mask_placement import lost_structure_error
from medfl.data.readers.segmentations import one_structure
from medfl.data.readers.volumes import MAX_VOXELS, SUFFIXES, voxel_edges
from medfl.errors import DataError

if TYPE_CHECKING:
    from medfl.data.transforms.frame import Frame

IMAGE, LABEL = "image", "label"
"""Keys of a case in MONAI transforms: `IMAGE` for the volume, `LABEL` for its mask."""

MASK_RESAMPLED_KEY = "mask_resampled"
"""Key in the metadata of a row whose mask was resampled to the grid of its image."""

GRID_TOLERANCE = 0.01
"""Largest distance, in millimetres, between a corner of an image's grid and the same corner of its mask's grid.

`medfl.data.ingest.volume_spec` uses the same number as relative tolerance when it compares the spacings of volumes, and
as tolerance in voxels when it rounds a size up.
"""


@dataclass(frozen=True)
class VolumeFiles:
    """Files of a volume and its mask.

    Attributes:
        image: Path of the volume, or the files of its DICOM series.
        mask: Path of the mask.
    """

    image: ImageSource
    mask: Path

    def files(self) -> list[Path]:
        """Return the paths of all files."""
        return [*source_files(self.image), self.mask]

    @property
    def name(self) -> str:
        """File name of the volume without extension, to find the case in a table that lists cases by this name.

        For a DICOM series, the name of the folder of its slices. The name may identify a patient, so it must not be
        written to any output.
        """
        if isinstance(self.image, SeriesFiles):
            return self.image.paths[0].parent.name
        ends = (*reversed(SUFFIXES), *ITK_SUFFIXES)
        return next(
            (self.image.name.removesuffix(end) for end in ends if self.image.name.endswith(end)), self.image.stem
        )

    @property
    def is_nifti(self) -> bool:
        """Whether both files are NIfTI files."""
        paths = [self.mask] if isinstance(self.image, SeriesFiles) else [self.image, self.mask]
        return len(paths) == 2 and all(path.name.lower().endswith(SUFFIXES) for path in paths)


@dataclass(frozen=True)
class VolumeGrid:
    """Size and voxel spacing of a volume whose axes were brought into the order of a frame (D, H, W).

    Attributes:
        shape: (D, H, W) in voxels.
        spacing: Voxel spacing in millimetres along D, H and W.
    """

    shape: tuple[int, ...]
    spacing: tuple[float, ...]


def grid_of(case: VolumeFiles, channels: int, resample_masks: bool = False) -> VolumeGrid:
    """Return the grid of a case from the headers of its files. Voxels are not read.

    Args:
        case: Files of the case.
        channels: Number of channels that the volume must have.
        resample_masks: Whether masks on another grid are resampled; otherwise they are refused.

    Raises:
        DataError: If a file is missing or damaged, the number of channels is wrong, or image and mask have different
            grids. The grid of a mask that is resampled, or no NIfTI file, is checked when it is read.
    """
    import nibabel
    from nibabel.spatialimages import SpatialImage

    if resample_masks or not case.is_nifti:
        return _canonical_grid_of(case, channels)
    assert isinstance(case.image, Path)

    heads: list[Any] = []
    for path, what in ((case.image, "image"), (case.mask, "mask")):
        if not path.is_file():
            raise DataError("missing_file", f"there is no file of the {what}", what=what)
        with decoding():
            head = nibabel.load(path)
        if not isinstance(head, SpatialImage):
            raise DataError("unsupported_file", f"the {what} file is not a volume", what=what)
        heads.append(head)
    image, mask = heads
    axes = image.shape[:3]
    if len(axes) < 3 or np.prod(image.shape) > MAX_VOXELS * channels or min(axes) < 1:
        raise DataError(
            "wrong_shape",
            f"the image header states {'x'.join(map(str, image.shape))} voxels, which is not a valid volume",
            what="image",
            found=image.shape,
        )
    if int(np.prod(image.shape[3:])) != channels:
        raise DataError(
            "wrong_channels",
            f"the image has {int(np.prod(image.shape[3:]))} channels, {channels} are expected",
            expected=channels,
            found=int(np.prod(image.shape[3:])),
        )
    if mask.shape[:3] != axes or int(np.prod(mask.shape[3:])) != 1:
        raise DataError(
            "wrong_shape",
            f"the mask has {'x'.join(map(str, mask.shape))} voxels, its image {'x'.join(map(str, axes))}: it lies on "
            "another grid",
            what="mask",
            expected=axes,
            found=mask.shape,
        )
    corners = np.array([[x, y, z, 1] for x in (0, axes[0]) for y in (0, axes[1]) for z in (0, axes[2])]).T
    if not np.abs((image.affine - mask.affine) @ corners).max() <= GRID_TOLERANCE:
        raise DataError(
            "misaligned_mask",
            "the mask lies at another place than its image, by their affines: it lies on another grid",
        )
    order = np.argsort(nibabel.io_orientation(image.affine)[:, 0])
    edges = np.linalg.norm(image.affine[:3, :3], axis=0)
    return VolumeGrid(tuple(int(axes[axis]) for axis in order), tuple(float(edges[axis]) for axis in order))


def _canonical_grid_of(case: VolumeFiles, channels: int) -> VolumeGrid:
    """Return the grid of a case whose mask is checked when it is read."""
    for path, what in ((source_files(case.image)[0], "image"), (case.mask, "mask")):
        if not path.is_file():
            raise DataError("missing_file", f"there is no file of the {what}", what=what)
    if channels != 1:
        raise DataError(
            "wrong_channels", f"the image has 1 channel, {channels} are expected", expected=channels, found=1
        )
    grid = volume_grid(case.image)
    d, h, w = (float(edge) for edge in voxel_edges(grid.affine))
    return VolumeGrid(grid.shape, (d, h, w))


def read_case(
    case: VolumeFiles,
    frame: Frame,
    structures: Sequence[str],
    *,
    any_structure: bool = False,
    resample_masks: bool = False,
) -> LoadedItem:
    """Read a volume and its mask, and bring both onto the grid of a frame.

    Args:
        case: Files of the case.
        frame: Grid and intensity scale of all cases of the data set.
        structures: Names of the structures by their numbers; the first one is the background.
        any_structure: Whether there is one structure, with any name in a DICOM file, or any value in other masks
            (`medfl.data.readers.segmentations.one_structure`).
        resample_masks: Whether a mask on another grid is resampled to the grid of its image, as in own files. A
            structure that no voxel of the frame shows is then refused. Otherwise a mask on another grid is refused, and
            structures may vanish, as in the recipes of published releases.

    Returns:
        The case as one row of the array that contains all cases: shape (D, H, W, C + 1), float32, with the C image
        channels and then the mask. Its metadata list the numbers of the structures that occur, and contain
        `MASK_RESAMPLED_KEY` if the mask was resampled to the grid of its image.

    Raises:
        DataError: If a file can't be read, voxels are not finite, the mask is wrong, a structure would vanish, or the
            size would cut off labelled voxels.
    """
    import torch  # importing torch and MONAI takes seconds

    from medfl.data.transforms.frame import IS_RESAMPLED

    with decoding():
        image = case.image if isinstance(case.image, SeriesFiles) else str(case.image)
        names = () if any_structure else tuple(structures[1:])
        load, *steps = frame.read(mask=True, structures=names, resample_masks=resample_masks).transforms
        before = load(
            {IMAGE: image, LABEL: str(case.mask)}
        )  # alone, because `Compose` would hide why a file is refused
        if any_structure:
            before[LABEL].copy_(torch.from_numpy(one_structure(before[LABEL].numpy())))
        is_resampled = bool(before[LABEL].meta.get(IS_RESAMPLED))
        drawn = np.unique(before[LABEL].numpy())
        for step in steps:
            before = step(before)
        after = frame.fit(mask=True)(before)
        pixels, mask = (np.asarray(after[key].numpy()) for key in (IMAGE, LABEL))
    if not np.isfinite(pixels).all():
        raise DataError("not_finite", "voxels are not finite numbers", what="voxels")
    row = masked_row(np.moveaxis(pixels, 0, -1), mask[0], len(structures))
    gone = np.setdiff1d(drawn[np.isfinite(drawn) & (drawn != 0)], before[LABEL].numpy())
    if resample_masks and len(gone) and frame.spacing is not None:
        raise lost_structure_error([int(value) for value in gone], f"{spacing_text(frame.spacing)} mm")
    lost = int((np.asarray(before[LABEL]) != 0).sum() - (mask != 0).sum())
    if lost:
        raise DataError(
            "cropped_mask", f"the size would cut off {lost} labelled voxels: give a larger --size", count=lost
        )
    return LoadedItem(row.pixels, row.facts | {MASK_RESAMPLED_KEY: True}) if is_resampled else row


def mixed_spacing_error(edges: np.ndarray) -> DataError:
    """Return the error for volumes with masks that differ in their spacing, (N, 3), and are not resampled."""
    lowest, highest = edges.min(axis=0), edges.max(axis=0)
    return DataError(
        "mixed_spacing",
        "expected volumes of one spacing, because distances of masks are in millimetres, got "
        f"{spacing_text(lowest)} to {spacing_text(highest)} mm. Resample them: --spacing "
        f"{spacing_text(np.median(edges, axis=0))} is the median.",
        minimum=lowest.tolist(),
        maximum=highest.tolist(),
    )


def spacing_text(edges: Sequence[float] | np.ndarray) -> str:
    """Return a voxel spacing as users write it, for example 1x1x2.5."""
    return "x".join(f"{edge:.4g}" for edge in edges)


def scale_entries(reading: ImageReading) -> dict[str, Any]:
    """Return the data list entries with the scale of volumes with masks, as `Frame` applies it.

    Args:
        reading: Rule whose window is used; without one, each channel of a volume gets mean 0 and standard deviation 1.
    """
    words = reading.describe() if reading.window else "each channel of a volume: mean 0, SD 1"
    return {"intensities": words, "window": reading.window}
