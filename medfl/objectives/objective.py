"""Base class of objectives: everything that depends on the kind of a task, and nothing else."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import nn

from medfl.errors import ContractError, SettingsError, did_you_mean
from medfl.objectives.balance import weighted_loss
from medfl.objectives.outputs import ConstantAnswer, constant_numbers
from medfl.types import Meta

GROUP = "group"
"""The column of `Shown.groups` in a file of predictions."""


THRESHOLD = 0.5
"""Probability from which a finding counts as present."""


def as_cell(value: float) -> str:
    """Return a number as text with nine significant digits."""
    return f"{value:.9g}"


class Shown(ABC):
    """How the cases of an objective stand in a file of predictions, and what a report makes of them."""

    name: ClassVar[str]
    """Of the objective."""

    headline: ClassVar[tuple[str, ...]]
    """Metrics that a report sets side by side, after the first one of the task, where a run has them."""

    pipeline: ClassVar[str] = "other"
    """End of the pipeline tag of Hugging Face for such models, for example ``classification``."""

    figures: ClassVar[tuple[str, ...]] = ()
    """What a report draws from predictions: sections look for their own word."""

    has_groups: ClassVar[bool] = False
    """Whether cases are shown in groups, by what their model says of other cases (`groups`)."""

    @abstractmethod
    def columns(self, metrics: Sequence[str]) -> tuple[str, ...]:
        """The names of the K columns of `Objective.judged`, for tables."""

    def prediction_columns(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return the headings of `prediction_cells`; by default one per output, and the unit.

        Args:
            names: Names of the outputs; of another number than there are outputs, the names of `columns` are used.
        """
        columns = self.columns(())
        return (*(names if len(names) == len(columns) else columns), "unit")

    def prediction_cells(self, predictions: torch.Tensor, names: Sequence[str]) -> list[str]:
        """Return the cells of one case in the file that a bundle's inference writes.

        Args:
            predictions: Predicted numbers of the case, (K,), from `Objective.predictions`.
            names: As in `prediction_columns`.
        """
        return [*map(as_cell, predictions.tolist()), self.unit]

    @property
    def unit(self) -> str:
        """Unit of the predicted numbers."""
        return "that of the training targets"

    @property
    def target_columns(self) -> tuple[str, ...]:
        """The names of a target's numbers in tables; none for masks."""
        return ("label",)

    @property
    def kept_columns(self) -> tuple[str, ...]:
        """The names of the columns of `Objective.kept` in tables; by default those of targets."""
        return self.target_columns

    def gave_numbers(self, judged: torch.Tensor) -> bool:
        """Whether a model gave a number for every case, as it does unless its training diverged.

        Args:
            judged: (N, K), from `Objective.judged`.
        """
        return not bool(torch.isnan(judged).any())

    def groups(self, judged: torch.Tensor, others: torch.Tensor) -> tuple[str, ...]:
        """The group of each case.

        Args:
            judged: (N, K), from `Objective.judged`.
            others: (M, K), the same of other cases under the same model, M >= 1.

        Raises:
            ContractError: If there are no groups (`has_groups`).
        """
        raise ContractError(
            "objective_not_supported",
            f"Expected an objective with groups, got '{self.name}'.",
            objective=self.name,
            expected="groups",
        )

    def masks(self, outputs: torch.Tensor) -> torch.Tensor:
        """What outputs take each voxel for: (N, L, *spatial), bool.

        Raises:
            ContractError: If cases have no masks.
        """
        raise ContractError(
            "objective_not_supported",
            f"Expected an objective with masks, got '{self.name}'.",
            objective=self.name,
            expected="masks",
        )

    def references(self, targets: torch.Tensor) -> torch.Tensor:
        """Targets as masks: (N, L, *spatial), bool.

        Raises:
            ContractError: If cases have no masks.
        """
        raise ContractError(
            "objective_not_supported",
            f"Expected an objective with masks, got '{self.name}'.",
            objective=self.name,
            expected="masks",
        )


@dataclass(frozen=True)
class Objective(Shown):
    """What is learned: what a target is, what a network puts out for it, and how the two are compared.

    N is a number of cases: images, volumes, or rows of a table.
    """

    name: ClassVar[str]
    """Name of its `medfl.hooks.ObjectiveRecord`."""

    metrics: ClassVar[tuple[str, ...]]
    """The metrics of a task that names none; the first one is the key metric."""

    target_type: ClassVar[torch.dtype]
    """Of a batch of targets."""

    has_class_labels: ClassVar[bool] = False
    """Whether each case is of one class (`class_labels`)."""

    has_soft_targets: ClassVar[bool] = False
    """Whether outputs are probabilities of alternatives (`alternatives`), which a model can learn from another."""

    in_space: ClassVar[bool] = False
    """Whether a target lies in the space of its image: both are turned and moved together, and those of two cases may
    be of unlike shapes."""

    per_case_loss: ClassVar[bool] = True
    """Whether the loss of a batch is a mean of losses of its cases, so that a case has a gradient of its own."""

    smallest_batch: ClassVar[int] = 1
    """Cases that a batch needs to teach anything."""

    outputs_field: ClassVar[str | None] = None
    """Name of the field that holds the number of a network's output channels; None if no field does."""

    @classmethod
    def example(cls) -> Self:
        """Return an objective of this kind with as few outputs as possible, to ask it for its metrics."""
        return cls()

    # ---- what a task of this kind is

    @property
    @abstractmethod
    def outputs(self) -> int:
        """Channels that a network puts out, >= 1."""

    @abstractmethod
    def target_shape(self, image: Sequence[int]) -> tuple[int, ...]:
        """The shape of one case's target.

        Args:
            image: The shape of the case as networks get it, (C, *spatial).
        """

    def output_shape(self, image: Sequence[int]) -> tuple[int, ...]:
        """The shape of what a network puts out for one case of the shape `image`."""
        return (self.outputs,)

    @property
    @abstractmethod
    def scores(self) -> Mapping[str, Any]:
        """Name of a metric to its weighted form: of `judged`, `kept`, and weights (N, B) of cases, to (B,)."""

    @property
    def classes(self) -> int:
        """How many classes there are, where each case is of one.

        Raises:
            ContractError: If a case is of no class.
        """
        raise ContractError(
            "objective_not_supported",
            f"Expected an objective with class labels, got '{self.name}': its cases have no classes.",
            objective=self.name,
            expected="class_labels",
        )

    @property
    def titles(self) -> tuple[str, ...]:
        """What the cases are counted by where nobody named it: the numbers of the classes, or "cases"."""
        return ("cases",)

    @property
    def facts(self) -> Meta:
        """The objective as JSON, for `medfl.objectives.read_objective`."""
        fields = dataclasses.asdict(self).items()
        return {"name": self.name} | {key: list(value) if isinstance(value, tuple) else value for key, value in fields}

    @property
    def identity(self) -> Meta:
        """What a run's identity has of it."""
        return {"objective": self.facts}

    # ---- targets

    @abstractmethod
    def check_targets(self, targets: torch.Tensor, where: str, start: int = 0) -> None:
        """Refuse targets that can't be.

        Args:
            targets: (N, *`target_shape`).
            where: Whose they are, for the message.
            start: The row of the first of them.

        Raises:
            DataError: Naming the first row that is wrong, and its value.
        """

    @abstractmethod
    def strata(self, targets: torch.Tensor) -> torch.Tensor:
        """What partitions, folds and tests keep in proportion: a number >= 0 for each case, (N,), int64."""

    @property
    def stratum_names(self) -> tuple[str, ...]:
        """What the strata are called, from 0."""
        return self.titles

    def label_sets(self, targets: torch.Tensor) -> torch.Tensor | None:
        """Which of several labels to keep in proportion each case has, (N, C), bool; None if `strata` say all."""
        return None

    def class_labels(self, targets: torch.Tensor) -> torch.Tensor | None:
        """The class of each case, (N,), int64; None where cases are of no class."""
        return None

    def counts(self, targets: torch.Tensor) -> list[int]:
        """How many cases a split has, by `titles`."""
        return [len(targets)]

    def teaches(self, targets: torch.Tensor) -> bool:
        """Whether these targets can train a model at all."""
        return len(targets) > 0

    # ---- outputs

    def check_outputs(self, outputs: torch.Tensor, targets: torch.Tensor) -> None:
        """Refuse outputs of another shape than the targets ask for.

        Args:
            outputs: Of a network, (N, `outputs`), or (N, `outputs`, *spatial) for targets in space.
            targets: (N, *`target_shape`).

        Raises:
            ContractError: If they have another shape.
        """
        expected = (len(targets), self.outputs)
        if tuple(outputs.shape) != expected:
            raise ContractError(
                "wrong_shape",
                f"Expected outputs of shape {expected} for the objective '{self.name}', got {tuple(outputs.shape)}. "
                "Give the network as many outputs as that.",
                objective=self.name,
                expected=expected,
                found=tuple(outputs.shape),
            )

    @abstractmethod
    def default_loss(self) -> nn.Module:
        """The loss of a task that names none: maps outputs and targets to a scalar."""

    @abstractmethod
    def predictions(self, outputs: torch.Tensor) -> torch.Tensor:
        """What outputs say, in the form that scores take: probabilities, values, or a risk."""

    def judged(
        self, outputs: torch.Tensor, targets: torch.Tensor, metrics: Sequence[str], spacing: torch.Tensor | None = None
    ) -> torch.Tensor:
        """What a score needs to know of each case beside its target, (N, K); by default the `predictions`.

        Args:
            outputs: As in `check_outputs`.
            targets: The targets.
            metrics: What will be scored.
            spacing: Of each case in millimetres along each axis, (N, axes), float64, NaN where it is not known; None
                where it is known of none.
        """
        return self.predictions(outputs)

    def kept(self, targets: torch.Tensor) -> torch.Tensor:
        """What scores and tables need of targets beside `judged`, (N, ...); by default all of them."""
        return targets

    # ---- scores

    def score(self, metric: str, judged: torch.Tensor, targets: torch.Tensor) -> float:
        """A metric in which each case counts once; NaN where it is not defined.

        Args:
            metric: One of `scores`.
            judged: (N, K), from `judged`.
            targets: (N, ...), from `kept`.
        """
        once = torch.ones(len(targets), 1, dtype=torch.float64, device=targets.device)
        return float(self.weighted_score(metric, judged, targets, once)[0])

    def weighted_score(
        self, metric: str, judged: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        """A metric for each of B weightings of the cases, as resampling needs it.

        Args:
            metric: One of `scores`.
            judged: (N, K), from `judged`.
            targets: (N, ...), from `kept`.
            weights: (N, B), float64, >= 0.

        Returns:
            (B,), float64; NaN where it is not defined: without cases, with a NaN, and as the metric says.
        """
        if not len(targets) or bool(torch.isnan(judged).any()):
            return torch.full((weights.shape[1],), math.nan, dtype=torch.float64)
        return self.scores[metric](judged, targets, weights)

    def constant_answer(
        self, judged: torch.Tensor, targets: torch.Tensor, names: Sequence[str] = ()
    ) -> ConstantAnswer | None:
        """Return what the model predicts for every case, if that is the same for all and the targets are not.

        Args:
            judged: What the model predicts, (N, K), from `judged`.
            targets: The targets, (N, ...), from `kept`.
            names: Names of the classes; empty uses their numbers.

        Returns:
            The answer; None if predictions differ, if no target contradicts them, or if the model gave no numbers.
        """
        return constant_numbers(judged, targets) if self.gave_numbers(judged) else None

    def check_metrics(self, names: Sequence[str]) -> None:
        """Refuse a metric that this objective does not have.

        Raises:
            SettingsError: Naming the nearest known one.
        """
        for name in names:
            if name not in self.scores:
                raise SettingsError(
                    "unknown_choice",
                    f"Unknown metric '{name}'. {did_you_mean(name, self.scores)}",
                    what="metric",
                    choice=name,
                )

    # ---- what methods ask

    def alternatives(self, outputs: torch.Tensor) -> torch.Tensor:
        """Logits of the alternatives that the outputs choose among, which stand on axis 1.

        For classes that is (N, C); for a yes or no, (N, 2); for voxels, (N, C, *spatial). Their softmax over axis 1 is
        what the model says.

        Raises:
            ContractError: If there are no alternatives (`has_soft_targets`).
        """
        raise ContractError(
            "objective_not_supported",
            f"Expected an objective with soft targets, got '{self.name}'.",
            objective=self.name,
            expected="soft_targets",
        )

    def soft_targets(self, outputs: torch.Tensor, temperature: float) -> torch.Tensor | None:
        """The probabilities of the `alternatives`, softened by a temperature > 0; None where there are none."""
        return (self.alternatives(outputs) / temperature).softmax(dim=1) if self.has_soft_targets else None

    def truth(self, targets: torch.Tensor) -> torch.Tensor:
        """Which of the `alternatives` is the right one: their shape without axis 1, int64, and -1 where nobody knows.

        Raises:
            ContractError: If there are no alternatives.
        """
        raise ContractError(
            "objective_not_supported",
            f"Expected an objective with soft targets, got '{self.name}'.",
            objective=self.name,
            expected="soft_targets",
        )

    def cross_entropy(self, outputs: torch.Tensor, targets: torch.Tensor, per_case: bool = False) -> torch.Tensor:
        """The cross entropy of the `alternatives`, as a mean over all; or for each case, (N,).

        Raises:
            ContractError: If there are no alternatives.
        """
        logits, truth = self.alternatives(outputs), self.truth(targets)
        if not per_case:
            return nn.functional.cross_entropy(logits, truth, ignore_index=-1)
        losses = nn.functional.cross_entropy(logits, truth, ignore_index=-1, reduction="none")
        return losses if losses.dim() == 1 else losses.flatten(1).sum(1) / (truth.flatten(1) >= 0).sum(1).clamp(min=1)

    def agreement(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """How far the outputs are right for each case, (N,), float64, in [0, 1].

        Raises:
            ContractError: If there are no alternatives.
        """
        logits, truth = self.alternatives(outputs), self.truth(targets)
        right = (logits.argmax(dim=1) == truth).double()
        return right if right.dim() == 1 else right.flatten(1).sum(1) / (truth.flatten(1) >= 0).sum(1).clamp(min=1)

    def together(self, outputs: torch.Tensor) -> torch.Tensor:
        """Outputs (N, ...) that say what several networks say on average, of theirs, (M, N, ...).

        By default their mean; where outputs are logits their softmax or sigmoid is the mean of the members'.
        """
        return outputs.mean(dim=0)

    # ---- balance

    def balanced_loss(self, loss: nn.Module, targets: torch.Tensor, device: str) -> nn.Module:
        """A copy of a loss with the weights of a site's classes in it (the setting ``balance = loss``).

        Args:
            loss: Of the task.
            targets: Of all the site's training cases.
            device: Where the loss is computed.

        Raises:
            SettingsError: If cases have no classes, or the loss takes no weights or has some already.
        """
        labels = self.class_labels(targets)
        if labels is None:
            raise SettingsError(
                "missing_classes",
                f"balance 'loss' weighs classes, and the objective '{self.name}' has none. Leave balance out.",
                setting="balance",
                objective=self.name,
            )
        return weighted_loss(loss, labels, self.classes, device)
