"""Images of noise that a teacher is sure of: the generator of data-free distillation, and its loss."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from monai.networks.layers.factories import Conv, Norm
from torch import nn
from torch.nn import functional as F


class Generator(nn.Module):
    """Images of noise: a linear layer, and three convolutions with two doublings between; of mean 0 and variance 1.

    Args:
        shape: (C, *spatial) of an image, two or three axes of space.
        noise_dim: Numbers that an image is made from.
        width: Channels of the last stage; twice as many before.
    """

    def __init__(self, shape: Sequence[int], noise_dim: int, width: int) -> None:
        super().__init__()
        channels, *edges = shape
        conv, norm = Conv[Conv.CONV, len(edges)], Norm[Norm.BATCH, len(edges)]
        self._sizes = [[max(2, math.ceil(edge / 4)) for edge in edges], [math.ceil(edge / 2) for edge in edges], edges]
        self.linear = nn.Linear(noise_dim, 2 * width * math.prod(self._sizes[0]))
        self.stages = nn.ModuleList(
            [
                norm(2 * width),
                nn.Sequential(conv(2 * width, 2 * width, 3, padding=1), norm(2 * width), nn.LeakyReLU(0.2)),
                nn.Sequential(conv(2 * width, width, 3, padding=1), norm(width), nn.LeakyReLU(0.2)),
            ]
        )
        self.last = nn.Sequential(conv(width, channels, 3, padding=1), nn.Tanh(), norm(channels, affine=False))

    def forward(self, noise: torch.Tensor) -> torch.Tensor:
        """Images (B, C, *spatial) of noise (B, noise_dim)."""
        maps = self.linear(noise).unflatten(1, (-1, *self._sizes[0]))
        for stage, size in zip(self.stages, self._sizes):
            maps = stage(F.interpolate(maps, size=size))
        images: torch.Tensor = self.last(maps)
        return images


def generator_loss(logits: torch.Tensor, features: torch.Tensor, oh: float, a: float) -> torch.Tensor:
    """What a generator minimises of what the teacher says of its images.

    Args:
        logits: (B, C).
        features: (B, d).
        oh: Weight of the cross entropy to the teacher's own choice.
        a: Weight of the mean absolute feature.
    """
    return imbalance(logits.softmax(1)) + oh * F.cross_entropy(logits, logits.argmax(1)) - a * features.abs().mean()


def imbalance(probabilities: torch.Tensor) -> torch.Tensor:
    """1 + sum_c p_c log p_c / log C of the mean p of probabilities (B, C): 0 for all classes alike, 1 for a single."""
    mean = probabilities.mean(0)
    return 1 + torch.xlogy(mean, mean).sum() / math.log(len(mean))
