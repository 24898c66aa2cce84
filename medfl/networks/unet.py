"""MONAI's U-Net for segmentation (see `medfl.networks.segmentation_common`), and a classifier made of its encoder."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from typing import ClassVar

import torch
from monai.networks import nets
from monai.networks.layers.factories import Pool
from torch import nn

from medfl.errors import SettingsError
from medfl.networks.resnet_blocks import LayerSpec
from medfl.networks.segmentation_common import EdgeLengths, convert_monai_errors, finalize_network, monai_layer


class UNet(nets.UNet):
    """MONAI's residual U-Net (Kerfoot et al. 2018).

    Its last layer is the transposed convolution to the size of the image, followed by its residual unit.

    Args:
        in_channels: Number of image channels, >= 1.
        out_channels: Number of logit channels, >= 1.
        spatial_dims: 2 for images, 3 for volumes.
        channels: Number of channels of each level, from the top, at least two levels.
        strides: Strides between the levels, one fewer than `channels`; None is 2 for all.
        kernel_size: Edge of the kernels, odd.
        num_res_units: Number of convolutions of each residual unit; 0 gives a plain U-Net.
        norm: Name of a normalisation layer in MONAI, or a pair of name and options.
        act: Name of an activation in MONAI, or a pair of name and options.
        dropout: Dropout rate, in [0, 1).
        size: Edges of an image or patch in voxels. If set, sizes that don't fit the strides are refused; it has no
            other effect.

    Raises:
        SettingsError: If an argument is invalid.
    """

    __jit_unused_properties__: ClassVar = ["head", "feature_layers"]  # TorchScript can't return modules

    def __init__(
        self,
        in_channels: int = 1,
        out_channels: int = 2,
        spatial_dims: int = 3,
        channels: Sequence[int] = (16, 32, 64, 128, 256),
        strides: Sequence[int] | None = None,
        kernel_size: int = 3,
        num_res_units: int = 2,
        norm: LayerSpec = "instance",
        act: LayerSpec = "prelu",
        dropout: float = 0.0,
        size: EdgeLengths | None = None,
    ) -> None:
        strides = [2] * (len(channels) - 1) if strides is None else list(strides)
        with convert_monai_errors("UNet"):
            super().__init__(
                spatial_dims,
                in_channels,
                out_channels,
                list(channels),
                strides,
                kernel_size=kernel_size,
                up_kernel_size=kernel_size,
                num_res_units=num_res_units,
                norm=monai_layer(norm),
                act=monai_layer(act),
                dropout=dropout,
            )
        finalize_network(self, size, [math.prod(strides)] * spatial_dims)

    @property
    def head(self) -> nn.Module:
        """The last layer, ``model.2`` in MONAI's names."""
        return self.model[2]  # type: ignore[index]

    @property
    def feature_layers(self) -> list[nn.Module]:
        """Levels of the encoder, with the bottleneck last; their outputs are feature maps."""
        layers, level = [], self.model
        for _ in self.channels[:-1]:
            layers.append(level[0])  # type: ignore[index]
            level = level[1].submodule  # type: ignore[index]
        return [*layers, level]


class UNetClassifier(nn.Module):
    """Encoder of `UNet` with global average pooling and a linear classifier.

    The levels equal the levels of a U-Net with the same options, with the same initial tensors from the same seed. They
    can load the tensors of a trained U-Net (`feature_layers` of both, one by one).

    Args:
        in_channels: Number of image channels, >= 1.
        num_classes: Number of classes, >= 2.
        spatial_dims: 2 for images, 3 for volumes.
        channels: Number of channels of each level, from the top; the last one is the number of features.
        strides: Strides between the levels, one fewer than `channels`; None is 2 for all.
        kernel_size: Edge of the kernels, odd.
        num_res_units: Number of convolutions of each residual unit; 0 gives plain convolutions.
        norm: Name of a normalisation layer in MONAI, or a pair of name and options.
        act: Name of an activation in MONAI, or a pair of name and options.
        dropout: Dropout rate, in [0, 1).
        size: Edges of an image in voxels. If set, sizes that don't fit the strides are refused; it has no other effect.

    Attributes:
        body: Feature extractor from images (B, in_channels, *size) to features (B, channels[-1]).
        head: Classifier from features to logits (B, num_classes).
        feature_layers: Levels of the encoder, in order; their outputs are feature maps.

    Raises:
        SettingsError: If an argument is invalid.
    """

    __jit_unused_properties__: ClassVar = ["feature_layers"]

    def __init__(
        self,
        in_channels: int = 1,
        num_classes: int = 2,
        spatial_dims: int = 2,
        channels: Sequence[int] = (16, 32, 64, 128, 256),
        strides: Sequence[int] | None = None,
        kernel_size: int = 3,
        num_res_units: int = 2,
        norm: LayerSpec = "instance",
        act: LayerSpec = "prelu",
        dropout: float = 0.0,
        size: EdgeLengths | None = None,
    ) -> None:
        super().__init__()
        if num_classes < 2:
            raise SettingsError(
                "setting_out_of_range",
                f"UNetClassifier expected num_classes >= 2, got {num_classes}",
                network="UNetClassifier",
                setting="num_classes",
                minimum=2,
                found=num_classes,
            )
        whole = UNet(
            in_channels, 2, spatial_dims, channels, strides, kernel_size, num_res_units, norm, act, dropout, size
        )
        parts = OrderedDict((f"level{number}", level) for number, level in enumerate(whole.feature_layers, 1))
        parts["average"] = Pool[Pool.ADAPTIVEAVG, spatial_dims](1)
        parts["flatten"] = nn.Flatten()
        self.body = nn.Sequential(parts)
        self.head = nn.Linear(channels[-1], num_classes)

    @property
    def feature_layers(self) -> list[nn.Module]:
        """Levels of the encoder, whose outputs are feature maps."""
        return [part for name, part in self.body.named_children() if name.startswith("level")]

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Compute logits (B, num_classes) of images (B, in_channels, *size)."""
        logits: torch.Tensor = self.head(self.body(images))
        return logits
