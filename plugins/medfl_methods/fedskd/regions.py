"""Regions of an atlas as soft weights on the grid of a feature map.

Nearest-neighbour masks lose small regions on a coarse grid; an average-pooled mask keeps each of them with the share
that it has in every cell. FedSKD (Weng et al. 2025) does not say how its masks come to the size of the features.
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

EXACT = 2**24
"""Up to this number single precision counts exactly."""


def region_weights(
    labels: torch.Tensor, size: Sequence[int], mode: Literal["soft", "nearest"] = "soft"
) -> torch.Tensor:
    """Weights of each labelled region in each cell of a feature map.

    Args:
        labels: Whole numbers in the grid of the images, 0 = background: (*spatial) for all samples, or (B, *spatial)
            with B = 1 or one for each sample. 2-D or 3-D. Any dtype.
        size: Spatial size of the feature map, as many numbers as the labels have spatial axes.
        mode: "soft": each region's one-hot mask is average-pooled to `size`, so that every region keeps its mass.
            "nearest": the labels are sampled; small regions may vanish, and `region_similarity_loss` then drops them.

    Returns:
        float32 in [0, 1], shape (R, *size) or (B, R, *size), R regions in the order of their labels. A sample without a
        region that another one has gets zeros there.

    Raises:
        DataError: If the labels have other axes, hold no region, or hold what is no label.
        SettingsError: If the mode is unknown.
    """
    if mode not in _MODES:
        raise SettingsError(
            "unknown_choice",
            f"expected a way to make region masks, got '{mode}'. {did_you_mean(mode, _MODES)}",
            what="way to make region masks",
            choice=mode,
        )
    weights = weights_of(*number_regions(labels, len(size)), size, mode)
    return weights if labels.dim() > len(size) else weights[0]


def number_regions(labels: torch.Tensor, axes: int) -> tuple[torch.Tensor, int]:
    """Number the labelled regions from 1, in the order of their labels.

    Args:
        labels: As in `region_weights`.
        axes: Spatial axes, 2 or 3.

    Returns:
        Numbers (B, *spatial), int64, 0 for the background, with B = 1 for labels of all samples; and how many regions
        there are.

    Raises:
        DataError: As in `region_weights`.
    """
    _check(labels, axes)
    values, places = labels.unique(return_inverse=True)
    count = int((values > 0).sum())
    if not count:
        raise DataError(
            "empty_atlas", "expected labels above 0 in the atlas, found none: all is background. Give a label volume."
        )
    numbers = places + (count + 1 - len(values))
    return numbers if labels.dim() > axes else numbers[None], count


def weights_of(
    numbers: torch.Tensor, count: int, size: Sequence[int], mode: Literal["soft", "nearest"]
) -> torch.Tensor:
    """The weights of numbered regions: see `region_weights` and `number_regions`.

    Args:
        numbers: (B, *spatial), int64, in 0 to `count`.
        count: Number of regions.
        size: Spatial size of the feature map.
        mode: ``soft`` or ``nearest``.

    Returns:
        float32, shape (B, count, *size).
    """
    return (_soft if mode == "soft" else _nearest)(numbers, count, size)


def _soft(numbers: torch.Tensor, count: int, size: Sequence[int]) -> torch.Tensor:
    """The one-hot masks of the regions, average-pooled.

    Each voxel is counted in its cells, so the work does not grow with the number of regions. It has one cell where the
    cells divide the grid; those of adaptive average pooling overlap otherwise.
    """
    device, axes = numbers.device, len(size)
    windows = [_windows(length, cells, device) for length, cells in zip(numbers.shape[1:], size, strict=True)]
    first = torch.arange(len(numbers), device=device).view(-1, *[1] * axes) * count + numbers - 1
    dtype = torch.float32 if numbers[0].numel() <= EXACT else torch.float64
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


def _windows(length: int, size: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """The cells of adaptive average pooling along an axis.

    Returns:
        The cells that each of `length` voxels is in, (K, length), -1 where a voxel is in fewer than K; and the number
        of voxels in each cell, (size,).
    """
    cell, voxel = torch.arange(size, device=device)[:, None], torch.arange(length, device=device)
    start, stop = cell * length // size, -((cell + 1) * -length // size)
    held = (start <= voxel) & (voxel < stop)
    members = torch.where(held, cell, -1).sort(dim=0, descending=True).values
    return members[: int(held.sum(0).max())], (stop - start)[:, 0]


def _nearest(numbers: torch.Tensor, count: int, size: Sequence[int]) -> torch.Tensor:
    """The one-hot masks of the regions, sampled."""
    sampled = F.interpolate(numbers[:, None].double(), tuple(size), mode="nearest")[:, 0].long()
    return F.one_hot(sampled, count + 1).movedim(-1, 1)[:, 1:].float()


def pool(maps: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
    """Adaptive average pooling in 2-D or 3-D.

    Args:
        maps: (..., channels, *spatial) with two or three spatial axes.
        size: As many numbers as there are spatial axes.
    """
    if tuple(maps.shape[-len(size) :]) == tuple(size):
        return maps
    if len(size) == 2:
        return F.adaptive_avg_pool2d(maps, (size[0], size[1]))
    return F.adaptive_avg_pool3d(maps, (size[0], size[1], size[2]))


def _check(labels: torch.Tensor, axes: int) -> None:
    if axes not in (2, 3) or labels.dim() not in (axes, axes + 1):
        raise DataError(
            "wrong_shape",
            f"expected an atlas of shape (*spatial) or (B, *spatial) for feature maps with {axes} spatial axes (2 or "
            f"3), got the shape {tuple(labels.shape)}. Put the atlas on the grid of the images.",
            axes=axes,
            found=tuple(labels.shape),
        )
    if labels.is_floating_point() and not torch.equal(labels, labels.round()):
        raise DataError(
            "wrong_label",
            "expected whole numbers as labels of the atlas, got fractions or NaN. Resample an atlas with nearest "
            "neighbour, never linearly.",
            expected="whole numbers",
        )
    if labels.numel() and labels.min() < 0:
        raise DataError(
            "wrong_label",
            f"expected labels of 0 (background) and above in the atlas, got {labels.min().item()}.",
            minimum=0,
            found=labels.min().item(),
        )
