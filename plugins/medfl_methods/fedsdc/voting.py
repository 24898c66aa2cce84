"""Ensemble of classifiers (heads) on one body: a vote, or the mean of the classifiers' probabilities.

Exported bundles refer to `VotingHead` by its import path.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import nn
from torch.nn import functional as F

from medfl.networks.heads import Activation, make_head

Together = Literal["vote", "prob_mean"]
"""Combination of the heads: ``vote``, a majority vote; ``prob_mean``, the mean of the heads' class probabilities."""


class VotingHead(nn.Module):
    """Several heads as one module that takes the place of a network's classifier.

    In evaluation with ``vote``, the softmax of its logits is (votes + mean probability) / (heads + 1). The class with
    most votes therefore has the largest value. Among tied classes it is the class with the largest sum of
    probabilities, and among sums that are equal to about six digits the first class. In training, with ``prob_mean``,
    and for a single head, the softmax is the mean probability, because votes have no gradient.

    Args:
        features: Number of features of the body, >= 1.
        widths: Hidden width of each head, or 0 for a single linear layer.
        num_classes: Number of classes, >= 2.
        together: Combination of the heads, ``vote`` or ``prob_mean``.
        dropout: Dropout rate of the heads with two layers.
        activation: Activation of the heads with two layers.

    Attributes:
        heads: The heads, each from features to logits.
        vote: True if the heads vote in evaluation.
    """

    def __init__(
        self,
        features: int,
        widths: Sequence[int],
        num_classes: int,
        together: Together = "vote",
        dropout: float = 0.2,
        activation: Activation = "none",
    ) -> None:
        super().__init__()
        self.heads = nn.ModuleList(make_head(features, width, num_classes, dropout, activation) for width in widths)
        self.vote = together == "vote"

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return logits (B, num_classes) of features (B, features)."""
        probabilities = torch.stack([head(features).float().softmax(dim=1) for head in self.heads])
        together = probabilities.mean(dim=0)
        if self.vote and not self.training and len(probabilities) > 1:
            together = (count_votes(probabilities) + together) / (len(probabilities) + 1)
        return together.clamp_min(1e-12).log()


def count_votes(probabilities: torch.Tensor) -> torch.Tensor:
    """Return the number of heads that predict each class.

    Args:
        probabilities: Class probabilities of each head, shape (heads, B, num_classes).

    Returns:
        Votes of shape (B, num_classes), int64. A head whose largest probabilities are equal votes for the first of
        these classes.
    """
    return F.one_hot(probabilities.argmax(dim=2), probabilities.shape[2]).sum(dim=0)


def elect_class(probabilities: torch.Tensor) -> torch.Tensor:
    """Return the class with most votes.

    Among tied classes it is the one with the largest sum of probabilities, and among equal sums the first.

    Args:
        probabilities: Class probabilities of each head, shape (heads, B, num_classes), float64 for exact ties.

    Returns:
        Classes of shape (B,), int64.

    Source: Gao, Lan, Liu, Wang, Fan, MICCAI 2025, whose paper has no rule for ties.
    """
    counts = count_votes(probabilities)
    tied = counts == counts.max(dim=1, keepdim=True).values
    return probabilities.sum(dim=0).masked_fill(~tied, -1.0).argmax(dim=1)
