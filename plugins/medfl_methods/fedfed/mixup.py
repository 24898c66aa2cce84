"""Images made of several images of a batch: mixup, and FedFed's mosaic."""

from __future__ import annotations

import itertools

import numpy as np
import torch

from medfl.errors import DataError, SettingsError

_SEEDS = 2**63 - 1
"""Seeds of NumPy's generators that a torch generator draws."""


def mixup(
    images: torch.Tensor, labels: torch.Tensor, alpha: float, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, float]:
    """Weighted means of each image and another one of the batch.

    The loss of a mixed batch is share * loss(labels) + (1 - share) * loss(other labels).

    Args:
        images: Shape (B, C, *spatial).
        labels: Shape (B,) or (B, ...).
        alpha: The share of an image is of the distribution Beta(alpha, alpha), >= 0; 0 gives the batch back, and draws
            nothing.
        generator: Source of the share, one for the batch, and of a permutation for the partners; on the CPU.

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
    seed = int(torch.randint(_SEEDS, (), generator=generator))
    share = float(np.random.default_rng(seed).beta(alpha, alpha))
    partners = torch.randperm(len(images), generator=generator).to(images.device)
    return share * images + (1 - share) * images[partners], labels, labels[partners.to(labels.device)], share


def mosaic(images: torch.Tensor, generator: torch.Generator, count: int) -> torch.Tensor:
    """New images, each a grid of 2 x 2 (in volumes 2 x 2 x 2) crops of unlike images, with a hole of zeros.

    The crops of one new image come from the same place of their images. The hole is a square, or cube, of half the
    shortest edge; its centre may be any pixel, so a part of it may lie outside of the image. FedFed warms its
    autoencoder up with such images, which are of no class.

    Args:
        images: Shape (B, C, *spatial), B >= 1, edges >= 2, even or odd. If there are fewer images than crops in a grid,
            some are used twice.
        generator: Source of randomness, on the CPU.
        count: Number of new images, >= 0.

    Returns:
        Shape (count, C, *spatial).

    Raises:
        DataError: If there are no images.

    Source: Released code of FedFed, Yang et al., NeurIPS 2023.
    """
    if not len(images):
        raise DataError("empty_batch", "mosaic expected at least one image, got an empty batch. Skip empty batches")
    made = images.new_zeros(count, *images.shape[1:])
    for new in made:
        _fill(new, images, generator)
        new[_hole(new.shape[1:], generator)] = 0
    return made


def _fill(new: torch.Tensor, images: torch.Tensor, generator: torch.Generator) -> None:
    """Write the grid into one new image."""
    halves = [edge // 2 for edge in new.shape[1:]]
    corners = [_draw(half + 1, generator) for half in halves]
    tiles = list(itertools.product((0, 1), repeat=len(halves)))
    for tile, source in zip(tiles, _sources(len(images), len(tiles), generator), strict=True):
        target, crop = [slice(None)], [slice(None)]  # all channels
        for side, half, corner, edge in zip(tile, halves, corners, new.shape[1:], strict=True):
            target.append(slice(half, edge) if side else slice(0, half))
            crop.append(slice(corner, corner + (edge - half if side else half)))
        new[tuple(target)] = images[source][tuple(crop)]


def _hole(edges: torch.Size, generator: torch.Generator) -> tuple[slice, ...]:
    length = min(edges) // 2
    starts = [_draw(edge, generator) - length // 2 for edge in edges]
    return (slice(None), *(slice(max(start, 0), start + length) for start in starts))


def _sources(images: int, tiles: int, generator: torch.Generator) -> list[int]:
    """Which images to crop: unlike ones as long as there are some."""
    rounds = -(-tiles // images)
    drawn = torch.cat([torch.randperm(images, generator=generator) for _ in range(rounds)])
    return [int(row) for row in drawn[:tiles]]


def _draw(below: int, generator: torch.Generator) -> int:
    return int(torch.randint(below, (), generator=generator))
