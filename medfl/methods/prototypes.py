"""Prototypes: what a network's body makes of the images of a class, on average."""

from __future__ import annotations

import math

import torch
from torch import nn

from medfl.networks.parts import body_and_head
from medfl.types import Dataset


@torch.no_grad()
def prototypes(model: nn.Module, data: Dataset, classes: int, batch_size: int, device: str) -> torch.Tensor:
    """Mean features of the images of each class.

    Args:
        model: Has a body that gives features (B, d); put into evaluation mode.
        data: At least one image.
        classes: Number of classes of the task.
        batch_size: Images at a time.
        device: Where the model is.

    Returns:
        (classes, d), float32, on the device; NaN for a class without images, so nobody can take it for a prototype.
    """
    body = body_and_head(model.eval())[0]
    sums = torch.zeros(0, device=device)
    counts = torch.zeros(classes, dtype=torch.float64, device=device)
    for rows in torch.arange(len(data)).split(batch_size):
        images, labels = data.batch(rows)
        features, labels = body(images.to(device)).flatten(1).double(), labels.to(device)
        sums = sums if sums.numel() else features.new_zeros(classes, features.shape[1])
        sums.index_add_(0, labels, features)
        counts += torch.bincount(labels, minlength=classes)
    return (sums / torch.where(counts > 0, counts, math.nan)[:, None]).float()


def scaled(prototypes: torch.Tensor) -> torch.Tensor:
    """Prototypes (classes, d) of norm sqrt(d), that of a standard normal vector; zeros stay zeros."""
    norms = torch.linalg.vector_norm(prototypes, dim=1, keepdim=True)
    return torch.where(norms == 0, prototypes, prototypes * math.sqrt(prototypes.shape[1]) / norms)


def distance(latent: torch.Tensor, prototypes: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean over a batch of the squared distance of each latent vector to the prototype of its class.

    Args:
        latent: (B, d).
        prototypes: (classes, d); those of the labels are present.
        labels: (B,).

    Source: FedTPF, equation 6.
    """
    return (latent - prototypes[labels]).square().sum(1).mean()
