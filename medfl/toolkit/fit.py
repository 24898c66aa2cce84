"""State and result of one training at a site."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import nn

from medfl.contract import Site
from medfl.toolkit.training_specs import Training
from medfl.training.loop import Batch
from medfl.types import Meta, Tensors


@dataclass
class Fit:
    """State of one training at a site in one round.

    It is the argument of a method's hooks `loss`, `before_fit`, `after_fit` and others (`LocalTraining`).

    Attributes:
        site: The site.
        model: The model that is trained, on the task's device.
        start: Trainable parameters at the start of the training, by name: detached copies on the task's device.
        extra: Values that `before_fit` passes to `loss` and `after_fit`; discarded after the training.
        log: Values for the metrics file, by key.
        meta: Metadata for the server; keys as declared in the method's `sends_meta`.
        training: Specification of this training.
        sent: Tensors of the request, as received.
        steps: Number of optimiser steps so far.
        optimizer: The optimiser; not set yet in `before_fit`.
    """

    site: Site
    model: nn.Module
    start: Tensors
    extra: dict[str, Any] = field(default_factory=dict)
    log: dict[str, float] = field(default_factory=dict)
    meta: Meta = field(default_factory=dict)
    training: Training = Training()
    sent: Tensors = field(default_factory=dict, repr=False)
    steps: int = 0
    optimizer: torch.optim.Optimizer = field(init=False, repr=False)
    _logits: tuple[Batch, bool, torch.Tensor] | None = field(default=None, init=False, repr=False)

    @cached_property
    def received(self) -> Tensors:
        """Tensors of the request on the task's device, by their names in the request."""
        return {name: tensor.to(self.site.task.device) for name, tensor in self.sent.items()}

    def parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Return the trainable parameters with their names."""
        return ((name, p) for name, p in self.model.named_parameters() if p.requires_grad)

    def logits(self, batch: Batch) -> torch.Tensor:
        """Return the model's logits of a batch.

        Further calls before the next optimiser step reuse the same forward pass.
        """
        if self._logits is None or self._logits[0] is not batch or self._logits[1] != torch.is_grad_enabled():
            self._logits = batch, torch.is_grad_enabled(), self.model(batch.images)
        return self._logits[2]

    def task_loss(self, batch: Batch) -> torch.Tensor:
        """Compute the task's loss of the model on a batch."""
        return self.site.task.loss(self.logits(batch), batch.targets)

    def count_step(self) -> None:
        """Count an optimiser step, and discard the cached logits."""
        self.steps += 1
        self._logits = None


@dataclass(frozen=True)
class FitResult:
    """Result of one training, or of all trainings of a round, at a site.

    Attributes:
        after: All tensors of the model at the end, CPU copies.
        log: Values for the metrics file by key, with the mean ``loss`` and the duration in ``seconds``.
        meta: Metadata for the server.
        optimizer: State of the optimiser for the next training; empty unless requested.
        extra: Further tensors for the server from `LocalTraining.extra_reply_tensors`, CPU copies.
    """

    after: Tensors
    log: dict[str, float]
    meta: Meta
    optimizer: Tensors = field(default_factory=dict)
    extra: Tensors = field(default_factory=dict)
