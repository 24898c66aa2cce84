"""Plain convolutional network of configurable width: stages of convolution and pooling, a dense layer, a classifier."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import nn

from medfl.errors import SettingsError
from medfl.networks.pooling import max_pool
from medfl.networks.resnet_blocks import layer_type, norm_layer

NORMS = ("none", "group", "batch")
"""Names of the normalisation layers that may follow each convolution, for `ConvNet`."""

POOLINGS = ("auto", "flatten", "average")
"""Ways to convert feature maps to a vector before the dense layer: ``flatten`` keeps all positions, ``average`` takes
each map's mean, and ``auto`` chooses by the size of the image."""

MIN_EDGE_TO_AVERAGE = 64
"""Length in pixels of an image's longest edge from which on the pooling ``auto`` averages each feature map."""


class ConvNet(nn.Module):
    """Stages of one convolution and 2x2 max-pooling, a dense layer, and a linear classifier, with ReLU activations.

    The networks of PFedCDP (Shadin et al.) have 3x3 kernels without padding: cluster A is ``channels=(32, 64),
    dense=128``, B ``(16, 32), 64`` with dropout, C ``(8, 16), 32``, and the student ``(16, 32), 64`` with dropout 0.5.
    Pooling comes before ReLU, which gives the same values and gradients as the reverse order with less computation.

    At 224 pixels the dense layer of cluster A has 54 * 54 * 64 * 128 = 24 million weights on flattened maps, and 64 *
    128 on averaged maps. So ``pooling="auto"`` averages the maps of images whose longest edge has at least
    `MIN_EDGE_TO_AVERAGE` pixels. Averaging discards the position of features.

    Args:
        in_channels: Number of image channels, >= 1.
        num_classes: Number of classes, >= 2.
        size: Edge of a square or cubic image in pixels, or its height and width, or depth, height and width.
        spatial_dims: 2 for images, 3 for volumes.
        channels: Number of channels of each stage, each >= 1.
        dense: Number of outputs of the dense layer, which are the features, >= 1.
        kernel: Edge of the kernels, odd, >= 1.
        padding: Number of zero pixels around each map, 0 to `kernel` // 2.
        dropout: Dropout rate of the features, 0 <= dropout < 1; 0 omits the layer.
        norm: One of `NORMS`. With "group" each group has at least two channels, with at most 32 groups; "batch" can't
            be trained with DP-SGD (Opacus refuses it).
        pooling: One of `POOLINGS`.

    Attributes:
        body: Feature extractor from images (B, in_channels, *size) to features (B, dense).
        head: Linear classifier from features to logits (B, num_classes).
        feature_layers: Stages of the body, in order: feature maps, then one vector.

    Raises:
        SettingsError: If an argument is invalid, or images are too small for the stages.
    """

    __jit_unused_properties__: ClassVar = ["feature_layers"]  # TorchScript has no lists of modules

    def __init__(
        self,
        in_channels: int = 1,
        num_classes: int = 2,
        size: int | Sequence[int] = 28,
        spatial_dims: int = 2,
        channels: Sequence[int] = (32, 64),
        dense: int = 128,
        kernel: int = 3,
        padding: int = 0,
        dropout: float = 0.0,
        norm: str = "none",
        pooling: str = "auto",
    ) -> None:
        super().__init__()
        name = type(self).__name__
        _check_choices(name, spatial_dims, norm, pooling, dropout)
        _check_minima(name, in_channels=(in_channels, 1), num_classes=(num_classes, 2), dense=(dense, 1))
        _check_minima(name, channels=(min(channels, default=0), 1), kernel=(kernel, 1), padding=(padding, 0))
        if kernel % 2 == 0 or padding > kernel // 2:
            raise SettingsError(
                "setting_out_of_range",
                f"{name} expected an odd kernel and padding <= {kernel // 2}, got {kernel}, {padding}",
                network=name,
                kernel=kernel,
                padding=padding,
                maximum=kernel // 2,
            )
        edges = [size] * spatial_dims if isinstance(size, int) else list(size)
        if len(edges) != spatial_dims:
            raise SettingsError(
                "wrong_edge_count",
                f"{name} expected one size or {spatial_dims} of them, got {edges}",
                network=name,
                expected=spatial_dims,
                found=edges,
            )
        _check_minima(name, size=(min(edges), _min_image_edge(len(channels), kernel, padding)))
        parts: OrderedDict[str, nn.Module] = OrderedDict()
        before = in_channels
        for number, width in enumerate(channels, 1):
            parts[f"stage{number}"] = _stage(spatial_dims, before, width, kernel, padding, norm)
            before = width
        if pooling == "average" or (pooling == "auto" and max(edges) >= MIN_EDGE_TO_AVERAGE):
            parts["average"], positions = layer_type("AdaptiveAvgPool", spatial_dims)(1), 1
        else:
            positions = math.prod(_edge_after_stages(edge, len(channels), kernel, padding) for edge in edges)
        parts["flatten"] = nn.Flatten()
        parts["dense"] = _dense_layer(before * positions, dense, dropout)
        self.body = nn.Sequential(parts)
        self.head = nn.Linear(dense, num_classes)

    @property
    def feature_layers(self) -> list[nn.Module]:
        """Stages whose outputs are features: feature maps, then one vector."""
        return [part for name, part in self.body.named_children() if name.startswith("stage") or name == "dense"]

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Compute logits (B, num_classes) of images (B, in_channels, *size)."""
        logits: torch.Tensor = self.head(self.body(images))
        return logits


def _check_choices(name: str, spatial_dims: int, norm: str, pooling: str, dropout: float) -> None:
    """Raise if an argument is not one of its allowed values."""
    if spatial_dims not in (2, 3):
        raise SettingsError(
            "setting_out_of_range",
            f"{name} expected spatial_dims 2 or 3, got {spatial_dims}",
            network=name,
            setting="spatial_dims",
            expected=[2, 3],
            found=spatial_dims,
        )
    for what, value, known in (("norm", norm, NORMS), ("pooling", pooling, POOLINGS)):
        if value not in known:
            raise SettingsError(
                "unknown_choice",
                f"{name} expected {what} to be one of {', '.join(known)}, got {value!r}",
                network=name,
                what=what,
                choice=value,
                known=known,
            )
    if not 0 <= dropout < 1:
        raise SettingsError(
            "setting_out_of_range",
            f"{name} expected 0 <= dropout < 1, got {dropout}",
            network=name,
            setting="dropout",
            found=dropout,
        )


def _check_minima(name: str, **values: tuple[int, int]) -> None:
    """Raise if an argument is below its minimum; each is a pair of value and minimum."""
    for what, (value, least) in values.items():
        if value < least:
            raise SettingsError(
                "setting_out_of_range",
                f"{name} expected {what} >= {least}, got {value}",
                network=name,
                setting=what,
                minimum=least,
                found=value,
            )


def _edge_after_stages(edge: int, stages: int, kernel: int, padding: int) -> int:
    """Return the edge of the feature maps after the stages."""
    for _ in range(stages):
        edge = (edge + 2 * padding - kernel + 1) // 2
    return edge


def _min_image_edge(stages: int, kernel: int, padding: int) -> int:
    """Return the minimum edge of an image for which one pixel remains after the stages."""
    edge = 1
    for _ in range(stages):
        edge = 2 * edge + kernel - 1 - 2 * padding
    return edge


def _stage(spatial_dims: int, before: int, width: int, kernel: int, padding: int, norm: str) -> nn.Sequential:
    """Return a stage of convolution, normalisation, pooling and ReLU."""
    parts: OrderedDict[str, nn.Module] = OrderedDict()
    parts["conv"] = layer_type("Conv", spatial_dims)(before, width, kernel_size=kernel, padding=padding)
    if norm != "none":
        parts["norm"] = norm_layer(norm, spatial_dims, width)
    parts["pool"] = max_pool(spatial_dims, 2, stride=2)
    parts["relu"] = nn.ReLU()
    return nn.Sequential(parts)


def _dense_layer(inputs: int, features: int, dropout: float) -> nn.Sequential:
    """Return the dense layer with ReLU and dropout."""
    parts: OrderedDict[str, nn.Module] = OrderedDict(fc=nn.Linear(inputs, features), relu=nn.ReLU())
    if dropout > 0:
        parts["dropout"] = nn.Dropout(dropout)
    return nn.Sequential(parts)
