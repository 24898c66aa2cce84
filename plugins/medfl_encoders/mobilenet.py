"""MobileNetV2: a small convolutional network with weights from ImageNet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import nn

from medfl_encoders import IMAGENET_MEAN, IMAGENET_STD
from medfl_encoders.image_input import ImageInput
from medfl_encoders.inverted_residual import Convention, InvertedResidualBody, Stage, stage_ends

STAGES = (
    Stage(1, 16, 1, 1),
    Stage(6, 24, 2, 2),
    Stage(6, 32, 3, 2),
    Stage(6, 64, 4, 2),
    Stage(6, 96, 3, 1),
    Stage(6, 160, 3, 2),
    Stage(6, 320, 1, 1),
)
"""Stages of MobileNetV2 with width multiplier 1."""

CONVENTION = Convention(norm_eps=1e-5, norm_momentum=0.1, same_padding=False)
"""PyTorch's padding and batch norm, with which the weights were trained."""


class MobileNetV2(nn.Module):
    """MobileNetV2 with width multiplier 1 (Sandler et al., CVPR 2018) for images of any size.

    Images in [0, 1] are resized and normalised by the network itself (`medfl_encoders.image_input.ImageInput`), so a
    bundle must not normalise them before.

    Args:
        in_channels: Number of image channels, 1 or 3; one channel is repeated three times.
        num_classes: Number of classes, >= 2.
        spatial_dims: 2 for images; 3 for volumes, of which slices are encoded and their features averaged.
        size: Edge in pixels to which images are resized, >= 32; the weights were trained at 224.
        mean: Mean of the three channels on the scale [0, 1], which belongs to the weights.
        std: Standard deviation of the three channels, which belongs to the weights.

    Attributes:
        body: Feature extractor from images (B, in_channels, H, W) to features (B, 1280).
        head: Linear classifier from features to logits (B, num_classes).
        feature_layers: Last block of each of the seven stages, whose outputs are feature maps.

    Raises:
        SettingsError: If an argument is invalid.
    """

    __jit_unused_properties__: ClassVar = ["feature_layers"]  # TorchScript has no lists of modules

    def __init__(
        self,
        in_channels: int = 3,
        num_classes: int = 2,
        spatial_dims: int = 2,
        size: int = 224,
        mean: Sequence[float] = IMAGENET_MEAN,
        std: Sequence[float] = IMAGENET_STD,
    ) -> None:
        super().__init__()
        image_input = ImageInput("MobileNetV2", in_channels, spatial_dims, size, mean=mean, std=std)
        self.body = InvertedResidualBody(image_input, STAGES, CONVENTION)
        self.head = nn.Linear(1280, num_classes)

    @property
    def feature_layers(self) -> list[nn.Module]:
        """Last block of each stage."""
        return stage_ends(self.body, STAGES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Compute logits (B, num_classes) of images (B, in_channels, H, W) in [0, 1]."""
        logits: torch.Tensor = self.head(self.body(images))
        return logits
