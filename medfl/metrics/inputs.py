"""What every metric asks of its inputs."""

from __future__ import annotations

import torch

from medfl.errors import ContractError


def scorable(probabilities: torch.Tensor, labels: torch.Tensor, num_classes: int) -> bool:
    """Whether there is anything to score: at least one image, and no NaN.

    Args:
        probabilities: (N, C), floating.
        labels: (N,), int64, in [0, C).
        num_classes: C.

    Raises:
        ContractError: If shapes or labels don't fit. Without images the shape of `probabilities` is not looked at.
    """
    if not len(labels):
        return False
    if probabilities.shape != (len(labels), num_classes):
        raise ContractError(
            f"expected probabilities of shape ({len(labels)}, {num_classes}), got {tuple(probabilities.shape)}. "
            "The predictor should return one logit for each class."
        )
    if int(labels.min()) < 0 or int(labels.max()) >= num_classes:
        raise ContractError(
            f"expected labels in [0, {num_classes}), got [{int(labels.min())}, {int(labels.max())}]. "
            "Correct the labels or the task's number of classes."
        )
    return not bool(torch.isnan(probabilities).any())
