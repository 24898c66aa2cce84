"""Losses that compare two models: distillation of predictions, and contrastive losses of features.

B is the number of images of a batch, d the number of features. The alternatives are the K answers that a model chooses
among, such as classes.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F


def distillation(student: torch.Tensor, teacher: torch.Tensor, tau: float = 1.0) -> torch.Tensor:
    """Compute tau^2 KL(teacher || student) of softened predictions for each image (Hinton, Vinyals, Dean 2015).

    Args:
        student: Logits of the alternatives, shape (B, K) or (B, K, ...), as `Objective.alternatives` returns them.
        teacher: Logits of the same shape; no gradient flows into them.
        tau: Temperature, > 0.

    Returns:
        Losses of shape (B,), >= 0, averaged over an image's further axes such as voxels; 0 for equal predictions.
    """
    aim = F.log_softmax(teacher.detach() / tau, dim=1)
    terms = F.kl_div(F.log_softmax(student / tau, dim=1), aim, reduction="none", log_target=True)
    each = terms.sum(dim=1)
    return tau**2 * (each if each.dim() == 1 else each.flatten(1).mean(dim=1))


def contrastive(features: torch.Tensor, near: torch.Tensor, far: torch.Tensor, tau: float) -> torch.Tensor:
    """Compute the contrastive loss of features z that are pulled towards `near` and pushed away from `far`.

    It is the mean over the images of -log(e^{cos(z, near)/tau} / (e^{cos(z, near)/tau} + e^{cos(z, far)/tau})).

    Args:
        features: Features z, (B, d).
        near: Features that attract z, (B, d); no gradient flows into them.
        far: Features that repel z, (B, d); no gradient flows into them.
        tau: Temperature, > 0.

    Returns:
        A scalar >= 0; ln 2 if z is equally similar to both.

    Source: Li, He, Song, CVPR 2021, equation 3.
    """
    gap = F.cosine_similarity(features, far.detach(), dim=1) - F.cosine_similarity(features, near.detach(), dim=1)
    return F.softplus(gap / tau).mean()
