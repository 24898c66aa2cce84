"""Multi-label classification: several findings, each present, absent or not labelled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Self

import torch
from torch import nn

from medfl.errors import SettingsError
from medfl.metrics.metric import WeightedScore
from medfl.metrics.multilabel import label_auc, macro_auc, mean_average_precision
from medfl.objectives.losses import LabelledBCELoss
from medfl.objectives.objective import PROBABILITY_THRESHOLD, Objective, format_value
from medfl.objectives.outputs import ConstantAnswer, mean_of_findings
from medfl.objectives.target_checks import any_in_rows, check_rows
from medfl.utils.formats import name_or_number


@dataclass(frozen=True)
class Multilabel(Objective):
    """Classification of C findings, each present (1), absent (0) or not labelled (NaN: excluded from loss and metrics).

    A target is float32, shape (C,); a network has one logit per finding. Predictions are sigmoid probabilities (N, C).

    Attributes:
        num_labels: Number of findings C, >= 1.
    """

    name: ClassVar[str] = "multilabel"
    """Name of the objective in data lists and bundles."""
    metrics: ClassVar[tuple[str, ...]] = ("macro_auc", "map")
    """Default metrics of a task; the first one is the key metric."""
    headline: ClassVar[tuple[str, ...]] = metrics
    """Metrics that a report shows side by side after the task's first one, if a run has them."""
    pipeline: ClassVar[str] = "classification"
    """Suffix of Hugging Face's pipeline tag for models of this objective."""
    outputs_field: ClassVar[str | None] = "num_labels"
    """Name of the field with the number of a network's output channels."""
    figures: ClassVar[tuple[str, ...]] = ("label_auc",)
    """Keywords of the figures that a report draws from predictions."""
    target_type: ClassVar[torch.dtype] = torch.float32
    """Dtype of a batch of targets."""
    has_soft_targets: ClassVar[bool] = True
    """Whether outputs are probabilities of alternatives (`alternatives`), so that models can be distilled."""

    num_labels: int

    def __post_init__(self) -> None:
        if self.num_labels < 1:
            raise SettingsError(
                "setting_out_of_range",
                f"expected at least 1 label in num_labels, got {self.num_labels}.",
                setting="num_labels",
                minimum=1,
                found=self.num_labels,
            )

    @classmethod
    def example(cls) -> Self:
        """Return an objective of this kind with as few outputs as possible: one finding."""
        return cls(1)

    @property
    def outputs(self) -> int:
        """Number of outputs, one per finding."""
        return self.num_labels

    @property
    def scores(self) -> Mapping[str, WeightedScore]:
        """Metrics by name: mean AUC, mean average precision, and the AUC of each finding, ``auc_0``, ``auc_1``, ..."""
        each = {f"auc_{label}": partial(_label_auc, label) for label in range(self.num_labels)}
        return {"macro_auc": macro_auc, "map": mean_average_precision, **each}

    def target_shape(self, image: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of one case's target: (C,)."""
        return (self.num_labels,)

    def check_targets(self, targets: torch.Tensor, where: str, start: int = 0) -> None:
        """Raise if a target is not 0, 1 or NaN, or if no finding of a row is labelled."""
        other = any_in_rows(targets, lambda values: (values != 0) & (values != 1) & ~values.isnan())
        expected = "0, 1 or NaN (not labelled) for each finding"
        check_rows("wrong_finding", other, targets, where, start, expected, "Correct the list")
        expected = "at least one finding that is labelled"
        check_rows(
            "missing_finding",
            targets.isnan().all(dim=1),
            targets,
            where,
            start,
            expected,
            "Leave that record out of the list",
        )

    def strata(self, targets: torch.Tensor) -> torch.Tensor:
        """Return each case's stratum, for partitions and folds that keep strata in proportion.

        The stratum is the number of the rarest finding that is present, from 1; 0 for a case without findings.
        """
        present = targets == 1
        rarest = present.sum(0).argsort(stable=True)
        ranked = present[:, rarest]
        return torch.where(ranked.any(1), rarest[ranked.int().argmax(1)] + 1, 0)

    def label_sets(self, targets: torch.Tensor) -> torch.Tensor:
        """Return which findings each case has, (N, C), bool, for multi-label stratification."""
        return targets == 1

    @property
    def stratum_names(self) -> tuple[str, ...]:
        """Names of the strata: no finding, and each finding."""
        return ("no finding", *(f"finding {label}" for label in range(self.num_labels)))

    def default_loss(self) -> nn.Module:
        """Return the default loss of a task: binary cross entropy over the labelled findings."""
        return LabelledBCELoss()

    def predictions(self, outputs: torch.Tensor) -> torch.Tensor:
        """Convert logits to the probabilities (N, C) of the findings by the sigmoid."""
        return outputs.sigmoid()

    def prediction_columns(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return the headings of `prediction_cells`: predicted_findings, decision_rule, probability_NAME, ..."""
        each = (f"probability_{name_or_number(number, names)}" for number in range(self.num_labels))
        return ("predicted_findings", "decision_rule", *each)

    def prediction_cells(self, predictions: torch.Tensor, names: Sequence[str]) -> list[str]:
        """Return one case's cells in a prediction file.

        They are the present findings separated by semicolons, the decision rule, and each finding's probability.
        """
        present = [
            name_or_number(number, names) for number, value in enumerate(predictions) if value >= PROBABILITY_THRESHOLD
        ]
        rule = f"probability >= {PROBABILITY_THRESHOLD:g}"
        return ["; ".join(present) or "none", rule, *map(format_value, predictions.tolist())]

    def columns(self, metrics: Sequence[str]) -> tuple[str, ...]:
        """Return the column names of the probabilities in prediction files: p0, p1, ..."""
        return tuple(f"p{label}" for label in range(self.num_labels))

    @property
    def target_columns(self) -> tuple[str, ...]:
        """Column names of a target's numbers in tables: t0, t1, ..."""
        return tuple(f"t{label}" for label in range(self.num_labels))

    def constant_answer(
        self, predictions: torch.Tensor, targets: torch.Tensor, names: Sequence[str] = ()
    ) -> ConstantAnswer | None:
        """Return the answer of a model that predicts the same findings for every case.

        A single finding with a constant prediction is no fault, because rare findings stay below the threshold 0.5.
        Findings whose labels don't vary are ignored.
        """
        if not len(predictions) or not self.is_without_nan(predictions):
            return None
        present, labelled = predictions >= PROBABILITY_THRESHOLD, ~targets.isnan()
        differ = ((targets == 1).any(0) & (targets == 0).any(0)).nonzero()[:, 0]
        if not len(differ) or bool((present[:, differ] != present[:1, differ]).any()):
            return None
        wrong = labelled[:, differ] & (present[:, differ] != (targets[:, differ] == 1))
        return ConstantAnswer("the same findings", int(wrong.any(1).sum()))

    def average_outputs(self, outputs: torch.Tensor) -> torch.Tensor:
        """Average M networks' logits (M, N, C) to logits (N, C) whose sigmoid is the mean of their probabilities."""
        return mean_of_findings(outputs)

    def alternatives(self, outputs: torch.Tensor) -> torch.Tensor:
        """Return the logits (N, 2, C) of the alternatives of each finding: absence, which is 0, and presence."""
        return torch.stack([torch.zeros_like(outputs), outputs], dim=1)

    def true_alternatives(self, targets: torch.Tensor) -> torch.Tensor:
        """Return the correct alternative of each finding, (N, C): 0 for absent, 1 for present, -1 if not labelled."""
        return targets.nan_to_num(-1.0).long()


def _label_auc(label: int, predictions: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Compute the AUC of a single finding."""
    columns = slice(label, label + 1)
    return label_auc(predictions[:, columns], targets[:, columns], weights)[0]
