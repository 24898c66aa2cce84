"""Several classifiers on one body that answer together: by vote, or by the mean of their probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import nn
from torch.nn import functional as F

from medfl.networks.heads import Activation, make_head

Together = Literal["vote", "prob_mean"]


class VotingHead(nn.Module):
    """Several heads as one: it stands where a network has its classifier.

    In evaluation the softmax of its logits is, for ``vote``, (votes + mean probability) / (heads + 1). So the class
    with most votes has the largest one; among tied classes that with the largest sum of probabilities; among sums that
    are equal to about six digits the first. In training, for ``prob_mean``, and of a single head, it is the mean
    probability: votes have no gradient.

    Args:
        features: Of the body, >= 1.
        widths: Of each head: the width of its layer between, or 0 for a single linear layer.
        num_classes: Number of classes, >= 2.
        together: ``vote`` or ``prob_mean``.
        dropout: Of the heads with two layers.
        activation: Of the heads with two layers.
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
        """Logits (B, num_classes) of features (B, features)."""
        probabilities = torch.stack([head(features).float().softmax(dim=1) for head in self.heads])
        together = probabilities.mean(dim=0)
        if self.vote and not self.training and len(probabilities) > 1:
            together = (votes(probabilities) + together) / (len(probabilities) + 1)
        return together.clamp_min(1e-12).log()


def votes(probabilities: torch.Tensor) -> torch.Tensor:
    """How many heads say each class.

    Args:
        probabilities: Class probabilities of each head, shape (heads, B, num_classes).

    Returns:
        Shape (B, num_classes), int64. A head whose largest probabilities are equal says the first of them.
    """
    return F.one_hot(probabilities.argmax(dim=2), probabilities.shape[2]).sum(dim=0)


def elected(probabilities: torch.Tensor) -> torch.Tensor:
    """The class with most votes; among tied ones that with the largest sum of probabilities; then the first.

    Args:
        probabilities: Class probabilities of each head, shape (heads, B, num_classes), float64 for exact ties.

    Returns:
        Shape (B,), int64.

    Source: Gao, Lan, Liu, Wang, Fan, MICCAI 2025, whose paper has no rule for ties.
    """
    counts = votes(probabilities)
    tied = counts == counts.max(dim=1, keepdim=True).values
    return probabilities.sum(dim=0).masked_fill(~tied, -1.0).argmax(dim=1)
