"""Binary classification: a finding is present or absent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import nn

from medfl.errors import SettingsError
from medfl.metrics import METRICS
from medfl.metrics.binary import brier
from medfl.metrics.metric import Metric
from medfl.objectives.losses import OneLogitCrossEntropy
from medfl.objectives.multiclass import Multiclass
from medfl.objectives.objective import PROBABILITY_THRESHOLD
from medfl.objectives.outputs import mean_of_findings
from medfl.types import Meta

BINARY_METRICS = {**METRICS, "sensitivity": METRICS["recall"], "brier": Metric(brier)}
"""Metrics of binary classification by name."""


@dataclass(frozen=True)
class Binary(Multiclass):
    """Binary classification: a finding is present (1) or absent (0); a network has one logit, or one for each class.

    A target is 0 or 1, int64, shape (). Predictions are the probabilities (N, 2) of absence and presence: with one
    logit z they are sigmoid(-z) and sigmoid(z). With two logits it is `Multiclass` with two classes; one logit is
    equivalent to the difference of two.

    Attributes:
        logits: Number of logits, 1 or 2.
    """

    name: ClassVar[str] = "binary"
    """Name of the objective in data lists and bundles."""
    metrics: ClassVar[tuple[str, ...]] = ("auc", "balanced_accuracy", "sensitivity", "specificity", "brier", "ece")
    """Default metrics of a task; the first one is the key metric."""
    figures: ClassVar[tuple[str, ...]] = (*Multiclass.figures, "calibration")
    """Keywords of the figures that a report draws from predictions."""
    outputs_field: ClassVar[str | None] = "logits"
    """Name of the field with the number of a network's output channels."""

    num_classes: int = field(default=2, init=False)
    """Number of classes, always two: absence and presence."""
    logits: Literal[1, 2] = 1

    def __post_init__(self) -> None:
        if self.logits not in (1, 2):
            raise SettingsError(
                "setting_out_of_range",
                f"expected 1 or 2 logits of the objective 'binary', got {self.logits}.",
                setting="logits",
                expected=(1, 2),
                found=self.logits,
            )

    @property
    def outputs(self) -> int:
        """Number of logits, 1 or 2."""
        return self.logits

    @property
    def scores(self) -> Mapping[str, Metric]:
        """Metrics by name: the metrics of two classes, sensitivity and Brier score."""
        return BINARY_METRICS

    @property
    def facts(self) -> Meta:
        """JSON description of the objective: its name and number of logits."""
        return {"name": self.name, "logits": self.logits}

    @property
    def identity(self) -> Meta:
        """Description of the objective in the identity of a run: its name and number of logits."""
        return {"objective": self.facts}

    @property
    def decision_rule(self) -> str:
        """Text that describes how the predicted class is derived from the probabilities."""
        return f"probability of the second class > {PROBABILITY_THRESHOLD:g}"

    def default_loss(self) -> nn.Module:
        """Return the default loss of a task: binary cross entropy for one logit, cross entropy for two."""
        return OneLogitCrossEntropy() if self.logits == 1 else nn.CrossEntropyLoss()

    def predictions(self, outputs: torch.Tensor) -> torch.Tensor:
        """Convert logits to the probabilities (N, 2) of absence and presence."""
        return self.alternatives(outputs).softmax(dim=1)

    def average_outputs(self, outputs: torch.Tensor) -> torch.Tensor:
        """Average M networks' logits (M, N, ...) to logits (N, ...) with the mean of their probabilities."""
        return mean_of_findings(outputs) if self.logits == 1 else super().average_outputs(outputs)

    def alternatives(self, outputs: torch.Tensor) -> torch.Tensor:
        """Return the logits (N, 2) of absence and presence; for a network with one logit, the first is 0."""
        return torch.cat([torch.zeros_like(outputs), outputs], dim=1) if self.logits == 1 else outputs
