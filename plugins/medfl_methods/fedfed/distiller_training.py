"""Training and evaluation of the distiller at a site.

The distiller is a generator, which reconstructs an image, and a classifier of the residual (image minus
reconstruction). A site later shares the residuals of its images with noise, and never the reconstructions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from medfl.contract import Site
from medfl.errors import RefusedError, SettingsError
from medfl.privacy.release import ImageRelease
from medfl.task import ImageScale, Task
from medfl.training.loop import Batch, train
from medfl.training.optimizer_state import read_state, write_state
from medfl.types import Dataset, Tensors
from medfl.utils.rng import SeparateStream
from medfl_methods.fedfed.distiller import Distiller
from medfl_methods.fedfed.generators import GeneratorOutput

DISTILLER = "distiller"
"""Name of the distiller among the networks of a task."""


@dataclass
class DividedBatch:
    """Batch of images that the generator has divided into reconstruction and residual.

    Attributes:
        images: Images in [0, 1], (B, C, *spatial).
        labels: Class labels, (B,).
        reconstructed: Output of the generator: the reconstructed images, which stay private, and latent variables.
        residual: Images minus reconstruction, the part to be shared, (B, C, *spatial).
    """

    images: torch.Tensor
    labels: torch.Tensor
    reconstructed: GeneratorOutput
    residual: torch.Tensor


class DistillerTraining:
    """Training of the distiller at one site in one round.

    Args:
        site: Site with its data, settings and random streams.
        task: Task that has the network `DISTILLER`.
        tensors: Tensors of the received distiller.
        optimizer: State of the optimiser after the previous round; empty in the first round.
        lr: Learning rate of AdamW, > 0.
        weight_decay: Weight decay of AdamW, >= 0; with 0 it is Adam.
        gradient_clip: Maximum L2 norm of a batch's gradient over both networks, or None.
        steps: Number of batches of a training pass, >= 1; None means all images once. The run's setting `steps` is for
            the task's network, not for the distiller.

    Attributes:
        model: Distiller in training.
        scale: Shape and normalisation of the task's images.
    """

    def __init__(
        self,
        site: Site,
        task: Task,
        tensors: Tensors,
        optimizer: Tensors,
        lr: float,
        weight_decay: float,
        gradient_clip: float | None = None,
        steps: int | None = None,
    ) -> None:
        self._site, self._task, self._gradient_clip = site, task, gradient_clip
        # the normalisation layers of the distiller are trained, even if norm_sync freezes those of the task's network
        budget = {"epochs": 1, "steps": steps, "norm_sync": "all"}
        self._settings = site.settings.model_copy(update=budget)
        # a separate stream makes the distiller independent of random draws of the task's network
        self._separate_stream = SeparateStream(site.rng("distil"), task.device)
        self.model: Any = task.load(tensors, DISTILLER)
        self.scale = require_scale(task)
        self._optimizer = torch.optim.AdamW(self.model.parameters(), lr, weight_decay=weight_decay)
        write_state(self._optimizer, self.model, optimizer)

    def train_pass(self, loss: Callable[[Batch], torch.Tensor], label: str) -> float:
        """Train the distiller for one pass over the site's training images, and return the mean loss.

        Args:
            loss: Function that maps a batch of normalised images to the scalar to minimise.
            label: Name of the random streams of batches and augmentation.

        Raises:
            RefusedError: If the loss is not finite.
        """
        with self._separate_stream:
            trained = train(
                self.model,
                self._site.train,
                loss,
                self._optimizer,
                self._settings,
                self._site.rng(label),
                self._task.device,
                gradient_clip=self._gradient_clip,
                augment=self._task.augment(self._site.rng(f"{label} augment")),
            )
        if trained.batches and not math.isfinite(trained.loss):
            raise RefusedError(
                "diverged_training",
                f"The training of generator and classifier diverged at site '{self._site.name}': expected a finite "
                f"loss, got {trained.loss}. Lower distil_lr, or critic_lr and adversarial if the method has a critic.",
                site=self._site.name,
                found=str(trained.loss),
            )
        return trained.loss

    def divide(self, batch: Batch) -> DividedBatch:
        """Divide the images of a batch into reconstruction and residual. Gradients flow to the generator."""
        images = self.scale.to_images(batch.images)
        reconstructed = self.model(images)
        return DividedBatch(images, batch.targets, reconstructed, images - reconstructed.images)

    def optimizer_state(self) -> Tensors:
        """Return the state of the optimiser, for the next round."""
        return read_state(self._optimizer, self.model)


def clip_and_noise(part: torch.Tensor, release: ImageRelease) -> torch.Tensor:
    """Clip residuals and add noise to them, as a site does before it shares them, for use in training.

    Gradients pass through the clip. The noise comes from the global stream and is not secret.

    Args:
        part: Residuals, (B, C, *spatial).
        release: Mechanism of sharing: norm and limit of the clip, distribution and scale of the noise.
    """
    if release.clip is not None:
        norms = torch.linalg.vector_norm(part.flatten(1), ord=1 if release.norm == "l1" else 2, dim=1)
        part = part * (release.clip / norms.clamp(min=release.clip)).view(-1, *[1] * (part.dim() - 1))
    if release.noise == "none":
        return part
    if release.noise == "gaussian":
        return part + release.scale * torch.randn_like(part)
    signs = torch.randint_like(part, 2).mul_(2).sub_(1)
    return part + release.scale * signs * torch.empty_like(part).exponential_()


def require_scale(task: Task) -> ImageScale:
    """Return the shape and normalisation of a task's images; raise if the task does not state them.

    Raises:
        SettingsError: If the task has no `scale`.
    """
    if task.scale is None:
        raise SettingsError(
            "missing_scale",
            "Generators need the shape and normalisation of the images: expected the task's `scale`, got None. Run a "
            "bundle, or set `scale` of the task to a `medfl.task.ImageScale`.",
        )
    return task.scale


@torch.no_grad()
def evaluate_distiller(
    model: Distiller, data: Dataset, scale: ImageScale, batch_size: int, device: str
) -> tuple[float, float]:
    """Evaluate a distiller without noise on images that it was not trained on. Sets the model to evaluation mode.

    Args:
        model: Distiller.
        data: Data with at least one image.
        scale: Shape and normalisation of the images.
        batch_size: Number of images in a batch.
        device: Device of the model.

    Returns:
        Accuracy of the classifier on the residuals, and the mean over images of |cos| between reconstruction and
        residual.
    """
    model.eval()
    num_correct, cosines = 0, 0.0
    for rows in torch.arange(len(data)).split(batch_size):
        images, labels = data.batch(rows)
        raw = scale.to_images(images.to(device))
        reconstructed = model(raw).images
        num_correct += int((model.classify(raw - reconstructed).argmax(1).cpu() == labels).sum())
        cosines += mean_abs_cosine(reconstructed, raw - reconstructed) * len(rows)
    return num_correct / len(data), cosines / len(data)


@torch.no_grad()
def reconstruction_errors(
    model: Distiller, data: Dataset, mean_image: torch.Tensor, scale: ImageScale, batch_size: int
) -> tuple[float, float]:
    """Return the mean squared errors of a generator and of a constant image. Sets the model to evaluation mode.

    Args:
        model: Distiller.
        data: Data with at least one image.
        mean_image: Constant image in [0, 1], (C, *spatial), on the model's device.
        scale: Shape and normalisation of the images.
        batch_size: Number of images in a batch.

    Returns:
        Mean squared errors of the reconstruction and of `mean_image` against images in [0, 1].
    """
    model.eval()
    errors = torch.zeros(2, dtype=torch.float64)
    for rows in torch.arange(len(data)).split(batch_size):
        raw = scale.to_images(data.batch(rows)[0].to(mean_image.device))
        for place, guess in enumerate((model(raw).images, mean_image)):
            errors[place] += float((guess - raw).square().flatten(1).mean(1).sum())
    reconstruction_error, mean_image_error = (errors / len(data)).tolist()
    return reconstruction_error, mean_image_error


def mean_abs_cosine(a: torch.Tensor, b: torch.Tensor) -> float:
    """Return the mean of |cos(a_i, b_i)| over flattened images. In a signed mean, images could cancel each other.

    Args:
        a: Images, (B, ...), any floating type.
        b: Images of the same shape.

    Returns:
        Number in [0, 1]; an image that is zero in `a` or `b` counts as 0. NaN without images, or if a value is not
        finite.

    Example:
        >>> mean_abs_cosine(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([[-2.0, 0.0], [0.0, 3.0]]))
        0.5
    """
    return float((_normalise_images(a) * _normalise_images(b)).sum(dim=1).abs().mean())


def _normalise_images(images: torch.Tensor) -> torch.Tensor:
    """Return flattened images of norm 1, float64. Zeros stay zeros."""
    flat = images.detach().double().flatten(1)
    norms = torch.linalg.vector_norm(flat, dim=1, keepdim=True)
    return torch.where(norms == 0, flat, flat / norms)
