"""The variational autoencoder of FedFed, for images and volumes of any size."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from monai.networks.layers.factories import Conv
from torch import nn

from medfl.networks.resnet_blocks import norm_layer
from medfl_methods.fedfed.generator_parts import (
    Double,
    Norm,
    Reconstruction,
    check_images,
    check_options,
    check_shape,
    down,
    halvings,
    up,
)

LONGEST = {2: 8, 3: 4}
"""Longest edge of the map that the linear layers see, by the number of dimensions. For images FedFed's 8 x 8; a volume
goes down to 4 x 4 x 4, which has as many positions: 8 x 8 x 8 would make 25 million weights at `width` 32, `latent`
512."""


class VAE(nn.Module):
    """Encoder to mean and log variance of a normal distribution, and a decoder from a sample of it.

    Encoder: halvings (kernel 4, stride 2), each with normalisation and ReLU, then two residual blocks. Three linear
    layers: to mean, to log variance, and back. Decoder: two residual blocks, doublings, normalisation, sigmoid. There
    are as many halvings as bring the longest edge to `LONGEST` or less, at least one: two for 28 or 32 pixels, as in
    FedFed, five for 224. The channels do not grow with them, so the number of weights stays bounded: at most
    3 * 64 * width * latent in the linear layers, and about 32 (in 3-D 128) times width squared for each halving more.

    With ``norm="group"`` the reconstruction itself is not normalised: that would give all images one brightness.

    Args:
        shape: (C, H, W) or (C, D, H, W) of an image, each edge >= 4, even or odd.
        latent: Numbers that describe an image, >= 1. FedFed takes 2048; FedTPF the number of the network's features,
            with which the prototypes are compared.
        width: Channels, >= 2; half as many after the first of several halvings.
        norm: One of `medfl_methods.fedfed.generator_parts.NORMS`.

    Attributes:
        shape: As given.
        latent: As given.

    Raises:
        SettingsError: If an argument is impossible.

    Source: Yang et al., FedFed, NeurIPS 2023, and its released code, without the tanh in the middle of the decoder.
    """

    def __init__(self, shape: Sequence[int], latent: int, width: int = 32, norm: Norm = "batch") -> None:
        super().__init__()
        channels, edges = check_shape("VAE", shape)
        check_options("VAE", norm, latent=(latent, 1), width=(width, 2))
        self.shape, self.latent = tuple(shape), latent
        dims = len(edges)
        sizes = halvings(edges, LONGEST[dims])
        first = width // 2 if len(sizes) > 2 else width
        widths = [channels, first, *[width] * (len(sizes) - 2)]
        self._map = (width, *sizes[-1])
        self.encoder = nn.Sequential(
            *(layer for pair in zip(widths, widths[1:]) for layer in down(dims, *pair, norm)),
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
            *(layer for step in steps for layer in up(*step, norm)),
            Double(first, channels, edges, bias=norm == "group"),
            *([norm_layer(norm, dims, channels)] if norm == "batch" else []),
            nn.Sigmoid(),
        )

    def encode(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and log variance, each (B, latent), of images (B, *shape) in [0, 1].

        Raises:
            SettingsError: If the images have another shape than the network was built for.
        """
        check_images("VAE", images, self.shape)
        features = self.encoder(images).flatten(1)
        return self.to_mean(features), self.to_log_variance(features)

    def decode(self, latent: torch.Tensor) -> torch.Tensor:
        """Images (B, *shape) in (0, 1) of (B, latent)."""
        images: torch.Tensor = self.decoder(self.back(latent).unflatten(1, self._map))
        return images

    def forward(self, images: torch.Tensor) -> Reconstruction:
        """Reconstruct images (B, *shape) in [0, 1]; in training from a sample, which torch's global generator draws."""
        mean, log_variance = self.encode(images)
        latent = mean
        if self.training:
            latent = mean + torch.exp(log_variance / 2) * torch.randn_like(mean)
        return Reconstruction(self.decode(latent), mean, log_variance, latent)


class _Block(nn.Module):
    """x + convolutions of x: LeakyReLU, 3x3, normalisation, LeakyReLU, 1x1; nothing works in place."""

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
    return [_Block(spatial_dims, width, norm), norm_layer(norm, spatial_dims, width), _Block(spatial_dims, width, norm)]
