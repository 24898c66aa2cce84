"""Each case is of exactly one of several classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import nn

from medfl.errors import SettingsError
from medfl.metrics import METRICS
from medfl.metrics.metric import Metric
from medfl.objectives.objective import Objective, as_cell
from medfl.objectives.outputs import ConstantAnswer, mean_of_classes
from medfl.objectives.rows import check_rows
from medfl.types import Meta
from medfl.utils.formats import name_or_number


@dataclass(frozen=True)
class Multiclass(Objective):
    """Each case is of one of C classes; a network puts out a logit for each of them.

    A target is the number of the class, int64, shape (). Predictions are softmax probabilities (N, C).

    Attributes:
        num_classes: C, >= 2.
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
        """Return the objective with two outputs."""
        return cls(2)

    @property
    def outputs(self) -> int:
        """One for each class."""
        return self.num_classes

    @property
    def scores(self) -> Mapping[str, Metric]:
        """Those of `medfl.metrics`."""
        return METRICS

    def target_shape(self, image: Sequence[int]) -> tuple[int, ...]:
        """A single number."""
        return ()

    @property
    def classes(self) -> int:
        """C."""
        return self.num_classes

    @property
    def titles(self) -> tuple[str, ...]:
        """The numbers of the classes."""
        return tuple(str(number) for number in range(self.num_classes))

    @property
    def identity(self) -> Meta:
        """The number of classes alone: streams of noise hang on what a run's identity holds."""
        return {"num_classes": self.num_classes}

    def check_targets(self, targets: torch.Tensor, where: str, start: int = 0) -> None:
        """Refuse labels that there is no class for."""
        wrong = (targets < 0) | (targets >= self.num_classes)
        expected = f"labels from 0 to {self.num_classes - 1}"
        check_rows("wrong_label", wrong, targets, where, start, expected, "Check num_classes and the data list")

    def strata(self, targets: torch.Tensor) -> torch.Tensor:
        """The class."""
        return targets

    def class_labels(self, targets: torch.Tensor) -> torch.Tensor:
        """The targets."""
        return targets

    def counts(self, targets: torch.Tensor) -> list[int]:
        """Cases of each class."""
        numbers: list[int] = torch.bincount(targets, minlength=self.num_classes).tolist()
        return numbers

    def default_loss(self) -> nn.Module:
        """Cross entropy."""
        return nn.CrossEntropyLoss()

    def predictions(self, outputs: torch.Tensor) -> torch.Tensor:
        """Probabilities (N, C)."""
        return outputs.softmax(dim=1)

    def columns(self, metrics: Sequence[str]) -> tuple[str, ...]:
        """p0, p1, ..."""
        return tuple(f"p{number}" for number in range(self.num_classes))

    @property
    def decision_rule(self) -> str:
        """Rule by which the predicted class follows from the probabilities."""
        return "most probable class"

    def prediction_columns(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return predicted_class, decision_rule, probability_NAME, ..."""
        each = (f"probability_{name_or_number(number, names)}" for number in range(self.num_classes))
        return ("predicted_class", "decision_rule", *each)

    def prediction_cells(self, predictions: torch.Tensor, names: Sequence[str]) -> list[str]:
        """Return the most probable class, the rule, and the probability of each class."""
        predicted = name_or_number(int(predictions.argmax()), names)
        return [predicted, self.decision_rule, *map(as_cell, predictions.tolist())]

    def weighted_score(
        self, metric: str, judged: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        """As `medfl.metrics.metric.Metric.weighted` computes it."""
        return self.scores[metric].weighted(judged, targets, self.num_classes, weights)

    def constant_answer(
        self, judged: torch.Tensor, targets: torch.Tensor, names: Sequence[str] = ()
    ) -> ConstantAnswer | None:
        """Return the class that is the most probable one of every case, if cases are of several classes."""
        if not len(judged) or not self.gave_numbers(judged):
            return None
        predicted = judged.argmax(dim=1)
        if bool((predicted != predicted[0]).any()) or not bool((targets != targets[0]).any()):
            return None
        number = int(predicted[0])
        return ConstantAnswer(f"the class '{name_or_number(number, names)}'", int((targets != number).sum()))

    def together(self, outputs: torch.Tensor) -> torch.Tensor:
        """Logits whose softmax is the mean of the members' probabilities."""
        return mean_of_classes(outputs)

    def alternatives(self, outputs: torch.Tensor) -> torch.Tensor:
        """The logits."""
        return outputs

    def truth(self, targets: torch.Tensor) -> torch.Tensor:
        """The class."""
        return targets
