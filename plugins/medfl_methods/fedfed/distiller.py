"""Distiller network: a generator that reconstructs an image, and a classifier of the residual.

The residual is the image minus the reconstruction. Sites share residuals with noise; reconstructions stay private.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn

from medfl.task import ImageScale
from medfl_methods.fedfed.generators import GeneratorOutput

SharedForm = Literal["x_p", "x_s", "raw+noise"]
"""Shared part of an image: ``x_p`` the residual with noise, ``x_s`` the residual without noise, ``raw+noise`` the whole
image with noise."""


class Distiller(nn.Module):
    """Generator q and classifier f of the residual x - q(x) (Yang et al., FedFed, NeurIPS 2023, section 3).

    Args:
        generator: Network that maps images in [0, 1], (B, C, *spatial), to a `GeneratorOutput`.
        classifier: Network that maps normalised images to logits (B, num_classes).
        scale: Shape and normalisation of the task's images.
    """

    def __init__(self, generator: nn.Module, classifier: nn.Module, scale: ImageScale) -> None:
        super().__init__()
        self.generator, self.classifier, self._scale = generator, classifier, scale

    def forward(self, images: torch.Tensor) -> GeneratorOutput:
        """Return the generator's output for images in [0, 1], (B, C, *spatial): reconstruction and latent variables."""
        reconstructed: GeneratorOutput = self.generator(images)
        return reconstructed

    def classify(self, part: torch.Tensor) -> torch.Tensor:
        """Return logits (B, num_classes) of residuals (B, C, *spatial), with or without noise."""
        logits: torch.Tensor = self.classifier(self._scale.difference_to_inputs(part))
        return logits

    def classify_images(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits (B, num_classes) of whole images in [0, 1]."""
        logits: torch.Tensor = self.classifier(self._scale.to_inputs(images))
        return logits

    def classify_both(self, part: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
        """Return logits of residuals, followed by logits of whole images in [0, 1], from one forward pass.

        Batch-norm layers therefore use joint statistics of both.
        """
        logits: torch.Tensor = self.classifier(
            torch.cat([self._scale.difference_to_inputs(part), self._scale.to_inputs(images)])
        )
        return logits


class SharedPart(nn.Module):
    """Network that maps an image to the part that a site shares, before clip and noise. The parameters get no gradient.

    Args:
        distiller: Distiller that computes the residual.
        form: Kind of shared part. For ``raw+noise`` the network returns the whole image, otherwise the residual.
    """

    def __init__(self, distiller: Distiller, form: SharedForm) -> None:
        super().__init__()
        self._distiller, self._whole = distiller.eval().requires_grad_(False), form == "raw+noise"

    def train(self, mode: bool = True) -> SharedPart:
        """Keep the network in evaluation mode for any `mode`, and return it.

        Latent variables are means in this mode, and normalisation layers use their stored statistics.
        """
        return super().train(False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the shared part, (B, C, *spatial), of images in [0, 1]."""
        return images if self._whole else images - self._distiller(images).images
