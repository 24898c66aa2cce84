"""A site's training of the generator and the classifier that divide its images, and what they are worth."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from medfl.contract import Site
from medfl.errors import RefusedError, SettingsError
from medfl.privacy.release import Release
from medfl.task import Scale, Task
from medfl.training.loop import Batch, train
from medfl.training.optimizer_state import read_state, write_state
from medfl.types import Dataset, Tensors
from medfl.utils.rng import SeparateStream
from medfl_methods.fedfed.distiller import Distiller
from medfl_methods.fedfed.generators import Reconstruction

DISTILLER = "distiller"
"""Name of generator and classifier among the networks of a task."""


@dataclass
class Divided:
    """A batch that the generator has divided.

    Attributes:
        images: In [0, 1], (B, C, *spatial).
        labels: (B,).
        rebuilt: What the generator makes of them: the private part.
        part: The rest, what is to be shared, (B, C, *spatial).
    """

    images: torch.Tensor
    labels: torch.Tensor
    rebuilt: Reconstruction
    part: torch.Tensor


class Distilling:
    """Generator and classifier at one site in one round.

    Args:
        site: Gives data, settings and streams.
        task: Has the network `DISTILLER`.
        tensors: Of that network, as received.
        optimizer: State of its optimiser after the round before; empty at first.
        lr: Learning rate of AdamW, > 0.
        weight_decay: Of AdamW, >= 0; with 0 it is Adam.
        gradient_clip: Largest L2 norm of a batch's gradient over both networks, or None.
        steps: Batches of a pass, >= 1; None for all images once. The run's `steps` are those of the task's network.

    Attributes:
        model: In training.
        scale: Of the task's images.
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
        # the distiller's norms are trained whatever is done about those of the task's own network
        budget = {"epochs": 1, "steps": steps, "norm_sync": "all"}
        self._settings = site.settings.model_copy(update=budget)
        self._aside = SeparateStream(site.rng("distil"), task.device)  # whatever the task's own network drew before
        self.model: Any = task.load(tensors, DISTILLER)
        self.scale = scale_of(task)
        self._optimizer = torch.optim.AdamW(self.model.parameters(), lr, weight_decay=weight_decay)
        write_state(self._optimizer, self.model, optimizer)

    def pass_over(self, loss: Callable[[Batch], torch.Tensor], label: str) -> float:
        """One pass over the training images; the mean loss.

        Args:
            loss: Maps a batch, as a network of the task sees it, to the scalar to minimise.
            label: Names the streams of batches and augmentation.

        Raises:
            RefusedError: If the loss is no finite number any more.
        """
        with self._aside:
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
                f"loss, got {trained.loss}. Lower distil_lr or, where there is a critic, critic_lr and adversarial.",
                site=self._site.name,
                found=str(trained.loss),
            )
        return trained.loss

    def divide(self, batch: Batch) -> Divided:
        """A batch as the generator divides it, with gradients."""
        images = self.scale.raw(batch.images)
        rebuilt = self.model(images)
        return Divided(images, batch.targets, rebuilt, images - rebuilt.images)

    def optimizer_state(self) -> Tensors:
        """For the next round."""
        return read_state(self._optimizer, self.model)


def noised(part: torch.Tensor, release: Release) -> torch.Tensor:
    """Parts as they would be sent, for a training: gradients flow through the clip, and the noise is no secret.

    Args:
        part: (B, C, *spatial).
        release: How they are clipped and noised.
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


def scale_of(task: Task) -> Scale:
    """Shape and normalisation of a task's images.

    Raises:
        SettingsError: If the task does not say.
    """
    if task.scale is None:
        raise SettingsError(
            "missing_scale",
            "Generators need shape and normalisation of the images: expected the task's `scale`, got None. Run a "
            "bundle, or give the task a `medfl.task.Scale`.",
        )
    return task.scale


@torch.no_grad()
def judge(model: Distiller, data: Dataset, scale: Scale, batch_size: int, device: str) -> tuple[float, float]:
    """What a generator and a classifier are worth on images that they were not trained on, without noise.

    Args:
        model: Put into evaluation mode.
        data: At least one image.
        scale: Of the images.
        batch_size: Images at a time.
        device: Where the model is.

    Returns:
        Accuracy of the classifier on the shared parts, and the mean over images of |cos| between private and shared
        part.
    """
    model.eval()
    right, cosines = 0, 0.0
    for rows in torch.arange(len(data)).split(batch_size):
        images, labels = data.batch(rows)
        raw = scale.raw(images.to(device))
        rebuilt = model(raw).images
        right += int((model.classify(raw - rebuilt).argmax(1).cpu() == labels).sum())
        cosines += mean_abs_cosine(rebuilt, raw - rebuilt) * len(rows)
    return right / len(data), cosines / len(data)


@torch.no_grad()
def rebuilding(
    model: Distiller, data: Dataset, usual: torch.Tensor, scale: Scale, batch_size: int
) -> tuple[float, float]:
    """How far off a generator is, and how far an image that is the same for all.

    Args:
        model: Put into evaluation mode.
        data: At least one image.
        usual: In [0, 1], (C, *spatial), on the model's device.
        scale: Of the images.
        batch_size: Images at a time.

    Returns:
        Mean squared errors of the reconstruction and of `usual` against images in [0, 1].
    """
    model.eval()
    errors = torch.zeros(2, dtype=torch.float64)
    for rows in torch.arange(len(data)).split(batch_size):
        raw = scale.raw(data.batch(rows)[0].to(usual.device))
        for place, guess in enumerate((model(raw).images, usual)):
            errors[place] += float((guess - raw).square().flatten(1).mean(1).sum())
    rebuilt, same = (errors / len(data)).tolist()
    return rebuilt, same


def mean_abs_cosine(a: torch.Tensor, b: torch.Tensor) -> float:
    """Mean of |cos(a_i, b_i)| over flattened images; of a signed mean the images could cancel each other.

    Args:
        a: (B, ...), any floating type.
        b: As `a`.

    Returns:
        In [0, 1]; an image that is zero in `a` or `b` counts as 0. NaN without images, or where one is not finite.

    Example:
        >>> mean_abs_cosine(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([[-2.0, 0.0], [0.0, 3.0]]))
        0.5
    """
    return float((_unit(a) * _unit(b)).sum(dim=1).abs().mean())


def _unit(images: torch.Tensor) -> torch.Tensor:
    """Flattened images of norm 1, float64; zeros stay zeros."""
    flat = images.detach().double().flatten(1)
    norms = torch.linalg.vector_norm(flat, dim=1, keepdim=True)
    return torch.where(norms == 0, flat, flat / norms)
