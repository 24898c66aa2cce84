"""Operations on outputs of networks: averages over several networks, and detection of constant predictions."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch.nn.functional import logsigmoid

EQUALITY_TOLERANCE = 1e-6
"""Relative difference below which two numbers count as the same prediction."""


@dataclass(frozen=True)
class ConstantAnswer:
    """A prediction that a model makes for every case although the targets differ.

    Attributes:
        words: Description of the prediction, which completes the sentence "the model predicts ...".
        contradicted: Number of cases whose target differs from the prediction, >= 1.
    """

    words: str
    contradicted: int


def constant_numbers(predictions: torch.Tensor, targets: torch.Tensor) -> ConstantAnswer | None:
    """Return the answer of a model that predicts the same numbers for every case.

    Returns None if predictions differ, all targets are equal, or there is only one case.

    Args:
        predictions: Predictions (N, K), without NaN.
        targets: Targets (N, ...).
    """
    if len(predictions) < 2 or not bool((targets != targets[:1]).any()):
        return None
    spread = predictions.amax(0) - predictions.amin(0)
    if bool((spread > EQUALITY_TOLERANCE * predictions.abs().amax(0).clamp(min=1)).any()):
        return None
    return ConstantAnswer("the same value", len(predictions) - 1)


def mean_of_classes(logits: torch.Tensor) -> torch.Tensor:
    """Average the logits (M, N, C, ...) of M networks for C exclusive classes.

    Returns logits (N, C, ...) whose softmax is the mean of the networks' probabilities.
    """
    return logits.float().log_softmax(dim=2).logsumexp(dim=0) - math.log(len(logits))


def mean_of_findings(logits: torch.Tensor) -> torch.Tensor:
    """Average the logits (M, N, ...) of M networks for findings that are present or absent.

    Returns logits (N, ...) whose sigmoid is the mean of the networks' probabilities.
    """
    logits = logits.float()
    return logsigmoid(logits).logsumexp(dim=0) - logsigmoid(-logits).logsumexp(dim=0)
