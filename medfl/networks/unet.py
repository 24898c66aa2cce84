"""MONAI's U-Net, see `medfl.networks.masks`; and its way down alone, with a classifier."""

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
from medfl.networks.masks import Edges, layer_spec, make_ready, refusals
from medfl.networks.resnet_blocks import LayerSpec


class UNet(nets.UNet):
    """MONAI's residual U-Net (Kerfoot et al. 2018).

    Its last layer is the transposed convolution to the size of the image, with residual units and the unit behind it.

    Args:
        in_channels: Channels of an image, >= 1.
        out_channels: Channels of the logits, >= 1.
        spatial_dims: 2 for images, 3 for volumes.
        channels: Of each level, from the top, at least two.
        strides: Between the levels, one fewer than `channels`; None is 2 for all.
        kernel_size: Edge of the kernels, odd.
        num_res_units: Convolutions of each residual unit; 0 for a plain U-Net.
        norm: Normalisation by MONAI's name, or a pair of name and options.
        act: Activation, as `norm`.
        dropout: In [0, 1).
        size: Edges of an image or patch in voxels. It changes nothing: if given, those that don't fit are refused.

    Raises:
        SettingsError: If an argument is impossible.
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
        size: Edges | None = None,
    ) -> None:
        strides = [2] * (len(channels) - 1) if strides is None else list(strides)
        with refusals("UNet"):
            super().__init__(
                spatial_dims,
                in_channels,
                out_channels,
                list(channels),
                strides,
                kernel_size=kernel_size,
                up_kernel_size=kernel_size,
                num_res_units=num_res_units,
                norm=layer_spec(norm),
                act=layer_spec(act),
                dropout=dropout,
            )
        make_ready(self, size, [math.prod(strides)] * spatial_dims)

    @property
    def head(self) -> nn.Module:
        """The last layer, ``model.2`` in MONAI's names."""
        return self.model[2]  # type: ignore[index]

    @property
    def feature_layers(self) -> list[nn.Module]:
        """The levels on the way down, and the bottom."""
        layers, level = [], self.model
        for _ in self.channels[:-1]:
            layers.append(level[0])  # type: ignore[index]
            level = level[1].submodule  # type: ignore[index]
        return [*layers, level]


class UNetClassifier(nn.Module):
    """The way down of `UNet`, the mean of each map at its bottom, and a linear classifier.

    The levels are those of a U-Net with the same options, with the same initial tensors from the same seed; they take
    the tensors of one that was trained (`feature_layers` of both, one by one).

    Args:
        in_channels: Channels of an image, >= 1.
        num_classes: Number of classes, >= 2.
        spatial_dims: 2 for images, 3 for volumes.
        channels: As for `UNet`; the last one is the number of features.
        strides: As for `UNet`.
        kernel_size: As for `UNet`.
        num_res_units: As for `UNet`.
        norm: As for `UNet`.
        act: As for `UNet`.
        dropout: As for `UNet`.
        size: As for `UNet`.

    Attributes:
        body: Maps images (B, in_channels, *size) to features (B, channels[-1]).
        head: The classifier; maps features to logits (B, num_classes).

    Raises:
        SettingsError: If an argument is impossible.
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
        size: Edges | None = None,
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
        """The levels, whose outputs are maps."""
        return [part for name, part in self.body.named_children() if name.startswith("level")]

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits (B, num_classes) of images (B, in_channels, *size)."""
        logits: torch.Tensor = self.head(self.body(images))
        return logits
