"""Residual blocks of `ResNet`, and their normalisation and activation layers."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import nn

from medfl.errors import SettingsError
from medfl.networks.pooling import subsample

LayerSpec = str | Sequence[Any]
"""Layer in MONAI's notation: ``"batch"``, or ``("group", {"num_groups": 8})``, which is a list in JSON."""


def layer_type(kind: str, spatial_dims: int) -> type[nn.Module]:
    """Return torch's class of a layer for a number of spatial dimensions: for ``"Conv"`` and 2, `torch.nn.Conv2d`."""
    layer: type[nn.Module] = getattr(nn, f"{kind}{spatial_dims}d")
    return layer


def group_count(channels: int) -> int:
    """Return the number of groups of a GroupNorm: the largest divisor of `channels` up to 32 and up to `channels` / 2.

    Wu and He (ECCV 2018) use 32 groups, which do not divide widths such as 62. This rule gives 32, 31, 30 and 29 groups
    for 64, 62, 60 and 58 channels. A group of one channel would be instance normalisation, which erases a map of one
    pixel.

    Args:
        channels: Number of channels, >= 1.

    Returns:
        Number of groups, 1 to 32; 1 for a prime number of channels.
    """
    return next(groups for groups in range(max(1, min(32, channels // 2)), 0, -1) if channels % groups == 0)


def norm_layer(norm: LayerSpec, spatial_dims: int, channels: int) -> nn.Module:
    """Return a normalisation layer; for ``"group"`` without a number of groups, `group_count` chooses it.

    MONAI is imported only for layers with options and for layers other than batch and group normalisation.

    Raises:
        SettingsError: If MONAI has no such layer or can't build it for that number of channels.
    """
    if norm == "batch":
        return layer_type("BatchNorm", spatial_dims)(channels)
    if norm == "group":
        return nn.GroupNorm(group_count(channels), channels)
    from monai.networks.layers.factories import split_args
    from monai.networks.layers.utils import get_norm_layer

    try:
        name, options = split_args(norm)
        if str(name).lower() == "group":
            options = {"num_groups": group_count(channels), **options}
        layer: nn.Module = get_norm_layer((name, options), spatial_dims=spatial_dims, channels=channels)
    except (KeyError, TypeError, ValueError) as error:
        known = f"'batch', 'group', 'instance' or a pair of MONAI's name and options that suits {channels} channels"
        raise SettingsError(
            "invalid_layer",
            f"ResNet expected norm to be {known}, got {norm!r}: {_one_line(error)}",
            network="ResNet",
            setting="norm",
            channels=channels,
            found=str(norm),
        ) from error
    return layer


def act_layer(act: LayerSpec) -> nn.Module:
    """Return an activation layer; MONAI is imported for all except ``"relu"``.

    Raises:
        SettingsError: If MONAI has no such layer, or if the layer works in place. It would overwrite a tensor that
            backward hooks, and so Opacus, still need.
    """
    if act == "relu":
        return nn.ReLU()
    from monai.networks.layers.factories import split_args
    from monai.networks.layers.utils import get_act_layer

    try:
        layer: nn.Module = get_act_layer(split_args(act))
    except (KeyError, TypeError, ValueError) as error:
        known = "MONAI's name of an activation or a pair of name and options"
        raise SettingsError(
            "invalid_layer",
            f"ResNet expected act to be {known}, got {act!r}: {_one_line(error)}",
            network="ResNet",
            setting="act",
            found=str(act),
        ) from error
    if getattr(layer, "inplace", False):
        raise SettingsError(
            "inplace_activation",
            f"ResNet expected an activation that does not work in place, got {act!r}. Drop 'inplace'.",
            network="ResNet",
            found=str(act),
        )
    return layer


class BasicBlock(nn.Module):
    """Residual block with two 3x3 convolutions, from (B, `in_channels`, ...) to (B, `channels`, ...).

    Args:
        spatial_dims: 2 or 3.
        in_channels: Number of input channels, >= 1.
        channels: Number of channels of the convolutions, >= 1; the output has `expansion` times as many.
        stride: Stride of the block, >= 1.
        norm: Normalisation after each convolution.
        act: Activation.

    Attributes:
        conv1: First convolution.
        bn1: Normalisation after the first convolution.
        act: Activation, after the first normalisation and at the end.
        conv2: Second convolution.
        bn2: Normalisation after the second convolution.
        downsample: Shortcut from the input to the output.
    """

    expansion: ClassVar = 1
    """Number of output channels divided by `channels`."""

    def __init__(
        self, spatial_dims: int, in_channels: int, channels: int, stride: int, norm: LayerSpec, act: LayerSpec
    ) -> None:
        super().__init__()
        shortcut = _shortcut(spatial_dims, in_channels, channels, stride, norm)  # drawn first, as by MONAI
        conv = layer_type("Conv", spatial_dims)
        self.conv1 = conv(in_channels, channels, kernel_size=3, stride=stride, padding=1, bias=False)
        self.bn1 = norm_layer(norm, spatial_dims, channels)
        self.act = act_layer(act)
        self.conv2 = conv(channels, channels, kernel_size=3, padding=1, bias=False)
        self.bn2 = norm_layer(norm, spatial_dims, channels)
        self.downsample = shortcut

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the block's output from its input (B, in_channels, *spatial)."""
        out = self.act(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return self.act(out + self.downsample(x))


class Bottleneck(nn.Module):
    """Residual block with convolutions 1x1, 3x3, 1x1.

    Args:
        spatial_dims: 2 or 3.
        in_channels: Number of input channels, >= 1.
        channels: Number of channels of the first two convolutions, >= 1; the output has four times as many.
        stride: Stride of the block, >= 1.
        norm: Normalisation after each convolution.
        act: Activation.

    Attributes:
        conv1: First convolution.
        bn1: Normalisation after the first convolution.
        conv2: Second convolution.
        bn2: Normalisation after the second convolution.
        conv3: Third convolution.
        bn3: Normalisation after the third convolution.
        act: Activation, after the first two normalisations and at the end.
        downsample: Shortcut from the input to the output.
    """

    expansion: ClassVar = 4
    """Number of output channels divided by `channels`."""

    def __init__(
        self, spatial_dims: int, in_channels: int, channels: int, stride: int, norm: LayerSpec, act: LayerSpec
    ) -> None:
        super().__init__()
        wide = self.expansion * channels
        shortcut = _shortcut(spatial_dims, in_channels, wide, stride, norm)
        conv = layer_type("Conv", spatial_dims)
        self.conv1 = conv(in_channels, channels, kernel_size=1, bias=False)
        self.bn1 = norm_layer(norm, spatial_dims, channels)
        self.conv2 = conv(channels, channels, kernel_size=3, stride=stride, padding=1, bias=False)
        self.bn2 = norm_layer(norm, spatial_dims, channels)
        self.conv3 = conv(channels, wide, kernel_size=1, bias=False)
        self.bn3 = norm_layer(norm, spatial_dims, wide)
        self.act = act_layer(act)
        self.downsample = shortcut

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the block's output from its input (B, in_channels, *spatial)."""
        out = self.act(self.bn1(self.conv1(x)))
        out = self.act(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        return self.act(out + self.downsample(x))


def _shortcut(spatial_dims: int, in_channels: int, out_channels: int, stride: int, norm: LayerSpec) -> nn.Module:
    """Return the shortcut of a block; the bias of its convolution is MONAI's default.

    The input is subsampled before the convolution, which gives the same numbers as a 1x1 convolution with stride. With
    few channels in channels-last layout, oneDNN writes out of bounds in the backward pass of a strided 1x1 convolution
    (https://github.com/uxlfoundation/oneDNN/issues/6035).
    """
    if stride == 1 and in_channels == out_channels:
        return nn.Identity()
    layers: dict[str, nn.Module] = {} if stride == 1 else {"subsample": subsample(spatial_dims, stride)}
    layers["0"] = layer_type("Conv", spatial_dims)(in_channels, out_channels, kernel_size=1)
    layers["1"] = norm_layer(norm, spatial_dims, out_channels)
    return nn.Sequential(OrderedDict(layers))  # "0" and "1" are MONAI's names


def _one_line(error: Exception) -> str:
    """Return an error's text in one line."""
    return " ".join(str(error).split())
