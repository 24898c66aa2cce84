"""When a site stops to train its part of a generator (FedTPF), and what its last one weighs from then on.

Source: "Privacy-Preserving Efficient Federated Learning for Internet of Medical Things under Data Heterogeneity"
(FedTPF), equations 8 and 9. Its text and its equations contradict each other; hence `decay` has several modes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, get_args

import torch

from medfl.errors import SettingsError, check_choice

Decay = Literal["cumulative", "literal", "text", "none"]

SLOW = 0.05
"""A change of accuracy from which on the mode ``text`` decays no more."""

FAST = 0.02
"""A change of accuracy up to which the mode ``text`` decays at the full rate."""

ROUNDING = 1e-9
"""0.93 - 0.88 is 0.05, whatever floating point says."""


def decay(changes: Sequence[float], rate: float, mode: str = "cumulative") -> float:
    """What the last generator of a frozen site weighs, beside its number of images.

    Args:
        changes: Mean change of accuracy of the active sites in each round from the stop to now, both included, as
            fractions in [-1, 1]. Without any the weight is 1.
        rate: lambda, >= 0. 0 leaves the weight at 1.
        mode: ``cumulative``: exp(-rate sum max(0, change)), which never rises again; ``literal``: exp(-rate max(0, last
            change)), as equation 8 is printed; ``text``: exp(-rate sum g), where g falls from 1 for a change of up to
            2 % in either direction to 0 for one of 5 %, as the paper's text has it; ``none``: 1.

    Returns:
        In (0, 1], but 0 where the exponent is below about -745.

    Raises:
        SettingsError: If the mode is unknown or a number is out of range.

    Example:
        >>> round(decay([0.1, -0.2, 0.1], rate=5.0), 4)  # exp(-5 * 0.2)
        0.3679
    """
    check_choice("decay", mode, get_args(Decay))
    if not (0 <= rate < math.inf and all(map(math.isfinite, changes))):
        raise SettingsError(f"expected a finite decay rate >= 0 and finite changes, got {rate} and {list(changes)}.")
    if mode == "none" or not changes:
        return 1.0
    if mode == "text":
        return math.exp(-rate * math.fsum(_pace(one) for one in changes))
    counted = changes if mode == "cumulative" else changes[-1:]
    return math.exp(-rate * math.fsum(max(0.0, one) for one in counted))


def should_freeze(
    accuracies: Sequence[float],
    cosines: Sequence[float],
    accuracy: float = 0.90,
    tolerance: float = 0.02,
    cosine: float = 0.15,
    window: int = 3,
    fluctuation: float = 0.05,
) -> bool:
    """Whether a site's generator and classifier are good and steady enough to stop.

    In each of the last epochs the accuracy is at least `accuracy` - `tolerance` and the cosine below `cosine`, and
    neither varies by more than `fluctuation`.

    Args:
        accuracies: Of the classifier on the shared part of the site's validation images, epoch by epoch, in [0, 1].
        cosines: Of the two parts of these images (`mean_abs_cosine`), of the same epochs.
        accuracy: In [0, 1].
        tolerance: >= 0.
        cosine: > 0; above 1 it is no condition.
        window: How many epochs count, >= 1. Before there are so many the answer is no.
        fluctuation: Largest difference of two values within the window, absolute, >= 0.

    Returns:
        False also where a value in the window is not finite.

    Raises:
        SettingsError: If the window is empty.
        ValueError: If there are not as many accuracies as cosines.
    """
    if window < 1:
        raise SettingsError(f"expected a window of at least 1 epoch, got {window}.")
    recent = list(zip(accuracies, cosines, strict=True))[-window:]
    if len(recent) < window or not all(math.isfinite(value) for pair in recent for value in pair):
        return False
    right, alike = zip(*recent, strict=True)
    steady = all(max(values) - min(values) <= fluctuation + ROUNDING for values in (right, alike))
    return steady and min(right) >= accuracy - tolerance - ROUNDING and max(alike) < cosine


def mean_abs_cosine(a: torch.Tensor, b: torch.Tensor) -> float:
    """Mean of |cos(a_i, b_i)| over flattened images; of a signed mean the images could cancel each other.

    Args:
        a: (B, ...), any floating type.
        b: As `a`.

    Returns:
        In [0, 1]; an image that is zero in `a` or `b` counts as 0. NaN without images, or where one is not finite.

    Example:
        >>> mean_abs_cosine(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([[-2.0, 0.0], [0.0, 3.0]]))
        0.5
    """
    return float((_unit(a) * _unit(b)).sum(dim=1).abs().mean())


def _unit(images: torch.Tensor) -> torch.Tensor:
    """Flattened images of norm 1, float64; zeros stay zeros."""
    flat = images.detach().double().flatten(1)
    norms = torch.linalg.vector_norm(flat, dim=1, keepdim=True)
    return torch.where(norms == 0, flat, flat / norms)


def _pace(change: float) -> float:
    """1 for small changes, 0 for large ones, linear between."""
    return min(1.0, max(0.0, (SLOW - abs(change)) / (SLOW - FAST)))
