"""Metrics of predicted risks against event times, which may be censored.

N is the number of rows (patients), and B the number of weightings of the rows.
"""

from __future__ import annotations

import torch

from medfl.metrics.auc import sums_of_first_rows, weight_below

FEW_ROWS = 128
"""Largest number of rows that are all compared with each other; more rows are divided."""


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
        C-index (B,), float64, in [0, 1]; NaN without a comparable pair, so without events. Takes O(B N log N).

    Example:
        >>> targets = torch.tensor([[1.0, 1.0], [2.0, 0.0], [3.0, 1.0]])
        >>> concordance(torch.tensor([3.0, 1.0, 3.0]), targets, torch.ones(3, 1).double())
        tensor([0.7500], dtype=torch.float64)
    """
    times, events = targets[:, 0], targets[:, 1] == 1
    ranks = 2 * times.unique(return_inverse=True)[1] + (~events).long()  # of equal times, events come first
    ranks, order = ranks.sort()
    events, risks, weights = events[order], risks.reshape(-1)[order], weights[order]
    return _concordant_pairs(ranks, events, risks, weights) / _comparable_pairs(ranks, events, weights)


def _concordant_pairs(
    ranks: torch.Tensor, events: torch.Tensor, risks: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """Sum the weights of the comparable pairs in which the earlier event has the higher risk; equal risks count half.

    Many rows are divided into earlier and later ones. Each half is counted by itself. Between the halves every event
    is comparable with every later row, so sorted risks suffice.

    Args:
        ranks: Ranks of the times, (N,), int64, ascending. A row is comparable with the events of lower ranks.
        events: True for events, False for censored times, (N,), bool.
        risks: Risks (N,).
        weights: Row weights (N, B), float64.

    Returns:
        Sums (B,), float64.
    """
    if len(ranks) <= FEW_ROWS:
        return _concordant_pairs_of_few(ranks, events, risks, weights)
    middle = ranks[len(ranks) // 2]
    start = int(torch.searchsorted(ranks, middle)) or int(torch.searchsorted(ranks, middle, right=True))
    if start == len(ranks):  # all ranks are equal, so that no pair is comparable
        return weights.new_zeros(weights.shape[1])
    earlier = _concordant_pairs(ranks[:start], events[:start], risks[:start], weights[:start])
    later = _concordant_pairs(ranks[start:], events[start:], risks[start:], weights[start:])
    rows = torch.nonzero(events[:start])[:, 0]
    later_risks, order = risks[start:].sort()
    between = (weights[rows] * weight_below(risks[rows], later_risks, weights[start:][order])).sum(0)
    return earlier + later + between


def _concordant_pairs_of_few(
    ranks: torch.Tensor, events: torch.Tensor, risks: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """Sum the weights as `_concordant_pairs` by a comparison of each event with all rows."""
    rows = torch.nonzero(events)[:, 0]
    later = ranks > ranks[rows, None]
    won = (risks[rows, None] > risks).double() + (risks[rows, None] == risks).double() / 2
    return (weights[rows] * ((later * won) @ weights)).sum(0)


def _comparable_pairs(ranks: torch.Tensor, events: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Sum the weights of the comparable pairs, (B,), without a comparison of all rows.

    Args:
        ranks: Ranks of the times, (N,), int64, ascending.
        events: True for events, False for censored times, (N,), bool.
        weights: Row weights (N, B), float64.
    """
    below = sums_of_first_rows(weights)
    later = below[-1] - below[torch.searchsorted(ranks, ranks[events], right=True)]
    return (weights[events] * later).sum(0)
