"""Layers of generators and critics that halve or double feature maps of any size, and checks of image shapes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from monai.networks.layers.factories import Conv
from torch import nn
from torch.nn import functional as F

from medfl.errors import SettingsError, check_choice
from medfl.networks.resnet_blocks import norm_layer

Norm = Literal["batch", "group"]
"""Kind of normalisation layer in a generator: ``batch`` or ``group``."""
NORMS = ("batch", "group")
"""Kinds of normalisation: ``batch`` as in the papers, ``group`` for sites whose batches have one class or few
images."""

MIN_EDGE = 4
"""Minimum edge of an image in pixels."""


@dataclass
class GeneratorOutput:
    """Output of a generator.

    Attributes:
        images: Reconstructed images, (B, C, *spatial), in (0, 1).
        mean: Mean of the normal distribution of the latent variables, (B, latent).
        log_variance: Logarithm of that distribution's variance, (B, latent).
        latent: Latent variables that were decoded, (B, latent): a sample in training, the mean in evaluation.

    The last three are None for a generator without latent variables.
    """

    images: torch.Tensor
    mean: torch.Tensor | None = None
    log_variance: torch.Tensor | None = None
    latent: torch.Tensor | None = None


def check_shape(name: str, shape: Sequence[int]) -> tuple[int, list[int]]:
    """Check the shape of an image, and return its number of channels and its spatial edges.

    Args:
        name: Name of the network, for the message.
        shape: Shape (C, H, W) or (C, D, H, W).

    Raises:
        SettingsError: If the shape is no image's, or an edge is below `MIN_EDGE`.
    """
    if len(shape) not in (3, 4) or shape[0] < 1:
        raise SettingsError(
            "wrong_shape",
            f"{name} expected the shape (C, H, W) or (C, D, H, W) of an image, got {tuple(shape)}",
            network=name,
            expected=("(C, H, W)", "(C, D, H, W)"),
            found=tuple(shape),
        )
    channels, *edges = shape
    if min(edges) < MIN_EDGE:
        raise SettingsError(
            "image_too_small",
            f"{name} expected images of at least {MIN_EDGE} pixels in each direction, got {tuple(edges)}. "
            "Resize or pad the images of the task",
            network=name,
            minimum=MIN_EDGE,
            found=tuple(edges),
        )
    return channels, edges


def check_options(name: str, norm: str = "batch", **minimums: tuple[int, int]) -> None:
    """Raise if the normalisation is unknown or a number is below its minimum.

    Args:
        name: Name of the network, for the message.
        norm: Normalisation, one of `NORMS`.
        **minimums: Mapping from the name of each option to its value and its minimum.

    Raises:
        SettingsError: If an option is wrong; it names the option.
    """
    check_choice(f"norm of {name}", norm, NORMS)
    for what, (value, bound) in minimums.items():
        if value < bound:
            raise SettingsError(
                "setting_out_of_range",
                f"{name} expected {what} >= {bound}, got {value}",
                network=name,
                setting=what,
                minimum=bound,
                found=value,
            )


def check_images(name: str, images: torch.Tensor, shape: Sequence[int]) -> None:
    """Raise if images do not have the shape that the network was built for.

    Args:
        name: Name of the network, for the message.
        images: Images, (B, *shape).
        shape: Shape of an image that the network was built for.

    Raises:
        SettingsError: If the shapes differ; it names both.
    """
    if tuple(images.shape[1:]) != tuple(shape):
        raise SettingsError(
            "wrong_shape",
            f"{name} expected images (B, {', '.join(map(str, shape))}), got {tuple(images.shape)}",
            network=name,
            expected=tuple(shape),
            found=tuple(images.shape),
        )


def halve_edges(edges: Sequence[int]) -> list[int]:
    """Return the edges of the feature map after a `HalvingConv`: half of each edge, rounded up."""
    return [(edge + 1) // 2 for edge in edges]


def edges_by_halving(edges: Sequence[int], max_edge: int) -> list[list[int]]:
    """Return the edges of the image, then those of the feature map after each halving, until none is above `max_edge`.

    There is at least one halving.
    """
    edges_by_step = [list(edges), halve_edges(edges)]
    while max(edges_by_step[-1]) > max_edge:
        edges_by_step.append(halve_edges(edges_by_step[-1]))
    return edges_by_step


class HalvingConv(nn.Module):
    """Convolution with kernel 4 and stride 2 for maps of any size.

    An odd edge is padded with one line of zeros at its end.

    Args:
        spatial_dims: Number of spatial dimensions, 2 or 3.
        in_channels: Number of input channels.
        out_channels: Number of output channels.
        bias: Whether the convolution has a bias.

    Attributes:
        conv: The convolution.
    """

    def __init__(self, spatial_dims: int, in_channels: int, out_channels: int, bias: bool) -> None:
        super().__init__()
        self.conv = Conv[Conv.CONV, spatial_dims](
            in_channels, out_channels, kernel_size=4, stride=2, padding=1, bias=bias
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Convolve maps (B, in_channels, *spatial); the edges of the result are halved, see `halve_edges`."""
        odd = [edge % 2 for edge in reversed(x.shape[2:])]
        if any(odd):
            x = F.pad(x, [lines for edge in odd for lines in (0, edge)])
        maps: torch.Tensor = self.conv(x)
        return maps


class DoublingConv(nn.Module):
    """Transposed convolution with kernel 4 and stride 2, cropped to the size before the matching `HalvingConv`.

    Args:
        in_channels: Number of input channels.
        out_channels: Number of output channels.
        edges: Edges of the output: twice the edges of the input, or one less.
        bias: Whether the convolution has a bias.

    Attributes:
        conv: The transposed convolution.
    """

    def __init__(self, in_channels: int, out_channels: int, edges: Sequence[int], bias: bool) -> None:
        super().__init__()
        self._cut = (slice(None), slice(None), *(slice(edge) for edge in edges))
        conv = Conv[Conv.CONVTRANS, len(edges)]
        self.conv = conv(in_channels, out_channels, kernel_size=4, stride=2, padding=1, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Convolve maps (B, in_channels, *spatial) to maps (B, out_channels, *edges)."""
        maps: torch.Tensor = self.conv(x)
        return maps[self._cut]


def needs_conv_bias(norm: Norm) -> bool:
    """Return whether a convolution on images needs a bias before a normalisation layer of this kind.

    Group normalisation normalises each image. Without a bias it would map an image and a copy of half the brightness to
    the same result.
    """
    return norm == "group"


def down_layers(spatial_dims: int, in_channels: int, out_channels: int, norm: Norm) -> list[nn.Module]:
    """Return the layers of a halving step: convolution, normalisation and ReLU."""
    return [
        HalvingConv(spatial_dims, in_channels, out_channels, bias=needs_conv_bias(norm)),
        norm_layer(norm, spatial_dims, out_channels),
        nn.ReLU(),
    ]


def up_layers(in_channels: int, out_channels: int, edges: Sequence[int], norm: Norm) -> list[nn.Module]:
    """Return the layers of a doubling step to maps of the given edges: convolution, normalisation and ReLU."""
    return [
        DoublingConv(in_channels, out_channels, edges, bias=False),
        norm_layer(norm, len(edges), out_channels),
        nn.ReLU(),
    ]
