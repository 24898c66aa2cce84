"""Fixed teacher model for knowledge distillation at a site with n training images; B images are in a batch."""

from __future__ import annotations

import copy

import torch
from torch import nn

from medfl.contract import Site
from medfl.training.loop import Batch
from medfl.training.predict import evaluation_batch, logits


class Teacher:
    """Fixed teacher model: its logits for a site's training images, without gradients, in evaluation mode.

    Without augmentation, the logits of all images are computed once. With augmentation, the teacher keeps a copy of the
    model and computes the logits of each augmented batch.

    Args:
        model: The teacher on the task's device; the caller may train it afterwards.
        site: The site with its data and task.

    Attributes:
        logits: Logits of all training images without augmentation, shape (n, num_classes), on the CPU.
    """

    def __init__(self, model: nn.Module, site: Site) -> None:
        task = site.task
        self.logits = logits(model, site.train, site.settings, task.device, evaluation_batch(task.objective))
        self._model = copy.deepcopy(model).eval() if site.task.augmentation is not None else None

    def __call__(self, batch: Batch) -> torch.Tensor:
        """Return the teacher's logits (B, num_classes) of a batch, on the batch's device."""
        if self._model is None:
            return self.logits[batch.rows].to(batch.images.device)
        with torch.no_grad():
            changed: torch.Tensor = self._model(batch.images).float()
        return changed
