"""Weights of atlas regions on the grid of a feature map, by average pooling or by sampling.

An atlas is a label volume (or label image): each cell contains the number of its region, or 0 for the background. A
region's weight in a cell of the feature map is the fraction of the cell that the region covers.

Nearest-neighbour masks lose small regions on a coarse grid. An average-pooled mask keeps every region: its value in a
cell is the region's fraction of the cell. FedSKD (Weng et al. 2025) does not say how its masks are resized to the
features.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch.nn import functional as F

from medfl.errors import DataError, SettingsError, did_you_mean

_MODES = ("soft", "nearest")

MAX_EXACT_FLOAT32_COUNT = 2**24
"""Largest number of cells of a label volume for which float32 counts are exact; larger volumes use float64."""


def region_weights(
    labels: torch.Tensor, size: Sequence[int], mode: Literal["soft", "nearest"] = "soft"
) -> torch.Tensor:
    """Return the weight of each labelled region in each cell of a feature map.

    Args:
        labels: Region numbers on the images' grid, 0 for the background, any dtype, 2-D or 3-D. Shape (*spatial) or (1,
            *spatial): the same labels for all samples of a batch; shape (B, *spatial): labels for each of B samples.
        size: Spatial size of the feature map, one number for each spatial axis of the labels.
        mode: "soft" average-pools the one-hot mask of each region to `size`, so that every region keeps some
            weight. "nearest" samples the labels; small regions may vanish, and `region_similarity_loss` then drops
            them.

    Returns:
        float32 in [0, 1], shape (R, *size) or (B, R, *size), with R regions in the order of their labels. The weights
        of a region that a sample does not have are 0.

    Raises:
        DataError: If the labels have other axes, contain only background, or contain fractions, NaN or negative
            numbers.
        SettingsError: If the mode is unknown.
    """
    if mode not in _MODES:
        raise SettingsError(
            "unknown_choice",
            f"unknown mode of region masks '{mode}'. {did_you_mean(mode, _MODES)}",
            what="mode of region masks",
            choice=mode,
        )
    weights = weights_of(*number_regions(labels, len(size)), size, mode)
    return weights if labels.dim() > len(size) else weights[0]


def number_regions(labels: torch.Tensor, axes: int) -> tuple[torch.Tensor, int]:
    """Renumber the labels of the regions to 1, 2, ... in increasing order of the labels, and count the regions.

    Args:
        labels: Region numbers, 0 for the background. Shape (*spatial) or (1, *spatial): the same labels for all
            samples; shape (B, *spatial): labels for each of B samples.
        axes: Number of spatial axes, 2 or 3.

    Returns:
        New numbers, int64, 0 for the background, shape (B, *spatial), or (1, *spatial) if all samples have the same
        labels; and the number of regions.

    Raises:
        DataError: If the labels have other axes, contain only background, or contain fractions, NaN or negative
            numbers.
    """
    _check_labels(labels, axes)
    values, places = labels.unique(return_inverse=True)
    count = int((values > 0).sum())
    if not count:
        raise DataError(
            "empty_atlas", "expected labels above 0 in the atlas, found only background. Use a label volume."
        )
    numbers = places + (count + 1 - len(values))
    return numbers if labels.dim() > axes else numbers[None], count


def weights_of(
    numbers: torch.Tensor, count: int, size: Sequence[int], mode: Literal["soft", "nearest"]
) -> torch.Tensor:
    """Return the weight of each region in each cell of a feature map, for regions numbered by `number_regions`.

    Args:
        numbers: Region numbers from 0 (background) to `count`, int64, shape (B, *spatial).
        count: Number of regions.
        size: Spatial size of the feature map.
        mode: ``soft`` average-pools the mask of each region; ``nearest`` samples the labels.

    Returns:
        Weights in [0, 1], float32, shape (B, count, *size).
    """
    return (_average_pool_masks if mode == "soft" else _sample_masks)(numbers, count, size)


def _average_pool_masks(numbers: torch.Tensor, count: int, size: Sequence[int]) -> torch.Tensor:
    """Average-pool the one-hot masks of the regions.

    Each voxel is added to the cells that contain it, so the work does not grow with the number of regions. A voxel is
    in one cell if the cells divide the grid evenly; otherwise the cells of adaptive average pooling overlap.
    """
    device, axes = numbers.device, len(size)
    windows = [_pooling_cells(length, cells, device) for length, cells in zip(numbers.shape[1:], size, strict=True)]
    first = torch.arange(len(numbers), device=device).view(-1, *[1] * axes) * count + numbers - 1
    dtype = torch.float32 if numbers[0].numel() <= MAX_EXACT_FLOAT32_COUNT else torch.float64
    voxels = torch.zeros(len(numbers) * count * math.prod(size), dtype=dtype, device=device)
    for cells in itertools.product(*(members for members, _ in windows)):
        at, inside = first, numbers > 0
        for axis, (cell, length) in enumerate(zip(cells, size, strict=True), start=1):
            cell = cell.view(-1, *[1] * (axes - axis))
            at, inside = at * length + cell, inside & (cell >= 0)
        at = at[inside]
        voxels.index_add_(0, at, torch.ones_like(at, dtype=dtype))
    volume = functools.reduce(
        lambda product, lengths: product[..., None] * lengths, (lengths for _, lengths in windows)
    )
    return voxels.view(len(numbers), count, *size).div_(volume).float()


def _pooling_cells(length: int, size: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the cells of adaptive average pooling along an axis.

    Args:
        length: Number of voxels along the axis.
        size: Number of cells along the axis.
        device: Device of the results.

    Returns:
        The cells that contain each voxel, shape (K, length), -1 if a voxel is in fewer than K cells; and the number of
        voxels in each cell, shape (size,).
    """
    contains, sizes = _cell_masks(length, size, device)
    cell = torch.arange(size, device=device)[:, None]
    members = torch.where(contains, cell, -1).sort(dim=0, descending=True).values
    return members[: int(contains.sum(0).max())], sizes


def _cell_masks(length: int, size: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return whether each cell of adaptive average pooling contains each voxel, and the number of voxels in each cell.

    Args:
        length: Number of voxels along the axis.
        size: Number of cells along the axis.
        device: Device of the results.

    Returns:
        Masks of the cells, shape (size, length), bool; and the numbers of voxels, shape (size,).
    """
    cell, voxel = torch.arange(size, device=device)[:, None], torch.arange(length, device=device)
    start, stop = cell * length // size, -((cell + 1) * -length // size)
    return (start <= voxel) & (voxel < stop), (stop - start)[:, 0]


def _sample_masks(numbers: torch.Tensor, count: int, size: Sequence[int]) -> torch.Tensor:
    """Sample the one-hot masks of the regions with nearest neighbour."""
    sampled = F.interpolate(numbers[:, None].double(), tuple(size), mode="nearest")[:, 0].long()
    return F.one_hot(sampled, count + 1).movedim(-1, 1)[:, 1:].float()


def pool(maps: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
    """Apply adaptive average pooling to 2-D or 3-D maps, and return maps of the given size.

    Args:
        maps: Feature maps or masks, shape (..., channels, *spatial), two or three spatial axes.
        size: Spatial size of the result, one number for each spatial axis.
    """
    if tuple(maps.shape[-len(size) :]) == tuple(size):
        return maps
    if maps.is_cuda:  # on a GPU, torch has no deterministic gradient of adaptive pooling
        return pool_by_axes(maps, size)
    if len(size) == 2:
        return F.adaptive_avg_pool2d(maps, (size[0], size[1]))
    return F.adaptive_avg_pool3d(maps, (size[0], size[1], size[2]))


def pool_by_axes(maps: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
    """Apply adaptive average pooling as one product with a matrix per axis.

    Args:
        maps: Feature maps or masks, shape (..., *spatial).
        size: Spatial size of the result, one number for each spatial axis.
    """
    for axis, cells in zip(range(-len(size), 0), size, strict=True):
        contains, voxels = _cell_masks(maps.shape[axis], cells, maps.device)
        weights = contains.to(maps.dtype) / voxels[:, None]
        maps = (maps.movedim(axis, -1) @ weights.T).movedim(-1, axis)
    return maps


def _check_labels(labels: torch.Tensor, axes: int) -> None:
    """Raise if labels are no label volume: wrong axes, fractions or negative numbers."""
    if axes not in (2, 3) or labels.dim() not in (axes, axes + 1):
        raise DataError(
            "wrong_shape",
            f"expected an atlas of shape (*spatial) or (B, *spatial) for feature maps with {axes} spatial axes (2 or "
            f"3), got the shape {tuple(labels.shape)}. Resample the atlas to the grid of the images.",
            axes=axes,
            found=tuple(labels.shape),
        )
    if labels.is_floating_point() and not torch.equal(labels, labels.round()):
        raise DataError(
            "wrong_label",
            "expected whole numbers as labels of the atlas, got fractions or NaN. Resample an atlas with nearest "
            "neighbour, not linearly.",
            expected="whole numbers",
        )
    if labels.numel() and labels.min() < 0:
        raise DataError(
            "wrong_label",
            f"expected labels >= 0 (0 is the background) in the atlas, got {labels.min().item()}.",
            minimum=0,
            found=labels.min().item(),
        )
