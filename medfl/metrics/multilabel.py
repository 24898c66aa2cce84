"""Metrics of several findings per image. Each finding is present, absent, or not labelled.

A target of NaN means that the finding is not labelled in that image; it is ignored. A finding's undefined score is NaN
and is left out of the mean over findings.

N is the number of images, C the number of findings, and B the number of weightings of the images.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn.functional import pad

from medfl.metrics.auc import weighted_binary_auc

FindingScore = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Function that computes scores (B,), float64, of one finding.

Its arguments are predicted scores (N,), the finding's presence (N,), bool, and image weights (N, B), float64.
"""


def label_auc(probabilities: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Compute the ROC AUC of each finding over the images in which it is labelled.

    Args:
        probabilities: Probabilities (N, C), floating, without NaN; only their order within a column matters.
        targets: Targets (N, C), floating: 0, 1, or NaN for a finding that is not labelled.
        weights: Image weights (N, B), float64, >= 0.

    Returns:
        AUC (C, B), float64, in [0, 1]; NaN for a finding without positives or without negatives.
    """
    return _score_each_finding(weighted_binary_auc, probabilities, targets, weights)


def macro_auc(probabilities: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Compute the unweighted mean of `label_auc`, with the same arguments, over the findings that have an AUC.

    Returns:
        Means (B,), float64, in [0, 1]; NaN if no finding has an AUC.

    Example:
        >>> targets = torch.tensor([[0.0, torch.nan], [1.0, 1.0]])
        >>> macro_auc(torch.tensor([[0.2, 0.4], [0.3, 0.1]]), targets, torch.ones(2, 1).double())
        tensor([1.], dtype=torch.float64)
    """
    return label_auc(probabilities, targets, weights).nanmean(0)


def label_average_precision(probabilities: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Compute the average precision of each finding over the images in which it is labelled.

    Args:
        probabilities: Probabilities (N, C), floating, without NaN; only their order within a column matters.
        targets: Targets (N, C), floating: 0, 1, or NaN for a finding that is not labelled.
        weights: Image weights (N, B), float64, >= 0.

    Returns:
        Average precision (C, B), float64, in [0, 1]; NaN for a finding without positives, 1 without negatives.
    """
    return _score_each_finding(average_precision, probabilities, targets, weights)


def mean_average_precision(probabilities: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Compute the unweighted mean of `label_average_precision`, with the same arguments (mAP).

    Findings without an average precision are left out.

    Returns:
        Means (B,), float64, in [0, 1]; NaN if no finding has an average precision.
    """
    return label_average_precision(probabilities, targets, weights).nanmean(0)


def average_precision(scores: torch.Tensor, positive: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Compute the average precision of one finding, sum of (R_k - R_k-1) P_k.

    P_k and R_k are precision and recall at the k-th highest score. Images with equal scores are one step, and nothing
    is interpolated, as in scikit-learn. Constant scores give the share of the positives.

    Args:
        scores: Scores (N,), floating.
        positive: Whether each image is positive, (N,), bool.
        weights: Image weights (N, B), float64, >= 0.

    Returns:
        Average precision (B,), float64, in [0, 1]; NaN without positives.
    """
    ordered, order = scores.sort(descending=True)
    counted, hits = weights[order], weights[order] * positive[order, None]
    last = pad(ordered[1:] != ordered[:-1], (0, 1), value=True) if len(ordered) else ordered.bool()
    hits, counted = hits.cumsum(0)[last], counted.cumsum(0)[last]
    gained = hits.diff(dim=0, prepend=torch.zeros_like(hits[:1]))
    return (gained * (hits / counted).nan_to_num(0.0)).sum(0) / (weights * positive[:, None]).sum(0)


def _score_each_finding(
    score: FindingScore, probabilities: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """Compute a score of each finding over the images in which it is labelled."""
    labelled = ~targets.isnan()
    columns = [
        score(probabilities[rows, label], targets[rows, label] == 1, weights[rows])
        for label, rows in enumerate(labelled.T)
    ]
    return torch.stack(columns)
