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
        copies: Released parts, each of shape (N, C, *spatial), any floating dtype, in units of images in [0, 1]. Noise
            may exceed that range. Several copies contain the same parts with different noise.
        labels: Labels of the images, shape (N,), int64.
        owners: Name of the site that sent each image.
        part: Network that maps images in [0, 1], shape (B, C, *spatial), to their shared part before clipping and
            noise. It is public, in evaluation mode, and its parameters have no gradients.
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
        """Return the mean of copies, each weighted by its precision (one over the variance of its noise)."""
        if len(copies) == 1:
            return copies[0]
        return torch.stack(
            [self.variance / release.variance * copy for release, copy in zip(self.releases, copies)]
        ).sum(0)

    def sent(self, parts: torch.Tensor, stream: SecretStream) -> torch.Tensor:
        """Return the attacker's best estimate of further parts that are released in the same way, with fresh noise.

        Args:
            parts: Parts of images, shape (B, C, *spatial).
            stream: Stream of the noise.
        """
        return self.mean([release.apply(parts, stream) for release in self.releases])


def normalise_parts(parts: torch.Tensor, release: ImageRelease, scale: ImageScale) -> torch.Tensor:
    """Normalise released parts as inputs of a network: whole images like images, residuals without the mean.

    Args:
        parts: Released parts, shape (B, C, *spatial), in units of images in [0, 1].
        release: Release of the parts, which says whether they are whole images.
        scale: Scale of the task's images.
    """
    return scale.to_inputs(parts) if release.of == "raw" else scale.difference_to_inputs(parts)


@runtime_checkable
class ReleasesImages(Protocol):
    """Method whose sites release synthetic images or parts of their images."""

    def released(self, server: Server) -> ReleasedImages | None:
        """Return the images that were released so far, or None before the first release."""
        ...
