"""Base class of objectives, which contains all behaviour that depends on the kind of a task.

N is a number of cases and K the number of values that a metric needs of each case (`Objective.scoring_inputs`). The
alternatives of a case are the answers that a model chooses among, such as classes. A stratum is a group of similar
cases, such as a class, that partitions and folds keep in proportion.
"""

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

GROUP_COLUMN = "group"
"""Column name of `ObjectivePresentation.groups` in a prediction file."""


PROBABILITY_THRESHOLD = 0.5
"""Probability at and above which a finding counts as present."""


def format_value(value: float) -> str:
    """Format a number with nine significant digits."""
    return f"{value:.9g}"


class ObjectivePresentation(ABC):
    """Presentation of an objective's cases in prediction files and reports."""

    name: ClassVar[str]
    """Name of the objective."""

    headline: ClassVar[tuple[str, ...]]
    """Metrics that a report shows side by side after the task's first one, if a run has them."""

    pipeline: ClassVar[str] = "other"
    """Suffix of Hugging Face's pipeline tag for such models, for example ``classification``."""

    figures: ClassVar[tuple[str, ...]] = ()
    """Keywords of the figures that a report draws from predictions; each section looks for its own keyword."""

    has_groups: ClassVar[bool] = False
    """True if cases are grouped by a comparison with the model's predictions for other cases (`groups`)."""

    @abstractmethod
    def columns(self, metrics: Sequence[str]) -> tuple[str, ...]:
        """Return the column names, in prediction files, of the K values of `Objective.scoring_inputs`."""

    def prediction_columns(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return the headings of `prediction_cells`; by default one per output, and the unit.

        Args:
            names: Names of the outputs. If their number differs from the number of outputs, the names of `columns` are
                used.
        """
        columns = self.columns(())
        return (*(names if len(names) == len(columns) else columns), "unit")

    def prediction_cells(self, predictions: torch.Tensor, names: Sequence[str]) -> list[str]:
        """Return one case's cells in the file that a bundle's inference writes.

        Args:
            predictions: Predictions of the case, (K,), from `Objective.predictions`.
            names: Names of the outputs; if their number differs from the number of outputs, numbers are used.
        """
        return [*map(format_value, predictions.tolist()), self.unit]

    @property
    def unit(self) -> str:
        """Unit of the predicted numbers."""
        return "that of the training targets"

    @property
    def target_columns(self) -> tuple[str, ...]:
        """Column names of a target's numbers in tables; none for masks."""
        return ("label",)

    @property
    def scoring_target_columns(self) -> tuple[str, ...]:
        """Column names of `Objective.scoring_targets` in tables; by default the column names of targets."""
        return self.target_columns

    def is_without_nan(self, predictions: torch.Tensor) -> bool:
        """Return True if every case has a prediction without NaN, as is the case unless the training diverged.

        Args:
            predictions: Values (N, K) from `Objective.scoring_inputs`.
        """
        return not bool(torch.isnan(predictions).any())

    def groups(self, predictions: torch.Tensor, others: torch.Tensor) -> tuple[str, ...]:
        """Return the group of each case.

        Args:
            predictions: Values (N, K) from `Objective.scoring_inputs`.
            others: Values (M, K) of other cases under the same model, M >= 1.

        Raises:
            ContractError: If the objective has no groups (`has_groups`).
        """
        raise ContractError(
            "objective_not_supported",
            f"Expected an objective with groups, got '{self.name}'.",
            objective=self.name,
            expected="groups",
        )

    def masks(self, outputs: torch.Tensor) -> torch.Tensor:
        """Convert outputs to predicted masks of L classes or labels, (N, L, *spatial), bool.

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
        """Convert targets to reference masks of L classes or labels, (N, L, *spatial), bool.

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
class Objective(ObjectivePresentation):
    """Kind of a learning task: the form of its targets and outputs, and the metrics that compare them.

    N is a number of cases: images, volumes, or table rows.
    """

    name: ClassVar[str]
    """Name of the objective in data lists and bundles, equal to the name of its `medfl.hooks.ObjectiveRecord`."""

    metrics: ClassVar[tuple[str, ...]]
    """Default metrics of a task; the first one is the key metric."""

    target_type: ClassVar[torch.dtype]
    """Dtype of a batch of targets."""

    has_class_labels: ClassVar[bool] = False
    """True if each case has one class (`class_labels`)."""

    has_soft_targets: ClassVar[bool] = False
    """True if outputs are probabilities of alternatives (`alternatives`), so that models can be distilled."""

    has_spatial_targets: ClassVar[bool] = False
    """True if a target is spatially aligned with its image, so that both are transformed together. Cases may differ in
    shape."""

    per_case_loss: ClassVar[bool] = True
    """True if the loss of a batch is a mean of per-case losses, so that each case has its own gradient."""

    smallest_batch: ClassVar[int] = 1
    """Minimum number of cases in a batch for a useful gradient."""

    outputs_field: ClassVar[str | None] = None
    """Name of the field with the number of a network's output channels; None if there is no such field."""

    @classmethod
    def example(cls) -> Self:
        """Return an objective of this kind with as few outputs as possible, to query its metrics."""
        return cls()

    # ---- form of a task

    @property
    @abstractmethod
    def outputs(self) -> int:
        """Number of output channels of a network, >= 1."""

    @abstractmethod
    def target_shape(self, image: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of one case's target.

        Args:
            image: Shape of the case as network input, (C, *spatial).
        """

    def output_shape(self, image: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of a network's outputs for one case of the shape `image`."""
        return (self.outputs,)

    @property
    @abstractmethod
    def scores(self) -> Mapping[str, Any]:
        """Metrics by name.

        Each is a function of `scoring_inputs`, `scoring_targets` and case weights (N, B), for B weightings of the N
        cases. It returns one score per weighting, (B,).
        """

    @property
    def classes(self) -> int:
        """Number of classes, if each case has one.

        Raises:
            ContractError: If cases have no classes.
        """
        raise ContractError(
            "objective_not_supported",
            f"Expected an objective with class labels, got '{self.name}': its cases have no classes.",
            objective=self.name,
            expected="class_labels",
        )

    @property
    def titles(self) -> tuple[str, ...]:
        """Default headings of the numbers that `counts` returns: the numbers of the classes, or "cases"."""
        return ("cases",)

    @property
    def facts(self) -> Meta:
        """JSON description of the objective, for `medfl.objectives.read_objective`: its ``name`` and fields."""
        fields = dataclasses.asdict(self).items()
        return {"name": self.name} | {key: list(value) if isinstance(value, tuple) else value for key, value in fields}

    @property
    def identity(self) -> Meta:
        """Description of the objective in a run's identity."""
        return {"objective": self.facts}

    # ---- targets

    @abstractmethod
    def check_targets(self, targets: torch.Tensor, where: str, start: int = 0) -> None:
        """Raise if a target is invalid.

        Args:
            targets: Targets (N, *`target_shape`).
            where: Owner of the targets, for the message.
            start: Row number of the first target.

        Raises:
            DataError: If a target is invalid; the message has the first invalid row and its value.
        """

    @abstractmethod
    def strata(self, targets: torch.Tensor) -> torch.Tensor:
        """Return each case's stratum, a number >= 0, (N,), int64.

        Partitions, folds and tests keep strata in proportion.
        """

    @property
    def stratum_names(self) -> tuple[str, ...]:
        """Names of the strata, from 0."""
        return self.titles

    def label_sets(self, targets: torch.Tensor) -> torch.Tensor | None:
        """Return which labels each case has, (N, C), bool, for multi-label stratification; None if `strata` suffice."""
        return None

    def class_labels(self, targets: torch.Tensor) -> torch.Tensor | None:
        """Return the class of each case, (N,), int64; None if cases have no class."""
        return None

    def counts(self, targets: torch.Tensor) -> list[int]:
        """Return the number of cases of a split for each of `titles`."""
        return [len(targets)]

    def can_train_on(self, targets: torch.Tensor) -> bool:
        """Return True if a model can be trained on these targets."""
        return len(targets) > 0

    # ---- outputs

    def check_outputs(self, outputs: torch.Tensor, targets: torch.Tensor) -> None:
        """Raise if outputs don't have the expected shape.

        Args:
            outputs: Outputs of a network, (N, `outputs`), or (N, `outputs`, *spatial) for spatial targets.
            targets: Targets (N, *`target_shape`).

        Raises:
            ContractError: If the outputs have another shape.
        """
        expected = (len(targets), self.outputs)
        if tuple(outputs.shape) != expected:
            raise ContractError(
                "wrong_shape",
                f"Expected outputs of shape {expected} for the objective '{self.name}', got {tuple(outputs.shape)}. "
                "Set the network's number of outputs accordingly.",
                objective=self.name,
                expected=expected,
                found=tuple(outputs.shape),
            )

    @abstractmethod
    def default_loss(self) -> nn.Module:
        """Return the default loss of a task, a module that maps outputs and targets to a scalar."""

    @abstractmethod
    def predictions(self, outputs: torch.Tensor) -> torch.Tensor:
        """Convert outputs to predictions as metrics expect them: probabilities, values, or a risk."""

    def scoring_inputs(
        self, outputs: torch.Tensor, targets: torch.Tensor, metrics: Sequence[str], spacing: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return the values per case, (N, K), that metrics need besides the targets; by default the `predictions`.

        Args:
            outputs: Outputs of a network, (N, `outputs`), or (N, `outputs`, *spatial) for spatial targets.
            targets: Targets of the cases.
            metrics: Names of the metrics to compute.
            spacing: Voxel spacing of each case in millimetres along each axis, (N, axes), float64, NaN if unknown; None
                if unknown for all cases.
        """
        return self.predictions(outputs)

    def scoring_targets(self, targets: torch.Tensor) -> torch.Tensor:
        """Return the values of the targets, (N, ...), that metrics and tables need; by default the targets."""
        return targets

    # ---- scores

    def score(self, metric: str, predictions: torch.Tensor, targets: torch.Tensor) -> float:
        """Compute a metric with equal weights of all cases; NaN if it is undefined.

        Args:
            metric: Name of one of `scores`.
            predictions: Values (N, K) from `scoring_inputs`.
            targets: Values (N, ...) from `scoring_targets`.
        """
        once = torch.ones(len(targets), 1, dtype=torch.float64, device=targets.device)
        return float(self.weighted_score(metric, predictions, targets, once)[0])

    def weighted_score(
        self, metric: str, predictions: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        """Compute a metric for each of B weightings of the cases, as resampling needs it.

        Args:
            metric: Name of one of `scores`.
            predictions: Values (N, K) from `scoring_inputs`.
            targets: Values (N, ...) from `scoring_targets`.
            weights: Case weights (N, B), float64, >= 0.

        Returns:
            Scores (B,), float64; NaN if undefined: without cases, with a NaN prediction, and as the metric defines.
        """
        if not len(targets) or bool(torch.isnan(predictions).any()):
            return torch.full((weights.shape[1],), math.nan, dtype=torch.float64)
        return self.scores[metric](predictions, targets, weights)

    def constant_answer(
        self, predictions: torch.Tensor, targets: torch.Tensor, names: Sequence[str] = ()
    ) -> ConstantAnswer | None:
        """Return the model's prediction if it is the same for every case although the targets differ.

        Args:
            predictions: Values (N, K) from `scoring_inputs`.
            targets: Values (N, ...) from `scoring_targets`.
            names: Names of the classes; empty uses their numbers.

        Returns:
            The constant prediction; None if predictions differ, no target contradicts them, or a prediction is NaN.
        """
        return constant_numbers(predictions, targets) if self.is_without_nan(predictions) else None

    def check_metrics(self, names: Sequence[str]) -> None:
        """Raise if this objective does not have a metric.

        Raises:
            SettingsError: If a metric is unknown; the message suggests the most similar name.
        """
        for name in names:
            if name not in self.scores:
                raise SettingsError(
                    "unknown_choice",
                    f"Unknown metric '{name}'. {did_you_mean(name, self.scores)}",
                    what="metric",
                    choice=name,
                )

    # ---- for federated methods

    def alternatives(self, outputs: torch.Tensor) -> torch.Tensor:
        """Return the logits of the alternatives that a model chooses among, along axis 1.

        The shape is (N, C) for classes, (N, 2) for a binary finding, and (N, C, *spatial) for voxels. The softmax over
        axis 1 gives the model's probabilities.

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
        """Return the probabilities of the `alternatives`, softened by a temperature > 0; None without alternatives."""
        return (self.alternatives(outputs) / temperature).softmax(dim=1) if self.has_soft_targets else None

    def true_alternatives(self, targets: torch.Tensor) -> torch.Tensor:
        """Return the number of each case's correct alternative, int64, or -1 if it is unknown.

        The result has the shape of `alternatives` without axis 1.

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
        """Compute the cross entropy of the `alternatives`: the mean over all of them, or one value per case, (N,).

        Raises:
            ContractError: If there are no alternatives.
        """
        logits, truth = self.alternatives(outputs), self.true_alternatives(targets)
        if not per_case:
            return nn.functional.cross_entropy(logits, truth, ignore_index=-1)
        losses = nn.functional.cross_entropy(logits, truth, ignore_index=-1, reduction="none")
        return losses if losses.dim() == 1 else losses.flatten(1).sum(1) / (truth.flatten(1) >= 0).sum(1).clamp(min=1)

    def case_accuracy(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Compute the share of correct alternatives of each case, (N,), float64, in [0, 1].

        Raises:
            ContractError: If there are no alternatives.
        """
        logits, truth = self.alternatives(outputs), self.true_alternatives(targets)
        right = (logits.argmax(dim=1) == truth).double()
        return right if right.dim() == 1 else right.flatten(1).sum(1) / (truth.flatten(1) >= 0).sum(1).clamp(min=1)

    def average_outputs(self, outputs: torch.Tensor) -> torch.Tensor:
        """Average the predictions of M networks. Takes outputs of shape (M, N, ...) and returns (N, ...).

        By default this is the mean of the outputs. For logits, the softmax or sigmoid of the result is the mean of the
        members' probabilities.
        """
        return outputs.mean(dim=0)

    # ---- balance

    def balanced_loss(self, loss: nn.Module, targets: torch.Tensor, device: str) -> nn.Module:
        """Return a copy of a loss with the site's class weights (setting ``balance = loss``).

        Args:
            loss: Loss of the task.
            targets: Targets of all training cases of the site.
            device: Device on which the loss is computed.

        Raises:
            SettingsError: If cases have no classes, or if the loss supports no weights or already has some.
        """
        labels = self.class_labels(targets)
        if labels is None:
            raise SettingsError(
                "missing_classes",
                f"balance 'loss' weights classes, and the objective '{self.name}' has none. Leave balance out.",
                setting="balance",
                objective=self.name,
            )
        return weighted_loss(loss, labels, self.classes, device)
