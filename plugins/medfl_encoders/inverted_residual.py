"""Blocks and body that EfficientNet-lite and MobileNetV2 share: inverted residual blocks with ReLU6.

A block expands its channels with a 1x1 convolution, filters each channel on its own, and projects back. Nothing works
in place, so that the networks can be scripted and pickled.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
from torch import nn
from torch.nn import functional as F

from medfl.errors import SettingsError
from medfl.types import Tensors
from medfl_encoders.image_input import ImageInput

FeatureSource = Literal["last", "stages"]
"""Source of the features: ``last``, the last convolution; ``stages``, the stages from `FIRST_FEATURE_STAGE` on."""

FIRST_FEATURE_STAGE = 2
"""Number, from 0, of the first stage whose maps are features with ``stages``: its maps have an eighth of the edge."""


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
    """Feature extractor: a stem with stride 2, inverted residual blocks, and averages of maps over space.

    Args:
        image_input: Conversion of the images.
        stages: Stages, first to last.
        convention: Padding and batch norm.
        source: ``last`` averages the maps of a 1x1 convolution after the last stage. ``stages`` averages the maps of
            the stages from `FIRST_FEATURE_STAGE` on, and has no such convolution.
        stem: Number of channels of the stem.
        width: Number of outputs of the last convolution.

    Attributes:
        features: Number of features.
    """

    def __init__(
        self,
        image_input: ImageInput,
        stages: Sequence[Stage],
        convention: Convention,
        source: FeatureSource = "last",
        stem: int = 32,
        width: int = 1280,
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
        ends = list(itertools.accumulate(stage.blocks for stage in stages))[FIRST_FEATURE_STAGE:]
        self._gives_features = [source == "stages" and number in ends for number in range(1, len(blocks) + 1)]
        if source == "stages":
            self.features = sum(stage.channels for stage in stages[FIRST_FEATURE_STAGE:])
        else:
            self.final, self.features = conv_norm(channels, width, 1, 1, convention), width
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out")

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Compute features (B, features) of images (B, C, H, W), or mean features of the slices of volumes."""
        maps = self.stem(self.image_input(images))
        means: list[torch.Tensor] = []
        for number, block in enumerate(self.blocks):
            maps = block(maps)
            if self._gives_features[number]:
                means.append(maps.mean(dim=(2, 3)))
        if hasattr(self, "final"):
            means.append(self.final(maps).mean(dim=(2, 3)))
        return self.image_input.mean_of_slices(torch.cat(means, dim=1))


class InvertedResidualNetwork(nn.Module):
    """Base of the networks with an `InvertedResidualBody` and a linear head, for images of any size.

    Images in [0, 1] are resized and normalised by the network itself (`medfl_encoders.image_input.ImageInput`), so a
    bundle must not normalise them before. A subclass sets the stages and the convention.

    Args:
        in_channels: Number of image channels, 1 or 3; one channel is repeated three times.
        num_classes: Number of outputs: classes, findings, predicted numbers, or 1 for a risk; >= 1.
        spatial_dims: 2 for images; 3 for volumes, of which slices are encoded and their features averaged.
        size: Edge in pixels to which images are resized, >= 32; the weights were trained at 224.
        mean: Mean of the three channels on the scale [0, 1], which belongs to the weights; None uses the class's.
        std: Standard deviation of the three channels, which belongs to the weights; None uses the class's.
        features: Source of the features (`InvertedResidualBody`): ``last``, 1280 features, or ``stages``, those of
            the earlier layers, which suit images unlike those of the weights better.

    Attributes:
        body: Feature extractor from images (B, in_channels, H, W) to features (B, F).
        head: Linear classifier from features to logits (B, num_classes).
        feature_layers: Last block of each of the seven stages, whose outputs are feature maps; none for volumes.

    Raises:
        SettingsError: If an argument is invalid.
    """

    __jit_unused_properties__: ClassVar = ["feature_layers"]  # TorchScript has no lists of modules

    stages: ClassVar[tuple[Stage, ...]]
    """Stages of the body, first to last."""

    convention: ClassVar[Convention]
    """Padding and batch norm with which the weights were trained."""

    weights_mean: ClassVar[tuple[float, ...]]
    """Mean of the three channels with which the weights were trained."""

    weights_std: ClassVar[tuple[float, ...]]
    """Standard deviation of the three channels with which the weights were trained."""

    def __init__(
        self,
        in_channels: int = 3,
        num_classes: int = 2,
        spatial_dims: int = 2,
        size: int = 224,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        features: FeatureSource = "last",
    ) -> None:
        super().__init__()
        if features not in get_args(FeatureSource):
            raise SettingsError(
                "unknown_choice",
                f"{type(self).__name__} expected features {' or '.join(get_args(FeatureSource))}, got {features!r}.",
                what="features",
                choice=features,
                network=type(self).__name__,
            )
        image_input = ImageInput(
            type(self).__name__,
            in_channels,
            spatial_dims,
            size,
            mean=self.weights_mean if mean is None else mean,
            std=self.weights_std if std is None else std,
        )
        self.body = InvertedResidualBody(image_input, self.stages, self.convention, features)
        self.head = nn.Linear(self.body.features, num_classes)

    @property
    def feature_layers(self) -> list[nn.Module]:
        """Last block of each stage; none for volumes, whose slices have feature maps of their own."""
        if self.body.image_input.spatial_dims == 3:
            return []
        ends = itertools.accumulate(stage.blocks for stage in self.stages)
        return [self.body.blocks[end - 1] for end in ends]

    @torch.jit.unused
    def rename_weights(self, tensors: Tensors) -> Tensors:
        """Return weights without the last convolution if this network has none; their names are not changed."""
        return {name: t for name, t in tensors.items() if hasattr(self.body, "final") or "body.final." not in name}

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Compute logits (B, num_classes) of images (B, in_channels, H, W) in [0, 1]."""
        logits: torch.Tensor = self.head(self.body(images))
        return logits
