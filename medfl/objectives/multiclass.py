"""Multiclass classification: each case has exactly one of several classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import nn

from medfl.errors import SettingsError
from medfl.metrics import METRICS
from medfl.metrics.metric import Metric
from medfl.objectives.objective import Objective, format_value
from medfl.objectives.outputs import ConstantAnswer, mean_of_classes
from medfl.objectives.target_checks import check_rows
from medfl.types import Meta
from medfl.utils.formats import name_or_number


@dataclass(frozen=True)
class Multiclass(Objective):
    """Classification into C exclusive classes; a network has one logit per class.

    A target is the class number, int64, shape (). Predictions are softmax probabilities (N, C).

    Attributes:
        num_classes: Number of classes C, >= 2.
    """

    name: ClassVar[str] = "multiclass"
    metrics: ClassVar[tuple[str, ...]] = ("auc", "balanced_accuracy", "accuracy")
    headline: ClassVar[tuple[str, ...]] = ("balanced_accuracy", "auc", "accuracy")
    pipeline: ClassVar[str] = "classification"
    outputs_field: ClassVar[str | None] = "num_classes"
    figures: ClassVar[tuple[str, ...]] = ("confusion", "reliability", "class_auc")
    target_type: ClassVar[torch.dtype] = torch.int64
    has_class_labels: ClassVar[bool] = True
    has_soft_targets: ClassVar[bool] = True

    num_classes: int

    def __post_init__(self) -> None:
        if self.num_classes < 2:
            raise SettingsError(
                "setting_out_of_range",
                f"expected at least 2 classes in num_classes, got {self.num_classes}.",
                setting="num_classes",
                minimum=2,
                found=self.num_classes,
            )

    @classmethod
    def example(cls) -> Self:
        """Return the objective with two classes."""
        return cls(2)

    @property
    def outputs(self) -> int:
        """Number of outputs, one per class."""
        return self.num_classes

    @property
    def scores(self) -> Mapping[str, Metric]:
        """Metrics of `medfl.metrics` by name."""
        return METRICS

    def target_shape(self, image: Sequence[int]) -> tuple[int, ...]:
        """Return (), a single number."""
        return ()

    @property
    def classes(self) -> int:
        """Number of classes C."""
        return self.num_classes

    @property
    def titles(self) -> tuple[str, ...]:
        """Numbers of the classes, as texts."""
        return tuple(str(number) for number in range(self.num_classes))

    @property
    def identity(self) -> Meta:
        """Number of classes. Nothing may be added, because the noise streams depend on a run's identity."""
        return {"num_classes": self.num_classes}

    def check_targets(self, targets: torch.Tensor, where: str, start: int = 0) -> None:
        """Raise if a label is not a class number."""
        wrong = (targets < 0) | (targets >= self.num_classes)
        expected = f"labels from 0 to {self.num_classes - 1}"
        check_rows("wrong_label", wrong, targets, where, start, expected, "Check num_classes and the data list")

    def strata(self, targets: torch.Tensor) -> torch.Tensor:
        """Return the class of each case."""
        return targets

    def class_labels(self, targets: torch.Tensor) -> torch.Tensor:
        """Return the targets."""
        return targets

    def counts(self, targets: torch.Tensor) -> list[int]:
        """Return the number of cases per class."""
        numbers: list[int] = torch.bincount(targets, minlength=self.num_classes).tolist()
        return numbers

    def default_loss(self) -> nn.Module:
        """Return cross entropy."""
        return nn.CrossEntropyLoss()

    def predictions(self, outputs: torch.Tensor) -> torch.Tensor:
        """Return probabilities (N, C)."""
        return outputs.softmax(dim=1)

    def columns(self, metrics: Sequence[str]) -> tuple[str, ...]:
        """Return p0, p1, ..."""
        return tuple(f"p{number}" for number in range(self.num_classes))

    @property
    def decision_rule(self) -> str:
        """Rule that derives the predicted class from the probabilities."""
        return "most probable class"

    def prediction_columns(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return predicted_class, decision_rule, probability_NAME, ..."""
        each = (f"probability_{name_or_number(number, names)}" for number in range(self.num_classes))
        return ("predicted_class", "decision_rule", *each)

    def prediction_cells(self, predictions: torch.Tensor, names: Sequence[str]) -> list[str]:
        """Return the most probable class, the rule, and the probability of each class."""
        predicted = name_or_number(int(predictions.argmax()), names)
        return [predicted, self.decision_rule, *map(format_value, predictions.tolist())]

    def weighted_score(
        self, metric: str, predictions: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        """Compute a metric for each weighting as `medfl.metrics.metric.Metric.weighted` does."""
        return self.scores[metric].weighted(predictions, targets, self.num_classes, weights)

    def constant_answer(
        self, predictions: torch.Tensor, targets: torch.Tensor, names: Sequence[str] = ()
    ) -> ConstantAnswer | None:
        """Return the class that the model predicts for every case, if the cases have several classes."""
        if not len(predictions) or not self.is_without_nan(predictions):
            return None
        predicted = predictions.argmax(dim=1)
        if bool((predicted != predicted[0]).any()) or not bool((targets != targets[0]).any()):
            return None
        number = int(predicted[0])
        return ConstantAnswer(f"the class '{name_or_number(number, names)}'", int((targets != number).sum()))

    def average_outputs(self, outputs: torch.Tensor) -> torch.Tensor:
        """Return logits whose softmax is the mean of the members' probabilities."""
        return mean_of_classes(outputs)

    def alternatives(self, outputs: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        return outputs

    def true_alternatives(self, targets: torch.Tensor) -> torch.Tensor:
        """Return the class of each case."""
        return targets
