"""What a method that shares made-up or altered images has released: for the attacks that measure what it gives away."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import nn

from medfl.contract import Server
from medfl.privacy.release import Release


@dataclass(frozen=True)
class Released:
    """What all participants of a run hold of the sites' images.

    Attributes:
        images: What was sent, (N, C, *spatial), any floating type, in units of images in [0, 1]; noise may leave that
            range.
        labels: (N,), int64.
        owners: Name of the site that sent each.
        part: Maps images in [0, 1], (B, C, *spatial), to the part of them that is shared, before clip and noise. In
            evaluation mode and without a gradient of its own; everybody knows it.
        release: How the part was clipped and noised.
    """

    images: torch.Tensor
    labels: torch.Tensor
    owners: tuple[str, ...]
    part: nn.Module
    release: Release


@runtime_checkable
class ReleasesImages(Protocol):
    """A method that lets sites send images of some kind to each other."""

    def released(self, server: Server) -> Released | None:
        """What was sent until now; None before anything was."""
        ...
