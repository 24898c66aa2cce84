"""Supervised contrastive loss: pulls images of one class together and pushes other images apart."""

from __future__ import annotations

from typing import Literal

import torch
from torch.nn import functional as F


def supcon(
    embeddings: torch.Tensor, labels: torch.Tensor, tau: float = 0.1, reduction: Literal["mean", "sum"] = "mean"
) -> torch.Tensor:
    """Return the supervised contrastive loss with the sum outside of the logarithm.

    For anchor i with the positives P(i), which are all other embeddings with the label of i, the loss is -1/size(P(i))
    sum over P(i) of log(exp(e_i e_j / tau) / sum over all but i of exp(e_i e_a / tau)).

    Args:
        embeddings: Embeddings, shape (M, d), of any norm; they are scaled to norm 1 here. Each view of an image has its
            own row, with the image's label.
        labels: Class labels, shape (M,).
        tau: Temperature, > 0.
        reduction: The ``mean`` or the ``sum`` over the anchors that have a positive.

    Returns:
        Scalar, >= 0; 0 if no anchor has a positive.

    Source: Khosla et al., NeurIPS 2020, equation 2.
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
