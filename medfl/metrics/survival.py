"""Metrics of predicted risks against event times, which may be censored.

N is the number of rows (patients), and B the number of weightings of the rows.
"""

from __future__ import annotations

import torch
from torch.nn.functional import pad

EVENTS_PER_CHUNK = 256
"""Number of events that are compared with all other rows at once, to bound the memory."""


def concordance(risks: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Compute Harrell's C-index: the share of comparable pairs in which the earlier event has the higher risk.

    A pair is comparable if it is known which row had the event first: the earlier time is an event, or both times are
    equal and only one of them is an event, which then came first. Two events at the same time are not comparable. Equal
    risks count one half.

    Source: Harrell, Lee and Mark 1996, Multivariable prognostic models; ties as in lifelines'
    ``concordance_index(times, -risks, events)``.

    Args:
        risks: Risks (N, 1) or (N,), floating, without NaN; a higher risk means an earlier event. Only the order
            matters.
        targets: Targets (N, 2), floating: time > 0, and 1 for an event or 0 for a censored time.
        weights: Row weights (N, B), float64, >= 0; a pair has the product of its two weights.

    Returns:
        C-index (B,), float64, in [0, 1]; NaN without a comparable pair, so without events. Takes O(N E (1 + B)) with E
        events.

    Example:
        >>> targets = torch.tensor([[1.0, 1.0], [2.0, 0.0], [3.0, 1.0]])
        >>> concordance(torch.tensor([3.0, 1.0, 3.0]), targets, torch.ones(3, 1).double())
        tensor([0.7500], dtype=torch.float64)
    """
    risks, times, events = risks.reshape(-1), targets[:, 0], targets[:, 1] == 1
    right = weights.new_zeros(weights.shape[1])
    for rows in torch.nonzero(events)[:, 0].split(EVENTS_PER_CHUNK):
        later = (times > times[rows, None]) | ((times == times[rows, None]) & ~events)
        won = (risks[rows, None] > risks).double() + (risks[rows, None] == risks).double() / 2
        right = right + (weights[rows] * ((later * won) @ weights)).sum(0)
    return right / _comparable_pairs(times, events, weights)


def _comparable_pairs(times: torch.Tensor, events: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Sum the weights of the comparable pairs, (B,), without a comparison of all rows.

    Args:
        times: Times (N,).
        events: True for events, False for censored times, (N,), bool.
        weights: Row weights (N, B), float64.
    """
    ranks = 2 * times.unique(return_inverse=True)[1] + (~events).long()  # of equal times, events come first
    ordered, order = ranks.sort()
    below = pad(weights[order].cumsum(0), (0, 0, 1, 0))  # row k: the weight of the first k rows
    later = below[-1] - below[torch.searchsorted(ordered, ranks[events], right=True)]
    return (weights[events] * later).sum(0)
