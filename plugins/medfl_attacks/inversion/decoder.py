"""Attacks on a shared part of images: a decoder that is learned, and a fixed point for whoever knows the generator.

The decoder learns the way back from images that the attacker has; the fixed point takes away what the generator takes
away.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from medfl_attacks.inversion.gradient import Tick, still

WIDTH = 32
"""Channels of the decoder."""


CELLS = 12 * 28 * 28
"""Cells of a batch at most, but for a batch of one image: a step takes as long for large images as for small ones."""


class Decoder(nn.Module):
    """From an item to the image it was made of.

    A fully convolutional network that begins as the mean image. Layers at half the resolution look at about 30 cells
    along each axis, one at full resolution keeps edges sharp. The mean image is an input, too, so that the network
    knows where in the image it is.

    Args:
        mean: The mean image, (C, *spatial), of two or three axes.
    """

    mean: torch.Tensor

    def __init__(self, mean: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean.detach().clone())
        channels, volume = len(mean), mean.dim() == 4
        convolution, widen = (nn.Conv3d, nn.ConvTranspose3d) if volume else (nn.Conv2d, nn.ConvTranspose2d)
        layers: list[nn.Module] = [convolution(2 * channels, WIDTH, 3, stride=2, padding=1), nn.ReLU()]
        for dilation in (1, 2, 2, 1):
            layers += [convolution(WIDTH, WIDTH, 3, padding=dilation, dilation=dilation), nn.ReLU()]
        self.layers = nn.Sequential(*layers, widen(WIDTH, channels, 4, stride=2, padding=1))
        self.straight = convolution(2 * channels, channels, 3, padding=1)
        for last in (self.layers[-1], self.straight):
            nn.init.zeros_(last.weight)  # type: ignore[arg-type]
            nn.init.zeros_(last.bias)  # type: ignore[arg-type]

    def forward(self, items: torch.Tensor) -> torch.Tensor:
        """Images (B, C, *spatial), not yet kept in [0, 1], of items (B, C, *spatial)."""
        mean = self.mean.expand_as(items)
        both = torch.cat([items, mean], dim=1)
        far = self.layers(both)  # a cell longer than the image along axes of an odd number of cells
        for axis, size in enumerate(items.shape[2:], start=2):
            far = far.narrow(axis, 0, size)
        return mean + self.straight(both) + far


def train_decoder(
    images: torch.Tensor,
    item: Callable[[torch.Tensor], torch.Tensor],
    steps: int,
    generator: torch.Generator,
    tick: Tick = still,
) -> Decoder:
    """Train a decoder on images that the attacker has from elsewhere.

    Args:
        images: (N, C, *spatial), in [0, 1], N >= 1, of the kind that is attacked but none of those.
        item: Makes items of images as a site does, with fresh noise each time.
        steps: Batches, >= 1.
        generator: Draws the batches and the initial weights.
        tick: Called after each step.

    Returns:
        The decoder in evaluation mode, on the device of the images.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(torch.randint(2**62, (), generator=generator)))
        decoder = Decoder(images.mean(dim=0).cpu()).to(images.device)
    optimizer = torch.optim.Adam(decoder.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    size = max(1, min(12, CELLS // images[0, 0].numel()))
    for _ in range(steps):
        batch = images[torch.randint(len(images), (size,), generator=generator).to(images.device)]
        with torch.no_grad():
            items = item(batch)
        optimizer.zero_grad(set_to_none=True)
        nn.functional.mse_loss(decoder(items), batch).backward()
        optimizer.step()
        schedule.step()
        tick()
    return decoder.eval()


@torch.no_grad()
def decode(decoder: Decoder, items: torch.Tensor) -> torch.Tensor:
    """Images in [0, 1] of items, one at a time to bound the memory.

    Args:
        decoder: In evaluation mode.
        items: (B, C, *spatial).
    """
    return torch.cat([decoder(item) for item in items.split(1)]).clamp(0, 1)


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
