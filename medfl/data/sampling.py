"""Draw rows of a shared set of images for a training epoch, and choose the images that a site shares.

A shared set contains images, or data derived from images, that each site contributed and all sites train on.
"""

from __future__ import annotations

import math

import torch

from medfl.errors import SettingsError


def balanced_rows(labels: torch.Tensor, count: int, generator: torch.Generator) -> torch.Tensor:
    """Draw rows of the shared set for one epoch, balanced over the classes that are present.

    Each class contributes ``count // classes`` rows. The remaining rows go to classes drawn at random, one row each. A
    class with too few images contributes each image k or k + 1 times.

    Args:
        labels: Labels of the N images of the shared set, shape (N,).
        count: Number of rows to draw, >= 0.
        generator: Source of randomness for the rows and their order.

    Returns:
        Row numbers, shape (count,), int64, in random order.

    Raises:
        SettingsError: If rows are requested from an empty set, or `count` is negative.

    Source: Yang et al., "FedFed", NeurIPS 2023: each epoch draws as many shared images as a site has of its own.

    Example:
        >>> rows = balanced_rows(torch.tensor([5, 7, 7, 7]), 4, torch.Generator().manual_seed(0))
        >>> sorted(rows.tolist())[:2]
        [0, 0]
    """
    if count < 0:
        raise SettingsError(
            "setting_out_of_range",
            f"expected a number of shared images >= 0, got {count}.",
            setting="count",
            minimum=0,
            found=count,
        )
    rows_by_class = class_rows(labels)
    if not rows_by_class:
        if count:
            raise SettingsError(
                "empty_shared_set",
                f"expected a shared set with images to draw {count} from, got an empty one. No site shared any image: "
                "raise the share fraction, or train without a shared set.",
                count=count,
            )
        return torch.empty(0, dtype=torch.int64)
    each, left = divmod(count, len(rows_by_class))
    more = set(torch.randperm(len(rows_by_class), generator=generator)[:left].tolist())
    drawn = torch.cat([_draw(rows, each + (place in more), generator) for place, rows in enumerate(rows_by_class)])
    return drawn[torch.randperm(count, generator=generator)]


def stratified_share(labels: torch.Tensor, fraction: float, generator: torch.Generator) -> torch.Tensor:
    """Choose a fraction of the images of each class: of a class with n images, ceil(fraction * n).

    Each class therefore contributes at least one image if `fraction` > 0.

    Args:
        labels: Labels of a site's N images, shape (N,).
        fraction: Fraction to choose, in [0, 1]; 0 chooses nothing, 1 all images.
        generator: Source of randomness.

    Returns:
        Sorted row numbers without duplicates, int64.

    Raises:
        SettingsError: If the fraction is out of range.

    Example:
        >>> len(stratified_share(torch.tensor([0, 0, 0, 0, 0, 1]), 0.5, torch.Generator().manual_seed(0)))
        4
    """
    if not 0 <= fraction <= 1:
        raise SettingsError(
            "setting_out_of_range",
            f"expected a share fraction in [0, 1], got {fraction}.",
            setting="fraction",
            minimum=0,
            maximum=1,
            found=fraction,
        )
    drawn = [
        rows[torch.randperm(len(rows), generator=generator)[: _share_size(fraction, len(rows))]]
        for rows in class_rows(labels)
    ]
    return torch.cat([torch.empty(0, dtype=torch.int64), *drawn]).sort().values


def class_rows(labels: torch.Tensor) -> list[torch.Tensor]:
    """Return the row numbers of each class that is present, ascending, in the order of the classes, on the CPU."""
    labels = labels.cpu()
    return [(labels == label).nonzero(as_tuple=True)[0] for label in labels.unique().tolist()]


def _draw(rows: torch.Tensor, count: int, generator: torch.Generator) -> torch.Tensor:
    """Draw `count` rows by concatenating random permutations of all rows and truncating the last one."""
    orders = [torch.randperm(len(rows), generator=generator) for _ in range(math.ceil(count / len(rows)))]
    return torch.cat([rows[order] for order in orders] or [rows[:0]])[:count]


def _share_size(fraction: float, size: int) -> int:
    """Return ceil(fraction size), robust against rounding errors: 0.55 of 100 is 55. At least 1 if `fraction` > 0."""
    return max(1, math.ceil(fraction * size - 1e-9)) if fraction > 0 else 0
