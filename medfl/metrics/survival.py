"""Scores of a risk against times of which some are cut short: what is known is that nothing happened until then."""

from __future__ import annotations

import torch

ROWS = 256
"""Events that are compared with all others at once, to bound the memory."""


def concordance(risks: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Harrell's C-index: how often, of two people, the one with the higher risk has the event first.

    Two people count if it is known who came first: the earlier time is an event, or both times are equal and one of
    them only is an event, which then came first. Two events at the same time don't count. Equal risks count one half.

    Source: Harrell, Lee and Mark 1996, Multivariable prognostic models; ties as in lifelines'
    ``concordance_index(times, -risks, events)``.

    Args:
        risks: (N, 1) or (N,), floating, without NaN: larger means earlier; only their order matters.
        targets: (N, 2), floating: time > 0, and 1 for an event or 0 where the time is cut short.
        weights: (N, B), float64, not negative; a pair counts as the product of its two weights.

    Returns:
        (B,), float64, in [0, 1]; NaN without a pair that counts, so without events. Takes O(N E (1 + B)) with E events.

    Example:
        >>> targets = torch.tensor([[1.0, 1.0], [2.0, 0.0], [3.0, 1.0]])
        >>> concordance(torch.tensor([3.0, 1.0, 3.0]), targets, torch.ones(3, 1).double())
        tensor([0.7500], dtype=torch.float64)
    """
    risks, times, events = risks.reshape(-1), targets[:, 0], targets[:, 1] == 1
    right, pairs = weights.new_zeros(2, weights.shape[1])
    for rows in torch.nonzero(events)[:, 0].split(ROWS):
        later = (times > times[rows, None]) | ((times == times[rows, None]) & ~events)
        won = (risks[rows, None] > risks).double() + (risks[rows, None] == risks).double() / 2
        pairs = pairs + (weights[rows] * (later.double() @ weights)).sum(0)
        right = right + (weights[rows] * ((later * won) @ weights)).sum(0)
    return right / pairs


def concordance_by_group(
    risks: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor, groups: torch.Tensor
) -> torch.Tensor:
    """`concordance` within each group alone, for example within each site: no pair of two groups counts.

    The pooled C-index also asks whether the sites' risks are on one scale; this one does not.

    Args:
        risks: As for `concordance`.
        targets: As for `concordance`.
        weights: As for `concordance`.
        groups: (N,), int64: numbers of the groups.

    Returns:
        (G, B), float64, by rising number; NaN where a group has no pair that counts.
    """
    members = [groups == group for group in groups.unique()]
    return torch.stack([concordance(risks[rows], targets[rows], weights[rows]) for rows in members])
