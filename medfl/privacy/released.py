"""Images that a method has released in a run, as input of the attacks that measure their information leakage.

The images are synthetic, or parts of real images that were clipped and noised.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import nn

from medfl.contract import Server
from medfl.privacy.release import ImageRelease
from medfl.task import ImageScale
from medfl.utils.rng import SecretStream


@dataclass(frozen=True)
class ReleasedImages:
    """Released parts of the sites' images, which all participants of a run know.

    Attributes:
        copies: Released parts of N images with C channels, each of shape (N, C, *spatial), any floating dtype, in units
            of images in [0, 1]. Noise may exceed that range. Several copies contain the same parts with different
            noise.
        labels: Labels of the images, shape (N,), int64.
        owners: Name of the site that sent each image.
        part: Network that computes from a batch of B images in [0, 1], shape (B, C, *spatial), their shared part before
            clipping and noise. It is public, in evaluation mode, and its parameters have no gradients.
        releases: Clipping and noise of each copy.
    """

    copies: tuple[torch.Tensor, ...]
    labels: torch.Tensor
    owners: tuple[str, ...]
    part: nn.Module
    releases: tuple[ImageRelease, ...]

    @property
    def images(self) -> torch.Tensor:
        """Best estimate of the parts from all copies, shape (N, C, *spatial), float32: their `mean`."""
        return self.mean([copy.float() for copy in self.copies])

    @property
    def variance(self) -> float:
        """Variance of the noise in the mean of all copies; 0 if a copy has no noise."""
        if any(release.noise == "none" for release in self.releases):
            return 0.0
        return 1 / sum(1 / release.variance for release in self.releases)

    def mean(self, copies: list[torch.Tensor]) -> torch.Tensor:
        """Return the mean of copies, each weighted by its precision (one over the variance of its noise).

        Args:
            copies: Tensors of equal shape, one for each entry of `releases`, in the same order.
        """
        if len(copies) == 1:
            return copies[0]
        return torch.stack(
            [self.variance / release.variance * copy for release, copy in zip(self.releases, copies)]
        ).sum(0)

    def sent(self, parts: torch.Tensor, stream: SecretStream) -> torch.Tensor:
        """Release further parts in the same way, with fresh noise, and return the attacker's best estimate of them.

        Args:
            parts: Parts of B images, shape (B, C, *spatial), before clipping and noise.
            stream: Stream from which the noise is drawn.
        """
        return self.mean([release.apply(parts, stream) for release in self.releases])


def normalise_parts(parts: torch.Tensor, release: ImageRelease, scale: ImageScale) -> torch.Tensor:
    """Normalise released parts as inputs of a network.

    Whole images are normalised like other images. Residuals (images less their reconstructions) are differences of
    images, so they are only divided by the standard deviation, without subtracting the mean.

    Args:
        parts: Released parts of B images with C channels, shape (B, C, *spatial), in units of images in [0, 1].
        release: Clipping and noise of the parts, which also says whether they are whole images.
        scale: Normalisation of the task's images.
    """
    return scale.to_inputs(parts) if release.of == "raw" else scale.difference_to_inputs(parts)


@runtime_checkable
class ReleasesImages(Protocol):
    """Interface of a method whose sites release synthetic images or parts of their images."""

    def released(self, server: Server) -> ReleasedImages | None:
        """Return the images that the sites have released so far, or None before the first release.

        Args:
            server: State of the server in the run.
        """
        ...
