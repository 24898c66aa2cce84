"""Networks that reconstruct an image, so that the rest of it can be shared; `build_generator` makes one by name.

The residual one is after CycleGAN: an image to an image, without a latent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from monai.networks.layers.factories import Conv
from torch import nn

from medfl.errors import check_choice
from medfl.networks.resnet_blocks import BasicBlock, norm_layer
from medfl_methods.fedfed.generator_parts import (
    SMALLEST,
    Norm,
    Reconstruction,
    check_images,
    check_options,
    check_shape,
    down,
    halved,
    needs_bias,
    up,
)
from medfl_methods.fedfed.vae import VAE

KERNEL = {2: 7, 3: 3}
"""Edge of the first and last kernels by the number of dimensions: CycleGAN's 7, and 3 in volumes, to be quick."""


class ResidualGenerator(nn.Module):
    """Stem, two halvings, residual blocks, two doublings, a convolution, sigmoid.

    CycleGAN has 128 for `width`, and instance normalisation. The number of weights does not depend on the
    size of an image. One of `SMALLEST` pixels is halved once only.

    Args:
        shape: (C, H, W) or (C, D, H, W) of an image, each edge >= 4, even or odd.
        width: Channels after the first halving, >= 2; half as many before, twice as many in the blocks.
        norm: One of `medfl_methods.fedfed.generator_parts.NORMS`.
        blocks: Number of residual blocks, >= 1.

    Attributes:
        shape: As given.

    Raises:
        SettingsError: If an argument is impossible.

    Source: Zhu, Park, Isola, Efros, ICCV 2017, appendix 7.2.
    """

    def __init__(self, shape: Sequence[int], width: int = 32, norm: Norm = "batch", blocks: int = 6) -> None:
        super().__init__()
        channels, edges = check_shape("ResidualGenerator", shape)
        check_options("ResidualGenerator", norm, width=(width, 2), blocks=(blocks, 1))
        self.shape = tuple(shape)
        dims = len(edges)
        widths = [width // 2, width, 2 * width] if max(edges) > SMALLEST else [width // 2, width]
        sizes = [edges, halved(edges)]
        kernel = KERNEL[dims]
        conv = Conv[Conv.CONV, dims]
        steps = [(widths[i + 1], widths[i], sizes[i]) for i in reversed(range(len(widths) - 1))]
        self.layers = nn.Sequential(
            conv(channels, widths[0], kernel_size=kernel, padding=kernel // 2, bias=needs_bias(norm)),
            norm_layer(norm, dims, widths[0]),
            nn.ReLU(),
            *(layer for pair in zip(widths, widths[1:]) for layer in down(dims, *pair, norm)),
            *(BasicBlock(dims, widths[-1], widths[-1], 1, norm, ("relu", {"inplace": False})) for _ in range(blocks)),
            *(layer for step in steps for layer in up(*step, norm)),
            conv(widths[0], channels, kernel_size=kernel, padding=kernel // 2),
            nn.Sigmoid(),
        )

    def forward(self, images: torch.Tensor) -> Reconstruction:
        """Reconstruct images (B, *shape) in [0, 1]."""
        check_images("ResidualGenerator", images, self.shape)
        return Reconstruction(self.layers(images))


__all__ = ["KINDS", "VAE", "Reconstruction", "ResidualGenerator", "build_generator"]


KINDS = ("vae", "resnet")
"""Kinds of generators."""


def build_generator(
    kind: Literal["vae", "resnet"], shape: Sequence[int], latent: int, width: int = 32, norm: Norm = "batch"
) -> nn.Module:
    """A generator with weights from torch's global generator.

    Args:
        kind: ``vae`` or ``resnet``; see `VAE` and `ResidualGenerator`.
        shape: (C, H, W) or (C, D, H, W) of an image, each edge >= 4.
        latent: Numbers that describe an image, >= 1; a ``resnet`` has none and ignores it.
        width: Channels, >= 2.
        norm: ``batch`` or ``group``.

    Returns:
        A network that maps images (B, *shape) in [0, 1] to a `Reconstruction`.

    Raises:
        SettingsError: If an argument is impossible.
    """
    check_choice("generator", kind, KINDS)
    if kind == "resnet":
        return ResidualGenerator(shape, width, norm)
    return VAE(shape, latent, width, norm)
