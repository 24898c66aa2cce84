"""Specification of the trainings that a site runs in one round."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from torch import nn

from medfl.contract import Site
from medfl.settings import Settings
from medfl.types import Meta

TrainedPart = Literal["all", "body", "head"]
"""Trained part of a network: ``all``, ``head`` (the attribute `head`), or ``body`` (all other modules)."""


@dataclass(frozen=True)
class TrainingBudget:
    """Length of a training in epochs or steps. If both are None, the run's settings apply.

    Attributes:
        epochs: Number of passes over the training images.
        steps: Number of optimiser steps; takes precedence over `epochs`, as in the settings of a run.
    """

    epochs: int | None = None
    steps: int | None = None

    @classmethod
    def of(cls, settings: Settings) -> TrainingBudget:
        """Return the budget of one round in the run's settings."""
        return cls(settings.epochs) if settings.steps is None else cls(steps=settings.steps)

    @property
    def total(self) -> int:
        """Number of steps, or of epochs if `steps` is None."""
        return (self.epochs or 0) if self.steps is None else self.steps

    def split(self, share: float) -> tuple[TrainingBudget, TrainingBudget]:
        """Split the budget into a share in [0, 1] of its epochs or steps, rounded, and the rest.

        If the share is below 1, the rest is at least one epoch or step.
        """
        total = self.total
        part = total if share == 1 else min(int(share * total + 0.5), max(total - 1, 0))
        if self.steps is None:
            return TrainingBudget(part), TrainingBudget(total - part)
        return TrainingBudget(steps=part), TrainingBudget(steps=total - part)

    def at(self, site: Site) -> Site:
        """Return a copy of the site whose settings have this budget."""
        if self.steps is not None:
            return replace(site, settings=site.settings.model_copy(update={"steps": self.steps}))
        if self.epochs is not None:
            return replace(site, settings=site.settings.model_copy(update={"epochs": self.epochs, "steps": None}))
        return site


@dataclass(frozen=True)
class Training:
    """Specification of one training of a round.

    Attributes:
        label: Name of the training. It is the prefix of the log's keys, for example ``own_loss`` for the label ``own``,
            and determines the random streams: trainings with different labels draw different batches.
        budget: Length of the training.
        part: Trained part of the network. The other part is frozen and in evaluation mode, so its buffers don't change.
        apart: Whether the training trains a separate personal model. The site stores this model under the label, starts
            it from `LocalTraining.start`, never sends it, and reports it as ``personal``. Its random numbers are the
            same as if it were the round's only training, and it takes none from the other trainings.
        frozen_norms: Whether batch-norm layers are frozen, as with the run's `norm_sync` ``frozen``.
        batch_size: Number of images in a batch, >= 1; None uses the run's setting.
    """

    label: str = ""
    budget: TrainingBudget = TrainingBudget()
    part: TrainedPart = "all"
    apart: bool = False
    frozen_norms: bool = False
    batch_size: int | None = None

    def at(self, site: Site) -> Site:
        """Return a copy of the site whose settings have this training's budget, batch size and frozen batch norm."""
        site, changes = self.budget.at(site), Meta()
        if self.frozen_norms:
            changes["norm_sync"] = "frozen"
        if self.batch_size is not None:
            changes["batch_size"] = self.batch_size
        return replace(site, settings=site.settings.model_copy(update=changes)) if changes else site

    @property
    def streams(self) -> str:
        """Label of the training's random streams: empty for a separate personal training, otherwise `label`."""
        return "" if self.apart else self.label

    @property
    def place(self) -> str:
        """Prefix of the separate personal model in the site's auxiliary state."""
        return f"{self.label}/"

    def log(self, numbers: dict[str, float]) -> dict[str, float]:
        """Return the values with this training's label as prefix of their keys."""
        return {f"{self.label}_{name}" if self.label else name: value for name, value in numbers.items()}


def freeze_other_part(model: nn.Module, part: TrainedPart) -> list[nn.Module]:
    """Freeze the parameters outside the trained part in place, and return the modules that contain them."""
    if part == "all":
        return []
    head = set(model.head.modules())  # type: ignore[union-attr]
    rest = [module for module in model.modules() if (module in head) != (part == "head")]
    for parameter in (parameter for module in rest for parameter in module.parameters(recurse=False)):
        parameter.requires_grad_(False)
    return rest
