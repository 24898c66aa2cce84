"""The fixed-point attack on a shared part of images: whoever knows the generator can take away what it takes away."""

from __future__ import annotations

import torch
from torch import nn

from medfl.attacks.gradient import Tick, still

STEPS = 200
"""Iterations at most."""

STILL = 1e-5
"""An image that changes by no more than this anywhere, in units of images in [0, 1], has converged."""


@torch.no_grad()
def fixed_point(
    items: torch.Tensor, part: nn.Module, steps: int = STEPS, tick: Tick = still
) -> tuple[torch.Tensor, torch.Tensor]:
    """Iterate x <- item + q(x), kept in [0, 1], where q(x) = x - part(x) is what the generator keeps back.

    An image is a fixed point of its own item where that has no noise and no clip; if q is a contraction, it is the only
    one, and the iteration finds it. With q = 0 the item is the image. Each image keeps the place whose part is most
    like the item, so an iteration that runs away does no harm.

    Args:
        items: What was sent, (B, C, *spatial).
        part: The shared part of images in [0, 1], which everybody knows.
        steps: Iterations at most, >= 1.
        tick: Called after each of the `steps`, also of those that are not needed.

    Returns:
        Images (B, C, *spatial) in [0, 1], and whether each has converged, (B,), bool.
    """
    images = items.clamp(0, 1)
    best, least = images, torch.full_like(items.flatten(1)[:, 0], torch.inf)
    converged = torch.zeros(len(items), dtype=torch.bool, device=items.device)
    for _ in range(steps):
        if not bool(converged.all()):
            shared = part(images)
            misfit = (shared - items).square().flatten(1).mean(dim=1)
            best = torch.where(_wide(misfit < least, items), images, best)
            least = torch.minimum(misfit, least)
            after = (items + (images - shared)).clamp(0, 1)
            converged = (after - images).abs().flatten(1).amax(dim=1) <= STILL
            images = after
        tick()
    return torch.where(_wide(converged, items), images, best), converged


def _wide(chosen: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
    return chosen.view(-1, *[1] * (images.dim() - 1))
