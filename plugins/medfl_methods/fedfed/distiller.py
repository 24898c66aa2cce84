"""A generator and a classifier that divide an image: what is rebuilt of it is private, the rest tells the class."""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn

from medfl.task import Scale
from medfl_methods.fedfed.generators import Reconstruction

Form = Literal["x_p", "x_s", "raw+noise"]
"""What sites send of an image: its part with noise, its part as it is, or the whole image with noise."""


class Distiller(nn.Module):
    """A generator q and a classifier f of the residual x - q(x) (Yang et al., FedFed, NeurIPS 2023, section 3).

    Args:
        generator: Maps images in [0, 1], (B, C, *spatial), to a `Reconstruction`.
        classifier: Maps what a network of the task sees to logits (B, num_classes).
        scale: Of the task's images.
    """

    def __init__(self, generator: nn.Module, classifier: nn.Module, scale: Scale) -> None:
        super().__init__()
        self.generator, self.classifier, self._scale = generator, classifier, scale

    def forward(self, images: torch.Tensor) -> Reconstruction:
        """What the generator rebuilds of images in [0, 1]."""
        rebuilt: Reconstruction = self.generator(images)
        return rebuilt

    def classify(self, part: torch.Tensor) -> torch.Tensor:
        """Logits (B, num_classes) of parts of images, noisy or not, (B, C, *spatial)."""
        logits: torch.Tensor = self.classifier(self._scale.seen_difference(part))
        return logits

    def classify_images(self, images: torch.Tensor) -> torch.Tensor:
        """Logits (B, num_classes) of whole images in [0, 1]."""
        logits: torch.Tensor = self.classifier(self._scale.seen(images))
        return logits

    def classify_both(self, part: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
        """Logits of parts and of whole images in [0, 1], one after the other; a batch norm sees them together."""
        logits: torch.Tensor = self.classifier(torch.cat([self._scale.seen_difference(part), self._scale.seen(images)]))
        return logits


class SharedPart(nn.Module):
    """What of an image is shared, before clip and noise; parameters get no gradient.

    Args:
        distiller: Divides the image.
        form: Whether it is the part or, for comparison, the whole image.
    """

    def __init__(self, distiller: Distiller, form: Form) -> None:
        super().__init__()
        self._distiller, self._whole = distiller.eval().requires_grad_(False), form == "raw+noise"

    def train(self, mode: bool = True) -> SharedPart:
        """It stays in evaluation mode: latents are means there, and norms have their own statistics."""
        return super().train(False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """The shared part, (B, C, *spatial), of images in [0, 1]."""
        return images if self._whole else images - self._distiller(images).images
