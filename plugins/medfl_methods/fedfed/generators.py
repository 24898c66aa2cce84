"""Generator networks that reconstruct an image. `build_generator` builds one by its kind.

The kinds are the `VAE` and a residual generator after CycleGAN, which maps an image to an image without latent
variables.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from monai.networks.layers.factories import Conv
from torch import nn

from medfl.errors import check_choice
from medfl.networks.resnet_blocks import BasicBlock, norm_layer
from medfl_methods.fedfed.generator_layers import (
    MIN_EDGE,
    GeneratorOutput,
    Norm,
    check_images,
    check_options,
    check_shape,
    down_layers,
    halve_edges,
    needs_conv_bias,
    up_layers,
)
from medfl_methods.fedfed.vae import VAE

OUTER_KERNEL_SIZE = {2: 7, 3: 3}
"""Kernel size of the first and last convolution, by the number of spatial dimensions: CycleGAN's 7 for images; 3 for
volumes, which is faster."""


class ResidualGenerator(nn.Module):
    """Image-to-image generator: stem, two halvings, residual blocks, two doublings, a convolution and a sigmoid.

    CycleGAN corresponds to `width` 128 with instance normalisation. The number of weights does not depend on the size
    of the image. An image of `MIN_EDGE` pixels is halved only once.

    Args:
        shape: Shape (C, H, W) or (C, D, H, W) of an image, each edge >= 4, even or odd.
        width: Number of channels after the first halving, >= 2; half as many before it, twice as many in the blocks.
        norm: Normalisation, one of `medfl_methods.fedfed.generator_layers.NORMS`.
        blocks: Number of residual blocks, >= 1.

    Attributes:
        shape: Shape of an image.
        layers: Whole network from image to reconstruction.

    Raises:
        SettingsError: If an argument is out of range.

    Source: Zhu, Park, Isola, Efros, ICCV 2017, appendix 7.2.
    """

    def __init__(self, shape: Sequence[int], width: int = 32, norm: Norm = "batch", blocks: int = 6) -> None:
        super().__init__()
        channels, edges = check_shape("ResidualGenerator", shape)
        check_options("ResidualGenerator", norm, width=(width, 2), blocks=(blocks, 1))
        self.shape = tuple(shape)
        dims = len(edges)
        widths = [width // 2, width, 2 * width] if max(edges) > MIN_EDGE else [width // 2, width]
        sizes = [edges, halve_edges(edges)]
        kernel = OUTER_KERNEL_SIZE[dims]
        conv = Conv[Conv.CONV, dims]
        steps = [(widths[i + 1], widths[i], sizes[i]) for i in reversed(range(len(widths) - 1))]
        self.layers = nn.Sequential(
            conv(channels, widths[0], kernel_size=kernel, padding=kernel // 2, bias=needs_conv_bias(norm)),
            norm_layer(norm, dims, widths[0]),
            nn.ReLU(),
            *(layer for pair in zip(widths, widths[1:]) for layer in down_layers(dims, *pair, norm)),
            *(BasicBlock(dims, widths[-1], widths[-1], 1, norm, ("relu", {"inplace": False})) for _ in range(blocks)),
            *(layer for step in steps for layer in up_layers(*step, norm)),
            conv(widths[0], channels, kernel_size=kernel, padding=kernel // 2),
            nn.Sigmoid(),
        )

    def forward(self, images: torch.Tensor) -> GeneratorOutput:
        """Reconstruct images (B, *shape) in [0, 1]; the output has no latent variables."""
        check_images("ResidualGenerator", images, self.shape)
        return GeneratorOutput(self.layers(images))


__all__ = ["GENERATOR_KINDS", "VAE", "GeneratorOutput", "ResidualGenerator", "build_generator"]


GENERATOR_KINDS = ("vae", "resnet")
"""Kinds of generators: ``vae``, a variational autoencoder; ``resnet``, a `ResidualGenerator`."""


def build_generator(
    kind: Literal["vae", "resnet"], shape: Sequence[int], latent: int, width: int = 32, norm: Norm = "batch"
) -> nn.Module:
    """Return a generator with initial weights from torch's global generator.

    Args:
        kind: ``vae`` or ``resnet``; see `VAE` and `ResidualGenerator`.
        shape: Shape (C, H, W) or (C, D, H, W) of an image, each edge >= 4.
        latent: Number of latent variables, >= 1; a ``resnet`` has none and ignores it.
        width: Number of channels, >= 2.
        norm: ``batch`` or ``group``.

    Returns:
        A network that maps images (B, *shape) in [0, 1] to a `GeneratorOutput`.

    Raises:
        SettingsError: If an argument is out of range.
    """
    check_choice("generator", kind, GENERATOR_KINDS)
    if kind == "resnet":
        return ResidualGenerator(shape, width, norm)
    return VAE(shape, latent, width, norm)
