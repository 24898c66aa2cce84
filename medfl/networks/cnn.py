"""The small convolutional network of many federated-learning papers."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import nn

from medfl.errors import SettingsError


class CNN4(nn.Module):
    """Two convolutions of 32 and 64 channels, each with pooling, and two linear layers of 512 and `num_classes`.

    ReLU throughout, no normalisation, no dropout. In 2-D, with 5x5 kernels, it is the network of McMahan et al.
    (AISTATS 2017) for small images; it has 1,663,370 parameters for one channel, 10 classes and 28 pixels. For volumes
    the kernels are 3x3x3, which takes a fifth of the work of 5x5x5. Pooling comes before ReLU, which gives the same
    numbers and gradients as after it, for less work.

    Args:
        in_channels: Channels of an image, >= 1.
        num_classes: Number of classes, >= 2.
        size: Edge of a square or cubic image in pixels, or its height and width, or depth, height and width; each >= 4.
        spatial_dims: 2 for images, 3 for volumes.

    Attributes:
        body: Maps images (B, in_channels, *size) to features (B, 512).
        head: Maps features to logits (B, num_classes).
        feature_layers: The stages of the body, in order.

    Raises:
        SettingsError: If an argument is too small.
    """

    __jit_unused_properties__: ClassVar = ["feature_layers"]  # TorchScript has no lists of modules

    def __init__(
        self, in_channels: int = 3, num_classes: int = 8, size: int | Sequence[int] = 28, spatial_dims: int = 2
    ) -> None:
        super().__init__()
        if spatial_dims not in (2, 3):
            raise SettingsError(f"CNN4 expected spatial_dims 2 or 3, got {spatial_dims}")
        edges = [size] * spatial_dims if isinstance(size, int) else list(size)
        if len(edges) != spatial_dims:
            raise SettingsError(f"CNN4 expected one size or {spatial_dims} of them, got {edges}")
        for name, value, least in (
            ("in_channels", in_channels, 1),
            ("num_classes", num_classes, 2),
            ("size", min(edges), 4),
        ):
            if value < least:
                raise SettingsError(f"CNN4 expected {name} >= {least}, got {value}")
        pixels = math.prod(edge // 4 for edge in edges)
        self.body = nn.Sequential(
            OrderedDict(
                stage1=_stage(spatial_dims, in_channels, 32),
                stage2=_stage(spatial_dims, 32, 64),
                flatten=nn.Flatten(),
                dense=nn.Sequential(OrderedDict(fc=nn.Linear(64 * pixels, 512), relu=nn.ReLU())),
            )
        )
        self.head = nn.Linear(512, num_classes)

    @property
    def feature_layers(self) -> list[nn.Module]:
        """The stages whose outputs are features: two maps and one vector."""
        return [self.body.stage1, self.body.stage2, self.body.dense]  # type: ignore[list-item]

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits (B, num_classes) of images (B, in_channels, *size)."""
        logits: torch.Tensor = self.head(self.body(images))
        return logits


def _stage(spatial_dims: int, in_channels: int, out_channels: int) -> nn.Sequential:
    if spatial_dims == 2:
        conv: nn.Module = nn.Conv2d(in_channels, out_channels, kernel_size=5, padding=2)
        return nn.Sequential(OrderedDict(conv=conv, pool=nn.MaxPool2d(2), relu=nn.ReLU()))
    conv = nn.Conv3d(in_channels, out_channels, kernel_size=3, padding=1)
    return nn.Sequential(OrderedDict(conv=conv, pool=nn.MaxPool3d(2), relu=nn.ReLU()))
