"""Regions of an atlas as soft weights on the grid of a feature map.

Nearest-neighbour masks lose small regions on a coarse grid; an average-pooled mask keeps each of them with the share
that it has in every cell. FedSKD (Weng et al. 2025) does not say how its masks come to the size of the features.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch.nn import functional as F

from medfl.errors import DataError, SettingsError, did_you_mean

SMALLEST_MASS = 1e-6
"""A region with less mass (in voxels) than this in the input mask is dropped."""

_MODES = ("soft", "nearest")


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
        raise SettingsError(f"expected a way to make region masks, got '{mode}'. {did_you_mean(mode, _MODES)}")
    _check(labels, size)
    found = [value for value in labels.unique().tolist() if value > 0]
    if not found:
        raise DataError("expected labels above 0 in the atlas, found none: all is background. Give a label volume.")
    batch = labels if labels.dim() > len(size) else labels[None]
    weights = [_pooled(batch == value, size, mode) for value in found if (batch == value).sum() >= SMALLEST_MASS]
    stacked = torch.stack(weights, dim=1)
    return stacked if labels.dim() > len(size) else stacked[0]


def _pooled(mask: torch.Tensor, size: Sequence[int], mode: str) -> torch.Tensor:
    """A mask (B, *spatial) on the grid `size`."""
    values = mask[:, None].float()
    return (pool(values, size) if mode == "soft" else F.interpolate(values, tuple(size), mode="nearest"))[:, 0]


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


def _check(labels: torch.Tensor, size: Sequence[int]) -> None:
    axes = len(size)
    if axes not in (2, 3) or labels.dim() not in (axes, axes + 1):
        raise DataError(
            f"expected an atlas of shape (*spatial) or (B, *spatial) for feature maps with {axes} spatial axes (2 or "
            f"3), got the shape {tuple(labels.shape)}. Put the atlas on the grid of the images."
        )
    if labels.is_floating_point() and not torch.equal(labels, labels.round()):
        raise DataError(
            "expected whole numbers as labels of the atlas, got fractions or NaN. Resample an atlas with nearest "
            "neighbour, never linearly."
        )
    if labels.numel() and labels.min() < 0:
        raise DataError(f"expected labels of 0 (background) and above in the atlas, got {labels.min().item()}.")
