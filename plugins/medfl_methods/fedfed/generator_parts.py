"""What generators and critics share: halving and doubling of maps of any size, and checks of an image's shape."""

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
NORMS = ("batch", "group")
"""Batch normalisation as in the papers; groups of channels where a site's batches are of one class, or tiny."""

SMALLEST = 4
"""Shortest edge of an image in pixels."""


@dataclass
class Reconstruction:
    """What a generator makes of images.

    Attributes:
        images: Reconstructed images, (B, C, *spatial), in (0, 1).
        mean: Of the latent's normal distribution, (B, latent); None for a generator without a latent, like the others.
        log_variance: Logarithm of its variance, (B, latent).
        latent: What was decoded, (B, latent): a sample in training, the mean in evaluation.
    """

    images: torch.Tensor
    mean: torch.Tensor | None = None
    log_variance: torch.Tensor | None = None
    latent: torch.Tensor | None = None


def check_shape(name: str, shape: Sequence[int]) -> tuple[int, list[int]]:
    """Channels and edges of an image.

    Args:
        name: Of the network, for the message.
        shape: (C, H, W) or (C, D, H, W).

    Raises:
        SettingsError: If that is no image, or one with an edge below `SMALLEST`.
    """
    if len(shape) not in (3, 4) or shape[0] < 1:
        raise SettingsError(
            "wrong_shape",
            f"{name} expected the shape (C, H, W) or (C, D, H, W) of one image, got {tuple(shape)}",
            network=name,
            expected=("(C, H, W)", "(C, D, H, W)"),
            found=tuple(shape),
        )
    channels, *edges = shape
    if min(edges) < SMALLEST:
        raise SettingsError(
            "image_too_small",
            f"{name} expected images of at least {SMALLEST} pixels in each direction, got {tuple(edges)}. "
            "Resize or pad the images of the task",
            network=name,
            minimum=SMALLEST,
            found=tuple(edges),
        )
    return channels, edges


def check_options(name: str, norm: str = "batch", **least: tuple[int, int]) -> None:
    """Refuse an unknown normalisation, and numbers below their least value.

    Args:
        name: Of the network, for the message.
        norm: One of `NORMS`.
        **least: By name of the option, its value and the least that is possible.

    Raises:
        SettingsError: Naming the option.
    """
    check_choice(f"norm of {name}", norm, NORMS)
    for what, (value, bound) in least.items():
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
    """Refuse images of another size than the network was built for.

    Raises:
        SettingsError: Naming both shapes.
    """
    if tuple(images.shape[1:]) != tuple(shape):
        raise SettingsError(
            "wrong_shape",
            f"{name} expected images (B, {', '.join(map(str, shape))}), got {tuple(images.shape)}",
            network=name,
            expected=tuple(shape),
            found=tuple(images.shape),
        )


def halved(edges: Sequence[int]) -> list[int]:
    """Edges of the map that `Halve` makes: the half, rounded up."""
    return [(edge + 1) // 2 for edge in edges]


def halvings(edges: Sequence[int], longest: int) -> list[list[int]]:
    """Edges of the image and of the map after each halving, until none is above `longest`; at least one halving."""
    edges_by_step = [list(edges), halved(edges)]
    while max(edges_by_step[-1]) > longest:
        edges_by_step.append(halved(edges_by_step[-1]))
    return edges_by_step


class Halve(nn.Module):
    """Convolution with kernel 4 and stride 2, for maps of any size: an odd edge gets a line of zeros at its end.

    Args:
        spatial_dims: 2 or 3.
        before: Channels that come in.
        after: Channels that leave.
        bias: Whether the convolution has one.
    """

    def __init__(self, spatial_dims: int, before: int, after: int, bias: bool) -> None:
        super().__init__()
        self.conv = Conv[Conv.CONV, spatial_dims](before, after, kernel_size=4, stride=2, padding=1, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps (B, after, *halved) of maps (B, before, *spatial); see `halved`."""
        odd = [edge % 2 for edge in reversed(x.shape[2:])]
        if any(odd):
            x = F.pad(x, [lines for edge in odd for lines in (0, edge)])
        maps: torch.Tensor = self.conv(x)
        return maps


class Double(nn.Module):
    """Transposed convolution with kernel 4 and stride 2, cut to the size before `Halve`.

    Args:
        before: Channels that come in.
        after: Channels that leave.
        edges: Edges of the maps that leave: twice those that come in, or one less.
        bias: Whether the convolution has one.
    """

    def __init__(self, before: int, after: int, edges: Sequence[int], bias: bool) -> None:
        super().__init__()
        self._cut = (slice(None), slice(None), *(slice(edge) for edge in edges))
        conv = Conv[Conv.CONVTRANS, len(edges)]
        self.conv = conv(before, after, kernel_size=4, stride=2, padding=1, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps (B, after, *edges)."""
        maps: torch.Tensor = self.conv(x)
        return maps[self._cut]


def needs_bias(norm: Norm) -> bool:
    """Whether a convolution on images needs a bias before its normalisation.

    Groups are normalised in each image. Without a bias, an image and its half in brightness would then be the same.
    """
    return norm == "group"


def down(spatial_dims: int, before: int, after: int, norm: Norm) -> list[nn.Module]:
    """Halving, normalisation, ReLU; for the bias see `needs_bias`."""
    return [Halve(spatial_dims, before, after, bias=needs_bias(norm)), norm_layer(norm, spatial_dims, after), nn.ReLU()]


def up(before: int, after: int, edges: Sequence[int], norm: Norm) -> list[nn.Module]:
    """Doubling to maps of the given edges, normalisation, ReLU."""
    return [Double(before, after, edges, bias=False), norm_layer(norm, len(edges), after), nn.ReLU()]
