"""Blocks and body that EfficientNet-lite and MobileNetV2 share: inverted residual blocks with ReLU6.

A block expands its channels with a 1x1 convolution, filters each channel on its own, and projects back. Nothing works
in place, so that the networks can be scripted and pickled.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from medfl_encoders.image_input import ImageInput


@dataclass(frozen=True)
class Stage:
    """Consecutive blocks with the same number of output channels.

    Attributes:
        expansion: Factor by which each block widens its input, >= 1; 1 omits the expanding convolution.
        channels: Number of output channels.
        blocks: Number of blocks.
        stride: Stride of the first block; the others have stride 1.
        kernel: Edge of the depthwise convolutions, odd.
    """

    expansion: int
    channels: int
    blocks: int
    stride: int
    kernel: int = 3


@dataclass(frozen=True)
class Convention:
    """Differences between TensorFlow's and PyTorch's convolutional networks.

    Attributes:
        norm_eps: Number that batch norm adds to the variance.
        norm_momentum: Weight of a new batch in batch norm's running statistics.
        same_padding: True for TensorFlow's padding ``SAME``: with stride 2 and an even edge, one more row of zeros is
            added at the bottom and on the right than at the top and on the left.
    """

    norm_eps: float
    norm_momentum: float
    same_padding: bool


class SamePadding(nn.Module):
    """TensorFlow's zero padding ``SAME`` for a convolution.

    Args:
        kernel: Edge of the kernel.
        stride: Stride of the convolution.
    """

    def __init__(self, kernel: int, stride: int) -> None:
        super().__init__()
        self.kernel, self.stride = kernel, stride

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Pad maps (B, C, H, W) such that a convolution without padding returns edges of ceil(edge / stride)."""
        height, width = self._missing(x.shape[-2]), self._missing(x.shape[-1])
        return F.pad(x, [width // 2, width - width // 2, height // 2, height - height // 2])

    def _missing(self, edge: int) -> int:
        """Return the number of rows of zeros that an edge needs."""
        outputs = (edge + self.stride - 1) // self.stride
        return max((outputs - 1) * self.stride + self.kernel - edge, 0)


def conv_norm(
    inputs: int, outputs: int, kernel: int, stride: int, convention: Convention, groups: int = 1, act: bool = True
) -> nn.Sequential:
    """Create a convolution without bias, batch norm, and ReLU6 if `act` is true."""
    parts: OrderedDict[str, nn.Module] = OrderedDict()
    padding = kernel // 2
    if convention.same_padding and stride > 1:  # with stride 1 both kinds of padding are equal
        parts["pad"], padding = SamePadding(kernel, stride), 0
    parts["conv"] = nn.Conv2d(inputs, outputs, kernel, stride, padding, groups=groups, bias=False)
    parts["norm"] = nn.BatchNorm2d(outputs, eps=convention.norm_eps, momentum=convention.norm_momentum)
    if act:
        parts["act"] = nn.ReLU6()
    return nn.Sequential(parts)


class InvertedResidual(nn.Module):
    """Inverted residual block (Sandler et al., CVPR 2018).

    Args:
        inputs: Number of input channels.
        stage: Stage of the block.
        stride: Stride of the depthwise convolution.
        convention: Padding and batch norm.
    """

    def __init__(self, inputs: int, stage: Stage, stride: int, convention: Convention) -> None:
        super().__init__()
        wide = inputs * stage.expansion
        self.has_shortcut = stride == 1 and inputs == stage.channels
        self.expand = conv_norm(inputs, wide, 1, 1, convention) if stage.expansion > 1 else nn.Identity()
        self.depthwise = conv_norm(wide, wide, stage.kernel, stride, convention, groups=wide)
        self.project = conv_norm(wide, stage.channels, 1, 1, convention, act=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute maps (B, channels, H / stride, W / stride) of maps (B, inputs, H, W)."""
        out: torch.Tensor = self.project(self.depthwise(self.expand(x)))
        return out + x if self.has_shortcut else out


class InvertedResidualBody(nn.Module):
    """Feature extractor: a stem with stride 2, inverted residual blocks, a 1x1 convolution and an average over space.

    Args:
        image_input: Conversion of the images.
        stages: Stages, first to last.
        convention: Padding and batch norm.
        stem: Number of channels of the stem.
        features: Number of features.
    """

    def __init__(
        self,
        image_input: ImageInput,
        stages: Sequence[Stage],
        convention: Convention,
        stem: int = 32,
        features: int = 1280,
    ) -> None:
        super().__init__()
        self.image_input = image_input
        self.stem = conv_norm(3, stem, 3, 2, convention)
        blocks, channels = [], stem
        for stage in stages:
            for number in range(stage.blocks):
                blocks.append(InvertedResidual(channels, stage, stage.stride if number == 0 else 1, convention))
                channels = stage.channels
        self.blocks = nn.Sequential(*blocks)
        self.final = conv_norm(channels, features, 1, 1, convention)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out")

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Compute features (B, features) of images (B, C, H, W), or mean features of the slices of volumes."""
        maps = self.final(self.blocks(self.stem(self.image_input(images))))
        return self.image_input.mean_of_slices(maps.mean(dim=(2, 3)))


def stage_ends(body: InvertedResidualBody, stages: Sequence[Stage]) -> list[nn.Module]:
    """Return the last block of each stage; none for volumes, whose slices have feature maps of their own."""
    if body.image_input.spatial_dims == 3:
        return []
    ends, count = [], 0
    for stage in stages:
        count += stage.blocks
        ends.append(body.blocks[count - 1])
    return ends
