"""Augmentation by several images of a batch: mixup, and FedFed's mosaic."""

from __future__ import annotations

import itertools

import numpy as np
import torch

from medfl.errors import DataError, SettingsError

_MAX_SEED = 2**63 - 1
"""Upper limit of the seeds that a torch generator draws for NumPy's generators."""


def mixup(
    images: torch.Tensor, labels: torch.Tensor, alpha: float, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, float]:
    """Mix each image with another image of the batch, its partner, in a random proportion (the share).

    The loss of a mixed batch is share * loss(labels) + (1 - share) * loss(labels of the partners).

    Args:
        images: Images, shape (B, C, *spatial).
        labels: Labels, shape (B,) or (B, ...).
        alpha: Parameter of the share's distribution Beta(alpha, alpha), >= 0; 0 returns the batch unchanged and draws
            nothing.
        generator: Random stream on the CPU, for the share (one for the batch) and for the permutation of partners.

    Returns:
        share * image + (1 - share) * partner, the labels, the labels of the partners, and the share in [0, 1].

    Raises:
        SettingsError: If `alpha` is negative.

    Source: Zhang, Cisse, Dauphin, Lopez-Paz, mixup, ICLR 2018.
    """
    if not alpha >= 0:
        raise SettingsError(
            "setting_out_of_range", f"mixup expected alpha >= 0, got {alpha}", setting="alpha", minimum=0, found=alpha
        )
    if alpha == 0:
        return images, labels, labels, 1.0
    seed = int(torch.randint(_MAX_SEED, (), generator=generator))
    share = float(np.random.default_rng(seed).beta(alpha, alpha))
    partners = torch.randperm(len(images), generator=generator).to(images.device)
    return share * images + (1 - share) * images[partners], labels, labels[partners.to(labels.device)], share


def mosaic(images: torch.Tensor, generator: torch.Generator, count: int) -> torch.Tensor:
    """Return new images, each a grid of 2 x 2 (volumes: 2 x 2 x 2) crops of different images with a hole of zeros.

    The crops of a new image come from the same place of their images. The hole is a square or cube of half the shortest
    edge. Its centre may be any pixel, so part of the hole may lie outside the image. FedFed pretrains its autoencoder
    with such images, which have no class.

    Args:
        images: Images, shape (B, C, *spatial), B >= 1, edges >= 2, even or odd. If there are fewer images than crops in
            a grid, some are used more than once.
        generator: Random stream on the CPU.
        count: Number of new images, >= 0.

    Returns:
        Images of shape (count, C, *spatial).

    Raises:
        DataError: If the batch is empty.

    Source: Released code of FedFed, Yang et al., NeurIPS 2023.
    """
    if not len(images):
        raise DataError("empty_batch", "mosaic expected at least one image, got an empty batch. Skip empty batches.")
    new_images = images.new_zeros(count, *images.shape[1:])
    for new in new_images:
        _write_crops(new, images, generator)
        new[_draw_hole(new.shape[1:], generator)] = 0
    return new_images


def _write_crops(new: torch.Tensor, images: torch.Tensor, generator: torch.Generator) -> None:
    """Write the grid of crops into a new image, in place."""
    halves = [edge // 2 for edge in new.shape[1:]]
    corners = [_draw_integer(half + 1, generator) for half in halves]
    tiles = list(itertools.product((0, 1), repeat=len(halves)))
    for tile, source in zip(tiles, _draw_sources(len(images), len(tiles), generator), strict=True):
        target, crop = [slice(None)], [slice(None)]  # all channels
        for side, half, corner, edge in zip(tile, halves, corners, new.shape[1:], strict=True):
            target.append(slice(half, edge) if side else slice(0, half))
            crop.append(slice(corner, corner + (edge - half if side else half)))
        new[tuple(target)] = images[source][tuple(crop)]


def _draw_hole(edges: torch.Size, generator: torch.Generator) -> tuple[slice, ...]:
    """Draw a hole, and return the index of its pixels."""
    length = min(edges) // 2
    starts = [_draw_integer(edge, generator) - length // 2 for edge in edges]
    return (slice(None), *(slice(max(start, 0), start + length) for start in starts))


def _draw_sources(images: int, tiles: int, generator: torch.Generator) -> list[int]:
    """Return the numbers of the images to crop. They differ as long as there are enough images."""
    rounds = -(-tiles // images)
    drawn = torch.cat([torch.randperm(images, generator=generator) for _ in range(rounds)])
    return [int(row) for row in drawn[:tiles]]


def _draw_integer(below: int, generator: torch.Generator) -> int:
    """Draw a whole number in [0, below)."""
    return int(torch.randint(below, (), generator=generator))
