"""Read volumes with masks from NIfTI files and bring them onto the grid of an array."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from medfl.data.ingest.masks import masked_row
from medfl.data.ingest.workers import LoadedItem
from medfl.data.readers.dicom_header import decoding
from medfl.data.readers.volumes import MAX_VOXELS, SUFFIXES
from medfl.errors import DataError

if TYPE_CHECKING:
    from medfl.data.transforms.frame import Frame

IMAGE, LABEL = "image", "label"
"""Keys of a case in the transforms, as in `medfl.data.transforms.frame`."""

GRID_TOLERANCE = 0.01
"""Tolerance, in millimetres, for the grids of an image and its mask; also the relative tolerance for equal spacings."""


@dataclass(frozen=True)
class VolumeFiles:
    """Files of a volume and its mask.

    Attributes:
        image: Path of the volume.
        mask: Path of the mask.
    """

    image: Path
    mask: Path

    def files(self) -> list[Path]:
        """Return the paths of both files."""
        return [self.image, self.mask]

    @property
    def name(self) -> str:
        """Name of the image file without extension, as a table may name the case. It must not be written anywhere."""
        return next(self.image.name.removesuffix(end) for end in reversed(SUFFIXES) if self.image.name.endswith(end))


@dataclass(frozen=True)
class VolumeGrid:
    """Grid of a volume after rotation to the axes of `medfl.data.transforms.frame.Frame`.

    Attributes:
        shape: (D, H, W) in voxels.
        spacing: Voxel spacing in millimetres, in the same order.
    """

    shape: tuple[int, ...]
    spacing: tuple[float, ...]


def grid_of(case: VolumeFiles, channels: int) -> VolumeGrid:
    """Return the grid of a case from the headers of its files. Voxels are not read.

    Raises:
        DataError: If a file is missing or damaged, the number of channels is wrong, or image and mask have different
            grids.
    """
    import nibabel
    from nibabel.spatialimages import SpatialImage

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


def read_case(case: VolumeFiles, frame: Frame, structures: int) -> LoadedItem:
    """Read a volume and its mask onto a frame.

    Args:
        case: Files of the case.
        frame: Frame that defines the grid.
        structures: Number of structures, including the background.

    Returns:
        Row of shape (D, H, W, C + 1), float32, with the mask as last channel, and the numbers of the structures that
        occur.

    Raises:
        DataError: If a file can't be read, voxels are not finite, the mask is wrong, or the size would cut off labelled
            voxels.
    """
    with decoding():
        before = frame.read(mask=True)({IMAGE: str(case.image), LABEL: str(case.mask)})
        after = frame.fit(mask=True)(before)
        image, mask = (np.asarray(after[key].numpy()) for key in (IMAGE, LABEL))
    if not np.isfinite(image).all():
        raise DataError("not_finite", "voxels are not finite numbers", what="voxels")
    row = masked_row(np.moveaxis(image, 0, -1), mask[0], structures)
    lost = int((np.asarray(before[LABEL]) != 0).sum() - (mask != 0).sum())
    if lost:
        raise DataError(
            "cropped_mask", f"the size would cut off {lost} labelled voxels: give a larger --size", count=lost
        )
    return row
