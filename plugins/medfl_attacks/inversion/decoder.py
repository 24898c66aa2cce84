"""Two attacks on the shared part of images: a trained decoder and a fixed-point iteration.

A public generator network splits an image into a part that is shared and a part that it removes. An item is the shared
part of an image as the site sent it, possibly clipped and with noise.

The decoder learns to map items back to images, on images that the attacker has. The fixed-point iteration uses the
public generator: it adds to an item the part that the generator removes.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from medfl_attacks.inversion.gradient import StepCallback, ignore_step

DECODER_CHANNELS = 32
"""Number of channels of the decoder."""


MAX_BATCH_CELLS = 12 * 28 * 28
"""Largest number of cells (pixels or voxels) in a training batch of more than one image.

It keeps the time of a step independent of the image size.
"""


class Decoder(nn.Module):
    """Fully convolutional network that maps an item to the image it was made from.

    Untrained, it returns the mean image. Layers at half the resolution have a receptive field of about 30 cells along
    each axis; a layer at full resolution preserves edges. The mean image is a second input, which tells the network the
    position within the image.

    Args:
        mean: Mean image, (C, *spatial), with two or three spatial axes.

    Attributes:
        mean: Mean image from `Args`, as a buffer of the module.
        layers: Layers at half the resolution.
        straight: Layer at full resolution.
    """

    mean: torch.Tensor

    def __init__(self, mean: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean.detach().clone())
        channels, volume = len(mean), mean.dim() == 4
        convolution, widen = (nn.Conv3d, nn.ConvTranspose3d) if volume else (nn.Conv2d, nn.ConvTranspose2d)
        layers: list[nn.Module] = [convolution(2 * channels, DECODER_CHANNELS, 3, stride=2, padding=1), nn.ReLU()]
        for dilation in (1, 2, 2, 1):
            layers += [
                convolution(DECODER_CHANNELS, DECODER_CHANNELS, 3, padding=dilation, dilation=dilation),
                nn.ReLU(),
            ]
        self.layers = nn.Sequential(*layers, widen(DECODER_CHANNELS, channels, 4, stride=2, padding=1))
        self.straight = convolution(2 * channels, channels, 3, padding=1)
        for last in (self.layers[-1], self.straight):
            nn.init.zeros_(last.weight)  # type: ignore[arg-type]
            nn.init.zeros_(last.bias)  # type: ignore[arg-type]

    def forward(self, items: torch.Tensor) -> torch.Tensor:
        """Map items (B, C, *spatial) to images (B, C, *spatial), not yet limited to [0, 1]."""
        mean = self.mean.expand_as(items)
        both = torch.cat([items, mean], dim=1)
        far = self.layers(both)  # one cell larger than the image along axes with an odd number of cells
        for axis, size in enumerate(items.shape[2:], start=2):
            far = far.narrow(axis, 0, size)
        return mean + self.straight(both) + far


def train_decoder(
    images: torch.Tensor,
    item: Callable[[torch.Tensor], torch.Tensor],
    steps: int,
    generator: torch.Generator,
    on_step: StepCallback = ignore_step,
) -> Decoder:
    """Train a decoder on auxiliary images that the attacker has.

    Args:
        images: Auxiliary images, (N, C, *spatial), in [0, 1], N >= 1. They are similar to the attacked images, which
            they don't include.
        item: Function from images to items, as a site computes them, with new noise in each call.
        steps: Number of batches, >= 1.
        generator: Random generator of the batches and the initial weights.
        on_step: Callback without arguments after each step.

    Returns:
        The decoder in evaluation mode, on the device of the images.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(torch.randint(2**62, (), generator=generator)))
        decoder = Decoder(images.mean(dim=0).cpu()).to(images.device)
    optimizer = torch.optim.Adam(decoder.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    size = max(1, min(12, MAX_BATCH_CELLS // images[0, 0].numel()))
    for _ in range(steps):
        batch = images[torch.randint(len(images), (size,), generator=generator).to(images.device)]
        with torch.no_grad():
            items = item(batch)
        optimizer.zero_grad(set_to_none=True)
        nn.functional.mse_loss(decoder(items), batch).backward()
        optimizer.step()
        schedule.step()
        on_step()
    return decoder.eval()


@torch.no_grad()
def decode(decoder: Decoder, items: torch.Tensor) -> torch.Tensor:
    """Reconstruct images in [0, 1] from items, one at a time to limit memory.

    Args:
        decoder: Decoder in evaluation mode.
        items: Items, (B, C, *spatial): B items with C channels.
    """
    return torch.cat([decoder(item) for item in items.split(1)]).clamp(0, 1)


FIXED_POINT_STEPS = 200
"""Largest number of fixed-point iterations."""


CONVERGENCE_TOLERANCE = 1e-5
"""Convergence tolerance: an image has converged if no value changes by more than this; images are in [0, 1]."""


@torch.no_grad()
def invert_by_fixed_point(
    items: torch.Tensor, part: nn.Module, steps: int = FIXED_POINT_STEPS, on_step: StepCallback = ignore_step
) -> tuple[torch.Tensor, torch.Tensor]:
    """Iterate x <- item + q(x), limited to [0, 1], where q(x) = x - part(x) is the part that the generator removes.

    An image is a fixed point for its own item if the item was neither noised nor clipped. If q is a contraction, it is
    the only fixed point, and the iteration converges to it. If q = 0, the item is the image. For an image without
    convergence, the iterate whose shared part is closest to the item is returned, so a divergent iteration does no
    harm.

    Args:
        items: Observed items, (B, C, *spatial).
        part: Network that computes the shared part of images in [0, 1]; it is public.
        steps: Largest number of iterations, >= 1.
        on_step: Callback after each of the `steps`, including steps after convergence.

    Returns:
        Images, (B, C, *spatial), in [0, 1], and whether each has converged, (B,), bool.
    """
    images = items.clamp(0, 1)
    best, least = images, torch.full_like(items.flatten(1)[:, 0], torch.inf)
    converged = torch.zeros(len(items), dtype=torch.bool, device=items.device)
    for _ in range(steps):
        if not bool(converged.all()):
            shared = part(images)
            misfit = (shared - items).square().flatten(1).mean(dim=1)
            best = torch.where(_expand_mask(misfit < least, items), images, best)
            least = torch.minimum(misfit, least)
            after = (items + (images - shared)).clamp(0, 1)
            converged = (after - images).abs().flatten(1).amax(dim=1) <= CONVERGENCE_TOLERANCE
            images = after
        on_step()
    return torch.where(_expand_mask(converged, items), images, best), converged


def _expand_mask(mask: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
    """Reshape a mask (B,) so that it broadcasts over images."""
    return mask.view(-1, *[1] * (images.dim() - 1))
