"""One site's training in one round: what a method may look at while it runs, and what came out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from medfl.contract import Site
from medfl.training.loop import Batch
from medfl.types import Meta, Tensors


@dataclass
class Fit:
    """One site's training in one round: what `loss`, `before_fit` and `after_fit` may look at.

    Attributes:
        site: The site's side of the contract.
        model: The model in training, on the task's device.
        start: Its trainable parameters when the training began, by name, on the same device, detached copies.
        extra: Whatever `before_fit` wants to hand on to `loss` and `after_fit`. It ends with the training.
        log: Numbers for the metrics file.
        tells: Facts for the server; keys as the method's `tells` declares.
    """

    site: Site
    model: nn.Module
    start: Tensors
    extra: dict[str, Any] = field(default_factory=dict)
    log: dict[str, float] = field(default_factory=dict)
    tells: Meta = field(default_factory=dict)

    def ce(self, batch: Batch) -> torch.Tensor:
        """The task's own loss of the model on a batch, from logits."""
        return self.site.task.loss(self.model(batch.images), batch.labels)


@dataclass(frozen=True)
class Fitted:
    """What a site's training made.

    Attributes:
        before: All tensors of the model when the training began, CPU copies.
        after: The same when it was over.
        log: Numbers for the metrics file, among them the mean ``loss`` and the ``seconds`` of the training.
        tells: Facts for the server.
        optimizer: What the optimiser remembers, for the next training; empty unless that was asked for.
    """

    before: Tensors
    after: Tensors
    log: dict[str, float]
    tells: Meta
    optimizer: Tensors = field(default_factory=dict)
