"""What several networks say together: logits of their mean probabilities."""

from __future__ import annotations

import math

import torch
from torch.nn.functional import logsigmoid


def mean_of_classes(logits: torch.Tensor) -> torch.Tensor:
    """Logits (N, C, ...) whose softmax is the mean of the softmax of each of the logits (M, N, C, ...)."""
    return logits.float().log_softmax(dim=2).logsumexp(dim=0) - math.log(len(logits))


def mean_of_findings(logits: torch.Tensor) -> torch.Tensor:
    """Logits (N, ...) whose sigmoid is the mean of the sigmoid of each of the logits (M, N, ...)."""
    logits = logits.float()
    return logsigmoid(logits).logsumexp(dim=0) - logsigmoid(-logits).logsumexp(dim=0)
