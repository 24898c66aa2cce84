"""What a method that shares made-up or altered images has released: for the attacks that measure what it gives away."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import nn

from medfl.contract import Server
from medfl.privacy.release import Release
from medfl.task import Scale
from medfl.utils.rng import SecretStream


@dataclass(frozen=True)
class Released:
    """What all participants of a run hold of the sites' images.

    Attributes:
        copies: What was sent, each (N, C, *spatial), any floating type, in units of images in [0, 1]; noise may leave
            that range. Several copies are of the same parts under unlike noise.
        labels: (N,), int64.
        owners: Name of the site that sent each.
        part: Maps images in [0, 1], (B, C, *spatial), to the part of them that is shared, before clip and noise. In
            evaluation mode and without a gradient of its own; everybody knows it.
        releases: How the part was clipped and noised for each copy.
    """

    copies: tuple[torch.Tensor, ...]
    labels: torch.Tensor
    owners: tuple[str, ...]
    part: nn.Module
    releases: tuple[Release, ...]

    @property
    def images(self) -> torch.Tensor:
        """The best that the copies tell, (N, C, *spatial), float32: their `mean`."""
        return self.mean([copy.float() for copy in self.copies])

    @property
    def variance(self) -> float:
        """Of the noise in the mean of all copies; 0 where one has none."""
        if any(release.noise == "none" for release in self.releases):
            return 0.0
        return 1 / sum(1 / release.variance for release in self.releases)

    def mean(self, copies: list[torch.Tensor]) -> torch.Tensor:
        """The mean of copies, each weighted by its precision, one over the variance of its noise."""
        if len(copies) == 1:
            return copies[0]
        return torch.stack(
            [self.variance / release.variance * copy for release, copy in zip(self.releases, copies)]
        ).sum(0)

    def sent(self, parts: torch.Tensor, stream: SecretStream) -> torch.Tensor:
        """What an attacker makes of parts of images that are sent like these: the `mean` of copies with fresh noise."""
        return self.mean([release.apply(parts, stream) for release in self.releases])


def as_seen(parts: torch.Tensor, release: Release, scale: Scale) -> torch.Tensor:
    """What a network is given of released parts: whole images as images, residuals without a shift by the mean.

    Args:
        parts: (B, C, *spatial), in units of images in [0, 1].
        release: Says what they are parts of.
        scale: Of the task's images.
    """
    return scale.seen(parts) if release.of == "raw" else scale.seen_difference(parts)


@runtime_checkable
class ReleasesImages(Protocol):
    """A method that lets sites send images of some kind to each other."""

    def released(self, server: Server) -> Released | None:
        """What was sent until now; None before anything was."""
        ...
