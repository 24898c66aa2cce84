"""Generator of data-free distillation, which makes images from noise that a teacher classifies with certainty."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from monai.networks.layers.factories import Conv, Norm
from torch import nn
from torch.nn import functional as F


class Generator(nn.Module):
    """Network that maps noise to images of mean 0 and variance 1.

    It has a linear layer and three convolutions with two doublings of the size between them.

    Args:
        shape: Shape (C, *spatial) of an image, two or three spatial axes.
        noise_dim: Number of noise variables from which an image is generated.
        width: Number of channels of the last stage; the stages before it have twice as many.

    Attributes:
        linear: Linear layer from noise to the first feature map.
        stages: Layers for each size of the feature map, small to large: normalisation, then convolutions with it.
        last: Final convolution to the image, with tanh and normalisation.
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
        """Generate images (B, C, *spatial) from noise (B, noise_dim)."""
        maps = self.linear(noise).unflatten(1, (-1, *self._sizes[0]))
        for stage, size in zip(self.stages, self._sizes):
            maps = stage(F.interpolate(maps, size=size))
        images: torch.Tensor = self.last(maps)
        return images


def generator_loss(logits: torch.Tensor, features: torch.Tensor, oh: float, a: float) -> torch.Tensor:
    """Return the generator's loss from the teacher's outputs for generated images.

    The loss is the imbalance of the predicted classes, plus `oh` times a cross-entropy, minus `a` times the size of
    features.

    Args:
        logits: Logits of the teacher for B images and C classes, (B, C).
        features: Features of the teacher, d for each image, (B, d).
        oh: Weight of the cross-entropy with the teacher's most probable class.
        a: Weight of the mean absolute feature.
    """
    return imbalance(logits.softmax(1)) + oh * F.cross_entropy(logits, logits.argmax(1)) - a * features.abs().mean()


def imbalance(probabilities: torch.Tensor) -> torch.Tensor:
    """Return how unequal the mean class probabilities of a batch are, 1 + sum_c p_c log p_c / log C.

    p is the mean of the `probabilities` (B, C) over B images. The result is 0 if all classes are equally probable and 1
    for a single class.
    """
    mean = probabilities.mean(0)
    return 1 + torch.xlogy(mean, mean).sum() / math.log(len(mean))
