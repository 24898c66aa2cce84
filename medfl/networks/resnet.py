"""Residual network in 2-D and 3-D with configurable normalisation and activation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, get_args

import torch
from torch import nn
from torch.nn.modules.instancenorm import _InstanceNorm

from medfl.errors import SettingsError
from medfl.networks.heads import Activation, TwoLayerHead, initialise_xavier
from medfl.networks.pooling import max_pool
from medfl.networks.resnet_blocks import BasicBlock, Bottleneck, LayerSpec, act_layer, layer_type, norm_layer

DEPTHS: dict[int, tuple[type[BasicBlock | Bottleneck], tuple[int, int, int, int]]] = {
    10: (BasicBlock, (1, 1, 1, 1)),
    18: (BasicBlock, (2, 2, 2, 2)),
    34: (BasicBlock, (3, 4, 6, 3)),
    50: (Bottleneck, (3, 4, 6, 3)),
}
"""Mapping from each supported depth to the class of its blocks and the number of blocks in each of the four stages."""


class ResNet(nn.Module):
    """Residual network (He et al., CVPR 2016) with MONAI's layout: four stages of width x1, x2, x4 and x8.

    With the default `norm` and `act` it equals `monai.networks.nets.ResNet` with shortcut type "B": the same names and
    shapes, logits that agree to rounding, and the same initial tensors from the same seed. It is a separate class
    because MONAI 1.6.1 applies `norm` and `act` to the stem only, and its blocks change tensors in place. Here they
    apply to every block and nothing works in place, so that the network can be scripted, pickled, and trained with
    Opacus (which refuses "batch").

    The stem is one convolution, then max-pooling with stride 2. Its defaults are MONAI's. For images of about 28 pixels
    use ``stem_kernel=3, stem_pool=False``; ``stem_stride=2`` is the original network, with a quarter (3-D: an eighth)
    of the computation. With ``stem_stride=2`` and otherwise the defaults it is also torchvision's network of that
    depth, and can load its ImageNet weights (`medfl.networks.pretrained`); the shortcuts' biases, which torchvision
    lacks, are then zero.

    Args:
        depth: 10, 18 or 34 (basic blocks), or 50 (bottleneck blocks).
        in_channels: Number of image channels, >= 1.
        num_classes: Number of outputs: classes, findings, predicted numbers, or 1 for a risk; >= 1.
        spatial_dims: 2 for images, 3 for volumes.
        width: Number of channels of the stem and of the first stage's convolutions, >= 1.
        norm: "batch", "group" (see `resnet_blocks.group_count`), "instance", or a pair of name and options in MONAI.
        act: Name of an activation in MONAI, or a pair of name and options; it must not work in place.
        stem_kernel: Edge of the first convolution's kernel, odd, >= 3.
        stem_stride: Stride of the first convolution, >= 1.
        stem_pool: Whether max-pooling follows the first convolution.
        size: Edge of an image in pixels, or all its edges. If set, images that are too small for the network are
            refused; it has no other effect.
        head_share: Width of a hidden layer in the head, as a share of the features, in (0, 1]; None makes the head one
            linear layer.
        head_dropout: Dropout rate of the head's hidden layer, in [0, 1).
        head_activation: Activation after the head's hidden layer: "none" as in FedSDC, or "relu".
        dropout: Dropout rate of the features, in [0, 1); it belongs to the body.

    Attributes:
        conv1: Convolution of the stem.
        bn1: Normalisation of the stem.
        act: Activation of the stem.
        maxpool: Max-pooling of the stem, or the identity.
        avgpool: Global average pooling.
        dropout: Dropout of the features, or the identity.
        fc: The classifier, which `head` returns.
        body: Feature extractor from images (B, in_channels, *size) to features (B, 8 * width; four times as many at
            depth 50).
        head: Classifier from features to logits (B, num_classes).
        feature_layers: The four stages of the body, in order; their outputs are feature maps.

    Raises:
        SettingsError: If an argument is invalid.
    """

    __jit_unused_properties__: ClassVar = ["body", "head", "feature_layers"]  # TorchScript can't return modules

    def __init__(
        self,
        depth: int = 10,
        in_channels: int = 3,
        num_classes: int = 2,
        spatial_dims: int = 2,
        width: int = 64,
        norm: LayerSpec = "batch",
        act: LayerSpec = "relu",
        stem_kernel: int = 7,
        stem_stride: int = 1,
        stem_pool: bool = True,
        size: int | Sequence[int] | None = None,
        head_share: float | None = None,
        head_dropout: float = 0.2,
        head_activation: Activation = "none",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if depth not in DEPTHS:
            raise SettingsError(
                "unknown_choice",
                f"ResNet expected depth to be one of {', '.join(map(str, DEPTHS))}, got {depth!r}",
                network="ResNet",
                what="depth",
                choice=depth,
                known=list(DEPTHS),
            )
        if spatial_dims not in (2, 3):
            raise SettingsError(
                "setting_out_of_range",
                f"ResNet expected spatial_dims 2 or 3, got {spatial_dims}",
                network="ResNet",
                setting="spatial_dims",
                expected=[2, 3],
                found=spatial_dims,
            )
        _check_minima(in_channels=(in_channels, 1), num_classes=(num_classes, 1), width=(width, 1))
        _check_minima(stem_kernel=(stem_kernel, 3), stem_stride=(stem_stride, 1))
        if stem_kernel % 2 == 0:
            raise SettingsError(
                "setting_out_of_range",
                f"ResNet expected an odd stem_kernel, got {stem_kernel}",
                network="ResNet",
                setting="stem_kernel",
                expected="odd",
                found=stem_kernel,
            )
        if not isinstance(stem_pool, bool):  # the text "false" would count as true
            raise SettingsError(
                "wrong_setting_type",
                f"ResNet expected stem_pool True or False, got {stem_pool!r}",
                network="ResNet",
                setting="stem_pool",
                found=repr(stem_pool),
            )
        _check_rates(head_dropout=head_dropout, dropout=dropout)
        conv = layer_type("Conv", spatial_dims)
        self.conv1 = conv(in_channels, width, stem_kernel, stride=stem_stride, padding=stem_kernel // 2, bias=False)
        self.bn1 = norm_layer(norm, spatial_dims, width)
        self.act = act_layer(act)
        self.maxpool = max_pool(spatial_dims, 3, stride=2, padding=1) if stem_pool else nn.Identity()
        if size is not None:
            self._check_size(size, spatial_dims, total_stride=stem_stride * (2 if stem_pool else 1) * 2**3)
        block, counts = DEPTHS[depth]
        channels = width
        for stage, count in enumerate(counts):
            blocks = []
            for number in range(count):
                stride = 2 if stage > 0 and number == 0 else 1
                blocks.append(block(spatial_dims, channels, width * 2**stage, stride, norm, act))
                channels = width * 2**stage * block.expansion
            self.add_module(f"layer{stage + 1}", nn.Sequential(*blocks))
        self.avgpool = layer_type("AdaptiveAvgPool", spatial_dims)(1)
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        self.fc: nn.Module = nn.Linear(channels, num_classes)
        self._initialise()
        if head_share is not None:  # drawn last, so that the body's initial tensors don't depend on the head
            self.fc = _two_layer_head(channels, num_classes, head_share, head_dropout, head_activation)

    @property
    def body(self) -> nn.Sequential:
        """All modules before the classifier, shared with the network."""
        stem = (self.conv1, self.bn1, self.act, self.maxpool)
        return nn.Sequential(*stem, *self.feature_layers, self.avgpool, nn.Flatten(), self.dropout)

    @property
    def head(self) -> nn.Module:
        """The classifier, under MONAI's name ``fc`` in the state dict."""
        return self.fc

    @property
    def feature_layers(self) -> list[nn.Module]:
        """The four stages, whose outputs are feature maps."""
        return [self.layer1, self.layer2, self.layer3, self.layer4]  # type: ignore[list-item]

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Compute logits (B, num_classes) of images (B, in_channels, *size)."""
        x = self.maxpool(self.act(self.bn1(self.conv1(images))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))  # type: ignore[operator]
        logits: torch.Tensor = self.fc(self.dropout(self.avgpool(x).flatten(1)))
        return logits

    def _initialise(self) -> None:
        """Set MONAI's initial tensors: He's normal distribution for convolutions, no bias in the classifier."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Conv3d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        nn.init.zeros_(self.fc.bias)  # type: ignore[arg-type]

    def _check_size(self, size: int | Sequence[int], spatial_dims: int, total_stride: int) -> None:
        """Raise if the images are too small for the strides, or leave one pixel for instance normalisation."""
        edges = [size] * spatial_dims if isinstance(size, int) else list(size)
        if len(edges) != spatial_dims:
            raise SettingsError(
                "wrong_edge_count",
                f"ResNet expected one size or {spatial_dims} of them, got {edges}",
                network="ResNet",
                expected=spatial_dims,
                found=edges,
            )
        least = total_stride + int(isinstance(self.bn1, _InstanceNorm))
        if min(edges) < least:
            raise SettingsError(
                "image_too_small",
                f"ResNet expected images of at least {least} pixels along each edge (its strides multiply to "
                f"{total_stride}), got size {edges}. Use larger images, a smaller stem_stride or stem_pool=False.",
                network="ResNet",
                minimum=least,
                found=edges,
            )


def _two_layer_head(features: int, num_classes: int, share: float, dropout: float, activation: Activation) -> nn.Module:
    """Return a head with a hidden layer, with Xavier's normal initial weights and zero biases."""
    if not isinstance(share, int | float) or not 0 < share <= 1:
        raise SettingsError(
            "setting_out_of_range",
            f"ResNet expected head_share above 0 and at most 1, or None, got {share!r}",
            network="ResNet",
            setting="head_share",
            found=share,
        )
    if activation not in get_args(Activation):
        raise SettingsError(
            "unknown_choice",
            f"ResNet expected head_activation 'none' or 'relu', got {activation!r}",
            network="ResNet",
            what="head_activation",
            choice=activation,
            known=get_args(Activation),
        )
    return initialise_xavier(TwoLayerHead(features, max(int(share * features), 1), num_classes, dropout, activation))


def _check_rates(**values: float) -> None:
    """Raise if a dropout rate is outside [0, 1)."""
    for name, value in values.items():
        if not 0 <= value < 1:
            raise SettingsError(
                "setting_out_of_range",
                f"ResNet expected {name} to be at least 0 and below 1, got {value!r}",
                network="ResNet",
                setting=name,
                found=value,
            )


def _check_minima(**values: tuple[int, int]) -> None:
    """Raise if an argument is not an integer, or is below its minimum; each is a pair of value and minimum."""
    for name, (value, least) in values.items():
        if not isinstance(value, int) or value < least:
            raise SettingsError(
                "setting_out_of_range",
                f"ResNet expected {name} to be a whole number >= {least}, got {value!r}",
                network="ResNet",
                setting=name,
                minimum=least,
                found=value,
            )
