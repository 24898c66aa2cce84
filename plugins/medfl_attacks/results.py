"""What inversion attacks on one target found: the images under attack, and each attack's reconstructions of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from medfl_attacks.attack_files import InversionResult
from medfl_attacks.image_metrics import Quality, quality

Target = Literal["shared", "update", "model"]


@dataclass(frozen=True)
class Reconstruction:
    """The reconstructions of one attack.

    Attributes:
        attack: ``gradient``, ``decoder``, ``fixed_point``; ``mean_image`` for the attacker who has nothing but other
            people's images; ``none`` for the image itself.
        item: What it started from, such as ``x_p``; against a model, what its images are compared with.
        images: (n, C, *spatial), in [0, 1], on the CPU.
        quality: How close they are.
        converged: For an iteration, whether it came to rest, (n,), bool.
    """

    attack: str
    item: str
    images: torch.Tensor
    quality: Quality
    converged: torch.Tensor | None = None

    def result(self, target: Target) -> InversionResult:
        """Return the result on a target: means over the images, and the image that the attack was best at."""
        return InversionResult(
            target=target,
            attack=self.attack,
            item=self.item,
            images=len(self.images),
            converged=None if self.converged is None else int(self.converged.sum()),
            **self.quality.row(),
        )


@dataclass(frozen=True)
class Attacked:
    """What attacks on one target found.

    Attributes:
        target: What was attacked.
        truth: The images under attack, (n, C, *spatial), in [0, 1], on the CPU; against a model, the mean of each
            class.
        names: The class of each.
        shown: Heading to further pictures, (n, C, *spatial), in the order of a page.
        reconstructions: What was made.
        sent: The item that really left the sites, as in `Reconstruction.item`; empty where there is none.
        notes: Sentences about what was left out or assumed.
    """

    target: Target
    truth: torch.Tensor
    names: tuple[str, ...]
    shown: dict[str, torch.Tensor]
    reconstructions: tuple[Reconstruction, ...]
    sent: str = ""
    notes: tuple[str, ...] = ()

    def results(self) -> list[InversionResult]:
        """Return the result of each attack."""
        return [made.result(self.target) for made in self.reconstructions]


def reconstruction(
    attack: str, item: str, images: torch.Tensor, truth: torch.Tensor, converged: torch.Tensor | None = None
) -> Reconstruction:
    """Reconstructions, compared with the truth; where an attack made no number of a cell, it is mid-grey."""
    images = images.detach().cpu().float().nan_to_num(0.5).clamp(0, 1).expand_as(truth)
    return Reconstruction(attack, item, images, quality(images, truth), converged)
