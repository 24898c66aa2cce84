"""Variational autoencoder of FedFed, for images and volumes of any size."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from monai.networks.layers.factories import Conv
from torch import nn

from medfl.networks.resnet_blocks import norm_layer
from medfl_methods.fedfed.generator_layers import (
    DoublingConv,
    GeneratorOutput,
    Norm,
    check_images,
    check_options,
    check_shape,
    down_layers,
    edges_by_halving,
    up_layers,
)

MAX_BOTTLENECK_EDGE = {2: 8, 3: 4}
"""Maximum edge of the feature map before the linear layers, by the number of spatial dimensions. For images it is
FedFed's 8 (8 x 8). For volumes it is 4, since 4 x 4 x 4 has as many positions; 8 x 8 x 8 would need 25 million weights
at `width` 32 and `latent` 512."""


class VAE(nn.Module):
    """Variational autoencoder: an encoder to mean and log variance of a normal distribution, and a decoder of a sample.

    The encoder has halving convolutions (kernel 4, stride 2), each with normalisation and ReLU, then two residual
    blocks. Three linear layers map to the mean, to the log variance, and back. The decoder has two residual blocks,
    doubling convolutions, normalisation and a sigmoid. The number of halvings is the smallest that brings the longest
    edge to `MAX_BOTTLENECK_EDGE` or below, at least one: two for 28 or 32 pixels, as in FedFed, five for 224. The
    channels do not grow with the depth, so the number of weights is bounded: at most 3 * 64 * width * latent in the
    linear layers, and about 32 (in 3-D 128) times width squared for each further halving.

    With ``norm="group"`` the last layer has no normalisation, which would give all images the same brightness.

    Args:
        shape: Shape (C, H, W) or (C, D, H, W) of an image, each edge >= 4, even or odd.
        latent: Number of latent variables, >= 1. FedFed uses 2048. FedTPF uses the number of features of the
            task's network, because FedTPF compares latent variables with prototypes, which are mean features.
        width: Number of channels, >= 2; half as many after the first of several halvings.
        norm: Normalisation, one of `medfl_methods.fedfed.generator_layers.NORMS`.

    Attributes:
        shape: Shape of an image.
        latent: Number of latent variables.
        encoder: Layers from image to the smallest feature map.
        to_mean: Linear layer from that feature map to the mean.
        to_log_variance: Linear layer from that feature map to the log variance.
        back: Linear layer from latent variables to the decoder's first feature map.
        decoder: Layers from that feature map to the image.

    Raises:
        SettingsError: If an argument is out of range.

    Source: Yang et al., FedFed, NeurIPS 2023, and its released code, without the tanh in the middle of the decoder.
    """

    def __init__(self, shape: Sequence[int], latent: int, width: int = 32, norm: Norm = "batch") -> None:
        super().__init__()
        channels, edges = check_shape("VAE", shape)
        check_options("VAE", norm, latent=(latent, 1), width=(width, 2))
        self.shape, self.latent = tuple(shape), latent
        dims = len(edges)
        sizes = edges_by_halving(edges, MAX_BOTTLENECK_EDGE[dims])
        first = width // 2 if len(sizes) > 2 else width
        widths = [channels, first, *[width] * (len(sizes) - 2)]
        self._map = (width, *sizes[-1])
        self.encoder = nn.Sequential(
            *(layer for pair in zip(widths, widths[1:]) for layer in down_layers(dims, *pair, norm)),
            *_two_blocks(dims, width, norm),
        )
        numbers = math.prod(self._map)
        self.to_mean = nn.Linear(numbers, latent)
        self.to_log_variance = nn.Linear(numbers, latent)
        self.back = nn.Linear(latent, numbers)
        steps = [(widths[i + 1], widths[i], sizes[i]) for i in reversed(range(1, len(widths) - 1))]
        self.decoder = nn.Sequential(
            *_two_blocks(dims, width, norm),
            norm_layer(norm, dims, width),
            *(layer for step in steps for layer in up_layers(*step, norm)),
            DoublingConv(first, channels, edges, bias=norm == "group"),
            *([norm_layer(norm, dims, channels)] if norm == "batch" else []),
            nn.Sigmoid(),
        )

    def encode(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the mean and log variance, each (B, latent), of images (B, *shape) in [0, 1].

        Raises:
            SettingsError: If the images do not have the shape that the network was built for.
        """
        check_images("VAE", images, self.shape)
        features = self.encoder(images).flatten(1)
        return self.to_mean(features), self.to_log_variance(features)

    def decode(self, latent: torch.Tensor) -> torch.Tensor:
        """Decode latent variables (B, latent) to images (B, *shape) in (0, 1)."""
        images: torch.Tensor = self.decoder(self.back(latent).unflatten(1, self._map))
        return images

    def forward(self, images: torch.Tensor) -> GeneratorOutput:
        """Reconstruct images (B, *shape) in [0, 1].

        In training the network decodes a sample of the latent distribution, drawn with torch's global generator, and in
        evaluation the mean of that distribution.
        """
        mean, log_variance = self.encode(images)
        latent = mean
        if self.training:
            latent = mean + torch.exp(log_variance / 2) * torch.randn_like(mean)
        return GeneratorOutput(self.decode(latent), mean, log_variance, latent)


class _VaeResidualBlock(nn.Module):
    """Residual block: x plus LeakyReLU, 3x3 convolution, normalisation, LeakyReLU and 1x1 convolution of x.

    No layer works in place, so second derivatives exist.
    """

    def __init__(self, spatial_dims: int, width: int, norm: Norm) -> None:
        super().__init__()
        conv = Conv[Conv.CONV, spatial_dims]
        self.layers = nn.Sequential(
            nn.LeakyReLU(),
            conv(width, width, kernel_size=3, padding=1, bias=False),
            norm_layer(norm, spatial_dims, width),
            nn.LeakyReLU(),
            conv(width, width, kernel_size=1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + self.layers(x)
        return out


def _two_blocks(spatial_dims: int, width: int, norm: Norm) -> list[nn.Module]:
    return [
        _VaeResidualBlock(spatial_dims, width, norm),
        norm_layer(norm, spatial_dims, width),
        _VaeResidualBlock(spatial_dims, width, norm),
    ]
