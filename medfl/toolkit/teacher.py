"""A model that teaches another one during a site's training, and stays as it is."""

from __future__ import annotations

import copy

import torch
from torch import nn

from medfl.contract import Site
from medfl.training.loop import Batch
from medfl.training.predict import evaluation_batch, logits


class Teacher:
    """What a model says of a site's training images, without a gradient and in evaluation mode (rule G-8).

    It is asked once about all images as they are. Where the task changes training images at random, a copy of the model
    is kept and asked about each batch as the student sees it.

    Args:
        model: On the task's device; it may be trained afterwards.
        site: Gives data and task.

    Attributes:
        logits: Of all training images as they are, shape (n, num_classes), on the CPU.
    """

    def __init__(self, model: nn.Module, site: Site) -> None:
        task = site.task
        self.logits = logits(model, site.train, site.settings, task.device, evaluation_batch(task.objective))
        self._model = copy.deepcopy(model).eval() if site.task.augmentation is not None else None

    def __call__(self, batch: Batch) -> torch.Tensor:
        """Logits (B, num_classes) of a batch, on its device."""
        if self._model is None:
            return self.logits[batch.rows].to(batch.images.device)
        with torch.no_grad():
            changed: torch.Tensor = self._model(batch.images).float()
        return changed
