"""Anchors of classes: the distance of features to them, and how a site's own follow its features."""

from __future__ import annotations

import torch

from medfl.types import Tensors


class OwnAnchors:
    """A site's anchors, and the means of its features since they were moved last.

    Args:
        anchors: As received, (C, d).
    """

    def __init__(self, anchors: torch.Tensor) -> None:
        self._rows, self._known = anchors.clone(), torch.zeros(len(anchors), dtype=torch.bool, device=anchors.device)
        self._sums, self._batches = torch.zeros_like(anchors), anchors.new_zeros(len(anchors))

    def note(self, features: torch.Tensor, labels: torch.Tensor) -> None:
        """Add the class means of a batch: features (B, d), labels (B,)."""
        counts = torch.bincount(labels, minlength=len(self._rows))
        means = torch.zeros_like(self._rows).index_add_(0, labels, features) / counts.clamp(min=1)[:, None]
        self._sums += means
        self._batches += counts > 0

    def move(self, momentum: float) -> None:
        """Move the anchors of the classes that were seen since, and forget these."""
        seen = self._batches > 0
        means = self._sums / self._batches.clamp(min=1)[:, None]
        self._rows = torch.where(seen[:, None], momentum * self._rows + (1 - momentum) * means, self._rows)
        self._known |= seen
        self._sums.zero_()
        self._batches.zero_()

    def of_own_classes(self) -> Tensors:
        """Anchors (d,) of all classes that were seen, by the number of the class."""
        return {str(label): self._rows[label].clone() for label in self._known.nonzero().flatten().tolist()}


def anchor_loss(features: torch.Tensor, anchors: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """(1/C) times the sum over the batch's classes of the mean squared distance of their features to the anchor.

    Args:
        features: (B, d).
        anchors: (C, d).
        labels: (B,).
    """
    squares = (features - anchors[labels]).square().sum(1)
    counts = torch.bincount(labels, minlength=len(anchors))
    return (squares / counts[labels]).sum() / len(anchors)
