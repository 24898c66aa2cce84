"""Losses of what two models make of an image: distillation of predictions, and contrasts of features."""

from __future__ import annotations

import torch
from torch.nn import functional as F


def distillation(student: torch.Tensor, teacher: torch.Tensor, tau: float = 1.0) -> torch.Tensor:
    """tau^2 KL(teacher || student) of softened predictions, for each image (Hinton, Vinyals, Dean 2015).

    Args:
        student: Logits of alternatives, shape (B, K) or (B, K, ...), as `Objective.alternatives` gives them.
        teacher: Logits, the same shape; no gradient flows into them.
        tau: Temperature, > 0.

    Returns:
        Shape (B,), >= 0: the mean over what an image has several of, such as voxels; 0 where both say the same.
    """
    aim = F.log_softmax(teacher.detach() / tau, dim=1)
    terms = F.kl_div(F.log_softmax(student / tau, dim=1), aim, reduction="none", log_target=True)
    each = terms.sum(dim=1)
    return tau**2 * (each if each.dim() == 1 else each.flatten(1).mean(dim=1))


def contrastive(features: torch.Tensor, near: torch.Tensor, far: torch.Tensor, tau: float) -> torch.Tensor:
    """-log(e^{cos(z, near)/tau} / (e^{cos(z, near)/tau} + e^{cos(z, far)/tau})), as a mean over images.

    Args:
        features: z, (B, d).
        near: What z is drawn to, (B, d); no gradient flows into it.
        far: What z is drawn away from, (B, d); no gradient flows into it.
        tau: Temperature, > 0.

    Returns:
        A scalar >= 0; ln 2 where both are as near.

    Source: Li, He, Song, CVPR 2021, equation 3.
    """
    gap = F.cosine_similarity(features, far.detach(), dim=1) - F.cosine_similarity(features, near.detach(), dim=1)
    return F.softplus(gap / tau).mean()
