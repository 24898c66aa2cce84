"""Scores of several findings in one image, each of which may be there, absent, or not labelled.

A target of NaN says that nobody looked for that finding in that image: it counts for nothing. A finding's score that is
not defined is NaN, and left out of the mean over findings.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn.functional import pad

from medfl.metrics.auc import weighted_binary_auc

ScoreOfFinding = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Scores (B,), float64, of the scores (N,) of a finding, its presence (N,), bool, and weights (N, B), float64."""


def label_auc(probabilities: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Area under the receiver operating characteristic of each finding, over the images where it is labelled.

    Args:
        probabilities: (N, C), floating, without NaN; only their order within a column matters.
        targets: (N, C), floating: 0, 1, or NaN where the finding is not labelled.
        weights: (N, B), float64, not negative.

    Returns:
        (C, B), float64, in [0, 1]; NaN unless a finding is there in an image and absent in another.
    """
    return _of_each(weighted_binary_auc, probabilities, targets, weights)


def macro_auc(probabilities: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Mean of `label_auc` over the findings for which it is defined, each with the same weight.

    Returns:
        (B,), float64, in [0, 1]; NaN if it is defined for none.

    Example:
        >>> targets = torch.tensor([[0.0, torch.nan], [1.0, 1.0]])
        >>> macro_auc(torch.tensor([[0.2, 0.4], [0.3, 0.1]]), targets, torch.ones(2, 1).double())
        tensor([1.], dtype=torch.float64)
    """
    return label_auc(probabilities, targets, weights).nanmean(0)


def label_average_precision(probabilities: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Average precision of each finding, over the images where it is labelled; arguments as for `label_auc`.

    Returns:
        (C, B), float64, in [0, 1]; NaN unless a finding is there in an image, 1 where it is there in all.
    """
    return _of_each(average_precision, probabilities, targets, weights)


def mean_average_precision(probabilities: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Mean of `label_average_precision` over the findings for which it is defined, each with the same weight (mAP).

    Returns:
        (B,), float64, in [0, 1]; NaN if it is defined for none.
    """
    return label_average_precision(probabilities, targets, weights).nanmean(0)


def average_precision(scores: torch.Tensor, positive: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Mean over the positives of the precision among all that score at least as high: sum of (R_k - R_k-1) P_k.

    P_k and R_k are precision and recall at the k-th highest score; images of one score come together, and nothing is
    interpolated, as in scikit-learn. A model that says the same of all images has the share of the positives.

    Args:
        scores: (N,), floating.
        positive: (N,), bool.
        weights: (N, B), float64, not negative.

    Returns:
        (B,), float64, in [0, 1]; NaN without positives.
    """
    ordered, order = scores.sort(descending=True)
    counted, hits = weights[order], weights[order] * positive[order, None]
    last = pad(ordered[1:] != ordered[:-1], (0, 1), value=True) if len(ordered) else ordered.bool()
    hits, counted = hits.cumsum(0)[last], counted.cumsum(0)[last]
    gained = hits.diff(dim=0, prepend=torch.zeros_like(hits[:1]))
    return (gained * (hits / counted).nan_to_num(0.0)).sum(0) / (weights * positive[:, None]).sum(0)


def _of_each(
    score: ScoreOfFinding, probabilities: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    labelled = ~targets.isnan()
    columns = [
        score(probabilities[rows, label], targets[rows, label] == 1, weights[rows])
        for label, rows in enumerate(labelled.T)
    ]
    return torch.stack(columns)
