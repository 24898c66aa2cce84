"""Results of inversion attacks on one target: the true images and each attack's reconstructions of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from medfl_attacks.attack_files import InversionResult
from medfl_attacks.image_metrics import SimilarityScores, compare_images

InversionTarget = Literal["shared", "update", "model"]
"""Kind of information under attack: ``shared`` images, the ``update`` of a site, or the global ``model``."""


@dataclass(frozen=True)
class AttackReconstruction:
    """The images that one inversion attack reconstructed, with their similarity to the true images.

    Attributes:
        attack: Name of the attack: ``gradient``, ``decoder`` or ``fixed_point``. ``mean_image`` is the baseline of an
            attacker who has only other patients' images; ``none`` is the true image itself.
        item: Information that the attack started from, such as ``x_p`` (the shared part of an image as it was sent) or
            ``x_s`` (the same part without noise); against a model, the images that the
            reconstructions are compared with.
        images: Reconstructed images, (n, C, *spatial), in [0, 1], on the CPU.
        similarity: Similarity of each reconstruction to its true image.
        converged: For an iterative attack, whether the iteration converged for each image, (n,), bool; otherwise None.
    """

    attack: str
    item: str
    images: torch.Tensor
    similarity: SimilarityScores
    converged: torch.Tensor | None = None

    def result(self, target: InversionTarget) -> InversionResult:
        """Return the record of this attack: mean similarity over the images, and the best value of each measure.

        Args:
            target: Kind of information under attack.
        """
        return InversionResult(
            target=target,
            attack=self.attack,
            item=self.item,
            images=len(self.images),
            converged=None if self.converged is None else int(self.converged.sum()),
            **self.similarity.summarize(),
        )


@dataclass(frozen=True)
class InversionFindings:
    """All inversion results on one target.

    Attributes:
        target: Kind of information under attack.
        truth: True images, (n, C, *spatial), in [0, 1], on the CPU; against a model, the mean image of each class.
        names: Class name of each true image.
        shown: Maps the heading of an extra column on the page to its images, (n, C, *spatial), in the order of the
            columns.
        reconstructions: Result of each attack.
        sent: Name of the item that really left the sites in the run, a value of `AttackReconstruction.item`; empty if
            there is none.
        notes: Sentences about images that were left out and assumptions that were made.
    """

    target: InversionTarget
    truth: torch.Tensor
    names: tuple[str, ...]
    shown: dict[str, torch.Tensor]
    reconstructions: tuple[AttackReconstruction, ...]
    sent: str = ""
    notes: tuple[str, ...] = ()

    def results(self) -> list[InversionResult]:
        """Return the record of each attack."""
        return [reconstructed.result(self.target) for reconstructed in self.reconstructions]


def evaluate_reconstruction(
    attack: str, item: str, images: torch.Tensor, truth: torch.Tensor, converged: torch.Tensor | None = None
) -> AttackReconstruction:
    """Build an `AttackReconstruction`, with the similarity to the true images.

    NaN values of an attack become mid-grey (0.5); all values are clamped to [0, 1].

    Args:
        attack: Name of the attack.
        item: Information that the attack started from.
        images: Reconstructed images, of a shape that expands to the shape of `truth`.
        truth: True images, (n, C, *spatial), in [0, 1].
        converged: Whether an iteration converged for each image, (n,), bool; None for other attacks.
    """
    images = images.detach().cpu().float().nan_to_num(0.5).clamp(0, 1).expand_as(truth)
    return AttackReconstruction(attack, item, images, compare_images(images, truth), converged)
