"""Read volumes with masks from NIfTI files and bring them onto the grid of an array.

A case is a volume file with its mask file. A structure is a segmented object; its number is the value of its voxels in
the mask, and 0 is the background. A grid is the number of voxels and the voxel size along each axis. A frame
(`medfl.data.transforms.frame.Frame`) is the grid and intensity scale that all cases of a data set get.
"""

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
"""Keys of a case in MONAI transforms: `IMAGE` for the volume, `LABEL` for its mask."""

GRID_TOLERANCE = 0.01
"""Largest distance, in millimetres, between a corner of an image's grid and the same corner of its mask's grid.

`medfl.data.ingest.volume_spec` uses the same number as relative tolerance when it compares the spacings of volumes, and
as tolerance in voxels when it rounds a size up.
"""


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
        """File name of the volume without extension, to find the case in a table that lists cases by this name.

        The name may identify a patient, so it must not be written to any output.
        """
        return next(self.image.name.removesuffix(end) for end in reversed(SUFFIXES) if self.image.name.endswith(end))


@dataclass(frozen=True)
class VolumeGrid:
    """Size and voxel spacing of a volume whose axes were brought into the order of a frame (D, H, W).

    Attributes:
        shape: (D, H, W) in voxels.
        spacing: Voxel spacing in millimetres along D, H and W.
    """

    shape: tuple[int, ...]
    spacing: tuple[float, ...]


def grid_of(case: VolumeFiles, channels: int) -> VolumeGrid:
    """Return the grid of a case from the headers of its files. Voxels are not read.

    Args:
        case: Files of the case.
        channels: Number of channels that the volume must have.

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
    """Read a volume and its mask, and bring both onto the grid of a frame.

    Args:
        case: Files of the case.
        frame: Grid and intensity scale of all cases of the data set.
        structures: Number of structures, including the background.

    Returns:
        The case as one row of the array that contains all cases: shape (D, H, W, C + 1), float32, with the C image
        channels and then the mask. Its metadata list the numbers of the structures that occur.

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
