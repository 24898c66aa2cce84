"""The small convolutional network of many federated-learning papers."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import nn

from medfl.errors import SettingsError


class CNN4(nn.Module):
    """Two 5x5 convolutions of 32 and 64 channels, each with pooling, and two linear layers of 512 and `num_classes`.

    ReLU throughout, no normalisation, no dropout. The network of McMahan et al. (AISTATS 2017) for small images; it
    has 1,663,370 parameters for one channel, 10 classes and 28 pixels. Pooling comes before ReLU, which gives the same
    numbers and gradients as after it, for a quarter of the work.

    Args:
        in_channels: Channels of an image, >= 1.
        num_classes: Number of classes, >= 2.
        size: Height and width of an image in pixels, >= 4.

    Attributes:
        body: Maps images (B, in_channels, size, size) to features (B, 512).
        head: Maps features to logits (B, num_classes).
        feature_layers: The stages of the body, in order.

    Raises:
        SettingsError: If an argument is too small.
    """

    def __init__(self, in_channels: int = 3, num_classes: int = 8, size: int = 28) -> None:
        super().__init__()
        for name, value, least in (("in_channels", in_channels, 1), ("num_classes", num_classes, 2), ("size", size, 4)):
            if value < least:
                raise SettingsError(f"CNN4 expected {name} >= {least}, got {value}")
        self.body = nn.Sequential(
            OrderedDict(
                stage1=_stage(in_channels, 32),
                stage2=_stage(32, 64),
                flatten=nn.Flatten(),
                dense=nn.Sequential(OrderedDict(fc=nn.Linear(64 * (size // 4) ** 2, 512), relu=nn.ReLU())),
            )
        )
        self.head = nn.Linear(512, num_classes)

    @property
    def feature_layers(self) -> list[nn.Module]:
        """The stages whose outputs are features: two maps and one vector."""
        return [self.body.stage1, self.body.stage2, self.body.dense]  # type: ignore[list-item]

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits (B, num_classes) of images (B, in_channels, size, size)."""
        logits: torch.Tensor = self.head(self.body(images))
        return logits


def _stage(in_channels: int, out_channels: int) -> nn.Sequential:
    conv = nn.Conv2d(in_channels, out_channels, kernel_size=5, padding=2)
    return nn.Sequential(OrderedDict(conv=conv, pool=nn.MaxPool2d(2), relu=nn.ReLU()))
