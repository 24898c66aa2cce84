"""Networks that reconstruct an image, so that the rest of it can be shared; `build_generator` makes one by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import nn

from medfl.errors import check_choice
from medfl.networks.generator_parts import Norm, Reconstruction
from medfl.networks.residual_generator import ResidualGenerator
from medfl.networks.vae import VAE

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
