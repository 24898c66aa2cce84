"""One site's training in one round: what a method may look at while it runs, and what came out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import nn

from medfl.contract import Site
from medfl.toolkit.trainings import Training
from medfl.training.loop import Batch
from medfl.types import Meta, Tensors


@dataclass
class Fit:
    """One site's training in one round: what `loss`, `before_fit`, `after_fit` and `extra_up` may look at.

    Attributes:
        site: The site's side of the contract.
        model: The model in training, on the task's device.
        start: Its trainable parameters when the training began, by name, on the same device, detached copies.
        extra: Whatever `before_fit` wants to hand on to `loss` and `after_fit`. It ends with the training.
        log: Numbers for the metrics file.
        meta: Facts for the server; keys as the method's `sends_meta` declares.
        training: Which of the round's trainings this is.
        sent: The order's tensors, as they came.
        steps: Steps of the optimiser so far.
        optimizer: What takes the steps; there is none yet in `before_fit`.
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
        """The order's tensors on the task's device, under the names that they were sent with."""
        return {name: tensor.to(self.site.task.device) for name, tensor in self.sent.items()}

    def parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """What is trained, by name."""
        return ((name, p) for name, p in self.model.named_parameters() if p.requires_grad)

    def logits(self, batch: Batch) -> torch.Tensor:
        """Of the model on a batch: one forward pass, however often it is called before the optimiser's next step."""
        if self._logits is None or self._logits[0] is not batch or self._logits[1] != torch.is_grad_enabled():
            self._logits = batch, torch.is_grad_enabled(), self.model(batch.images)
        return self._logits[2]

    def ce(self, batch: Batch) -> torch.Tensor:
        """The task's own loss of the model on a batch, from logits."""
        return self.site.task.loss(self.logits(batch), batch.targets)

    def count_step(self) -> None:
        """The optimiser has taken a step: what the model said before no longer holds."""
        self.steps += 1
        self._logits = None


@dataclass(frozen=True)
class FitResult:
    """What a site's training made.

    Attributes:
        before: All tensors of the model when the training began, CPU copies.
        after: The same when it was over.
        log: Numbers for the metrics file, among them the mean ``loss`` and the ``seconds`` of the training.
        meta: Facts for the server.
        optimizer: What the optimiser remembers, for the next training; empty unless that was asked for.
        extra: What goes to the server beside the model (`Averaging.extra_up`), CPU copies.
    """

    before: Tensors
    after: Tensors
    log: dict[str, float]
    meta: Meta
    optimizer: Tensors = field(default_factory=dict)
    extra: Tensors = field(default_factory=dict)
