"""The trainings of one round at a site: how many, of which part, with what budget, and of which model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from torch import nn

from medfl.contract import Site
from medfl.settings import Settings
from medfl.types import Meta

Part = Literal["all", "body", "head"]
"""What is trained of a network: all of it, its attribute `head`, or all but that."""


@dataclass(frozen=True)
class Budget:
    """How long a training is; without a number as long as the run's settings say.

    Attributes:
        epochs: Passes over the training images.
        steps: Steps of the optimiser; they win over epochs, as in the settings of a run.
    """

    epochs: int | None = None
    steps: int | None = None

    @classmethod
    def of(cls, settings: Settings) -> Budget:
        """The budget of a run's round."""
        return cls(settings.epochs) if settings.steps is None else cls(steps=settings.steps)

    @property
    def total(self) -> int:
        """Steps, or else epochs."""
        return (self.epochs or 0) if self.steps is None else self.steps

    def split(self, share: float) -> tuple[Budget, Budget]:
        """A share of the budget, rounded, and the rest, which below a share of 1 is at least one epoch or step."""
        total = self.total
        part = total if share == 1 else min(int(share * total + 0.5), max(total - 1, 0))
        if self.steps is None:
            return Budget(part), Budget(total - part)
        return Budget(steps=part), Budget(steps=total - part)

    def at(self, site: Site) -> Site:
        """The site with this budget in place of the run's."""
        if self.steps is not None:
            return replace(site, settings=site.settings.model_copy(update={"steps": self.steps}))
        if self.epochs is not None:
            return replace(site, settings=site.settings.model_copy(update={"epochs": self.epochs, "steps": None}))
        return site


@dataclass(frozen=True)
class Training:
    """One training of a round.

    Attributes:
        label: Names its log keys (``label_loss``) and its random streams, so that it draws other batches than the
            round's other trainings.
        budget: How long it is.
        part: What is trained; the rest is frozen and in evaluation mode, so that its buffers stay, too.
        apart: Whether it trains a model of the site's own, which is kept under the label, begins as `Averaging.start`
            says, is never sent, and is scored as the ``personal`` one. It draws the numbers of a training that is
            alone in its round, and takes none from the others.
        frozen_norms: Whether batch norm stays as it is, as with the run's `norm_sync` ``frozen``.
        batch_size: Images in a batch, >= 1; None is the run's.
    """

    label: str = ""
    budget: Budget = Budget()
    part: Part = "all"
    apart: bool = False
    frozen_norms: bool = False
    batch_size: int | None = None

    def at(self, site: Site) -> Site:
        """The site with this training's budget and batches, and with batch norm frozen if it says so."""
        site, changes = self.budget.at(site), Meta()
        if self.frozen_norms:
            changes["norm_sync"] = "frozen"
        if self.batch_size is not None:
            changes["batch_size"] = self.batch_size
        return replace(site, settings=site.settings.model_copy(update=changes)) if changes else site

    @property
    def streams(self) -> str:
        """What its random streams are named by."""
        return "" if self.apart else self.label

    @property
    def place(self) -> str:
        """The prefix under which the model of a training apart is kept."""
        return f"{self.label}/"

    def log(self, numbers: dict[str, float]) -> dict[str, float]:
        """Numbers for the metrics file under their keys."""
        return {f"{self.label}_{name}" if self.label else name: value for name, value in numbers.items()}


def freeze_rest(model: nn.Module, part: Part) -> list[nn.Module]:
    """Freeze the parameters of all modules that a training of one part leaves alone, and return these."""
    if part == "all":
        return []
    head = set(model.head.modules())  # type: ignore[union-attr]
    rest = [module for module in model.modules() if (module in head) != (part == "head")]
    for parameter in (parameter for module in rest for parameter in module.parameters(recurse=False)):
        parameter.requires_grad_(False)
    return rest
