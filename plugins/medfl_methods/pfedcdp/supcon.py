"""The supervised contrastive loss: images of one class are drawn together, others apart."""

from __future__ import annotations

from typing import Literal

import torch
from torch.nn import functional as F


def supcon(
    embeddings: torch.Tensor, labels: torch.Tensor, tau: float = 0.1, reduction: Literal["mean", "sum"] = "mean"
) -> torch.Tensor:
    """The supervised contrastive loss with the sum outside of the logarithm (Khosla et al., NeurIPS 2020, equation 2).

    Of anchor i with the positives P(i), all other embeddings of its label, it is
    -1/\\|P(i)\\| sum over P(i) of log(exp(e_i e_j / tau) / sum over all but i of exp(e_i e_a / tau)).

    Args:
        embeddings: Shape (M, d), of any norm: they are brought to norm 1 here. Views of one image are rows of their
            own, with its label.
        labels: Shape (M,).
        tau: Temperature, > 0.
        reduction: The ``mean`` or the ``sum`` over the anchors that have a positive.

    Returns:
        A scalar, >= 0; 0 if no anchor has a positive.
    """
    unit = F.normalize(embeddings, dim=1)
    itself = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    logits = (unit @ unit.T / tau).masked_fill(itself, -torch.inf)
    positive = (labels[:, None] == labels[None, :]) & ~itself
    counts = positive.sum(dim=1)
    logs = logits.log_softmax(dim=1).masked_fill(~positive, 0.0).sum(dim=1)
    anchors = -logs[counts > 0] / counts[counts > 0]
    if not len(anchors):
        return embeddings.sum() * 0.0
    return anchors.mean() if reduction == "mean" else anchors.sum()
