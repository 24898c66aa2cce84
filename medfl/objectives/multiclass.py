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
from medfl.objectives.objective import PROBABILITY_THRESHOLD, Objective, format_value
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
    """Name of the objective in data lists and bundles."""
    metrics: ClassVar[tuple[str, ...]] = ("auc", "balanced_accuracy", "accuracy")
    """Default metrics of a task; the first one is the key metric."""
    headline: ClassVar[tuple[str, ...]] = ("balanced_accuracy", "auc", "accuracy")
    """Metrics that a report shows side by side after the task's first one, if a run has them."""
    pipeline: ClassVar[str] = "classification"
    """Suffix of Hugging Face's pipeline tag for models of this objective."""
    outputs_field: ClassVar[str | None] = "num_classes"
    """Name of the field with the number of a network's output channels."""
    figures: ClassVar[tuple[str, ...]] = ("confusion", "reliability", "class_auc")
    """Keywords of the figures that a report draws from predictions."""
    target_type: ClassVar[torch.dtype] = torch.int64
    """Dtype of a batch of targets."""
    has_class_labels: ClassVar[bool] = True
    """Whether each case has one class (`class_labels`)."""
    has_soft_targets: ClassVar[bool] = True
    """Whether outputs are probabilities of alternatives (`alternatives`), so that models can be distilled."""

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
        """Return an objective of this kind with as few outputs as possible: two classes."""
        return cls(2)

    @property
    def outputs(self) -> int:
        """Number of outputs, one per class."""
        return self.num_classes

    @property
    def scores(self) -> Mapping[str, Metric]:
        """Metrics by name, from `medfl.metrics`."""
        return METRICS

    def target_shape(self, image: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of one case's target: (), because it is a single number."""
        return ()

    @property
    def classes(self) -> int:
        """Number of classes C."""
        return self.num_classes

    @property
    def titles(self) -> tuple[str, ...]:
        """Default names of the classes: their numbers, as texts."""
        return tuple(str(number) for number in range(self.num_classes))

    @property
    def identity(self) -> Meta:
        """Description of the objective in a run's identity: the number of classes.

        Nothing may be added, because the noise streams depend on the identity.
        """
        return {"num_classes": self.num_classes}

    def check_targets(self, targets: torch.Tensor, where: str, start: int = 0) -> None:
        """Raise if a label is not a class number."""
        wrong = (targets < 0) | (targets >= self.num_classes)
        expected = f"labels from 0 to {self.num_classes - 1}"
        check_rows("wrong_label", wrong, targets, where, start, expected, "Check num_classes and the data list")

    def strata(self, targets: torch.Tensor) -> torch.Tensor:
        """Return each case's stratum, for partitions and folds that keep strata in proportion: its class."""
        return targets

    def class_labels(self, targets: torch.Tensor) -> torch.Tensor:
        """Return the class of each case, which is its target."""
        return targets

    def counts(self, targets: torch.Tensor) -> list[int]:
        """Return the number of cases per class."""
        numbers: list[int] = torch.bincount(targets, minlength=self.num_classes).tolist()
        return numbers

    def default_loss(self) -> nn.Module:
        """Return the default loss of a task: cross entropy."""
        return nn.CrossEntropyLoss()

    def predictions(self, outputs: torch.Tensor) -> torch.Tensor:
        """Convert logits to probabilities (N, C) by the softmax."""
        return outputs.softmax(dim=1)

    def columns(self, metrics: Sequence[str]) -> tuple[str, ...]:
        """Return the column names of the probabilities in prediction files: p0, p1, ..."""
        return tuple(f"p{number}" for number in range(self.num_classes))

    @property
    def decision_rule(self) -> str:
        """Text that describes how the predicted class is derived from the probabilities."""
        if self.num_classes == 2:
            return f"probability of the second class > {PROBABILITY_THRESHOLD:g}"
        return "most probable class"

    def prediction_columns(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return the headings of `prediction_cells`: predicted_class, decision_rule, probability_NAME, ..."""
        each = (f"probability_{name_or_number(number, names)}" for number in range(self.num_classes))
        return ("predicted_class", "decision_rule", *each)

    def prediction_cells(self, predictions: torch.Tensor, names: Sequence[str]) -> list[str]:
        """Return one case's cells in a prediction file: most probable class, decision rule, class probabilities."""
        predicted = name_or_number(int(predictions.argmax()), names)
        return [predicted, self.decision_rule, *map(format_value, predictions.tolist())]

    def weighted_score(
        self, metric: str, predictions: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        """Compute a metric for each of B weightings (N, B) of the cases; returns (B,), NaN where it is undefined."""
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
        """Average M networks' logits (M, N, C) to logits (N, C) whose softmax is the mean of their probabilities."""
        return mean_of_classes(outputs)

    def alternatives(self, outputs: torch.Tensor) -> torch.Tensor:
        """Return the logits (N, C) of the alternatives that a model chooses among, here the classes."""
        return outputs

    def true_alternatives(self, targets: torch.Tensor) -> torch.Tensor:
        """Return the number of each case's correct alternative, which is its class."""
        return targets
