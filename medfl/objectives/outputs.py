"""Outputs of networks: those of several networks averaged, and predictions that are the same for every case."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch.nn.functional import logsigmoid

SAME = 1e-6
"""Relative difference below which two numbers count as the same prediction."""


@dataclass(frozen=True)
class ConstantAnswer:
    """A prediction that a model gives for every case, although the targets say otherwise.

    Attributes:
        words: The prediction, as the end of a sentence that begins with "the model predicts".
        contradicted: Number of cases whose target says otherwise, >= 1.
    """

    words: str
    contradicted: int


def constant_numbers(predictions: torch.Tensor, targets: torch.Tensor) -> ConstantAnswer | None:
    """Return the answer of a model that predicts the same numbers for every case; None if cases or targets are alike.

    Args:
        predictions: Predicted numbers, (N, K), without NaN.
        targets: Targets, (N, ...).
    """
    if len(predictions) < 2 or not bool((targets != targets[:1]).any()):
        return None
    spread = predictions.amax(0) - predictions.amin(0)
    if bool((spread > SAME * predictions.abs().amax(0).clamp(min=1)).any()):
        return None
    return ConstantAnswer("the same value", len(predictions) - 1)


def mean_of_classes(logits: torch.Tensor) -> torch.Tensor:
    """Logits (N, C, ...) whose softmax is the mean of the softmax of each of the logits (M, N, C, ...)."""
    return logits.float().log_softmax(dim=2).logsumexp(dim=0) - math.log(len(logits))


def mean_of_findings(logits: torch.Tensor) -> torch.Tensor:
    """Logits (N, ...) whose sigmoid is the mean of the sigmoid of each of the logits (M, N, ...)."""
    logits = logits.float()
    return logsigmoid(logits).logsumexp(dim=0) - logsigmoid(-logits).logsumexp(dim=0)
