"""The critic of a Wasserstein GAN: a score for each image, higher for real ones."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn

from medfl_methods.fedfed.generator_parts import Halve, check_images, check_options, check_shape, halvings

STAGES = 4
"""The most halvings."""

LONGEST = 4
"""Longest edge of a map that is not halved again, and whose positions the linear layer sees apart."""


class Critic(nn.Module):
    """Halvings (kernel 4, stride 2), each with LeakyReLU(0.2), and a linear layer to one number.

    Nothing is normalised over a batch, so the score of an image does not depend on the others, and the gradient
    penalty of each image is its own. Three halvings for 28 or 32 pixels, four from 33 pixels on, fewer for images below
    17. A map that is still longer than `LONGEST`, for images from 65 pixels on, is averaged before the linear layer;
    so the number of weights is bounded.

    Args:
        shape: (C, H, W) or (C, D, H, W) of an image, each edge >= 4, even or odd.
        width: Channels after the first halving, >= 1; twice, and then four times as many after the others.

    Raises:
        SettingsError: If an argument is impossible.

    Source: Gulrajani et al., Improved Training of Wasserstein GANs, NeurIPS 2017, with the layers of DCGAN.
    """

    def __init__(self, shape: Sequence[int], width: int = 32) -> None:
        super().__init__()
        channels, edges = check_shape("Critic", shape)
        check_options("Critic", width=(width, 1))
        self.shape = tuple(shape)
        sizes = halvings(edges, LONGEST)[: STAGES + 1]
        widths = [channels, *(width * min(2**stage, 4) for stage in range(len(sizes) - 1))]
        layers: list[nn.Module] = []
        for before, after in zip(widths, widths[1:]):
            layers += [Halve(len(edges), before, after, bias=True), nn.LeakyReLU(0.2)]
        self.layers = nn.Sequential(*layers)
        self._averages = max(sizes[-1]) > LONGEST
        self.score = nn.Linear(widths[-1] * (1 if self._averages else math.prod(sizes[-1])), 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Scores (B,), of any size and sign, of images (B, *shape)."""
        check_images("Critic", images, self.shape)
        maps = self.layers(images).flatten(2)
        scores: torch.Tensor = self.score(maps.mean(2) if self._averages else maps.flatten(1))
        return scores[:, 0]
