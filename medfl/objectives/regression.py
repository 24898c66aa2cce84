"""Regression: prediction of one or more numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from medfl.errors import SettingsError
from medfl.metrics.metric import WeightedScore
from medfl.metrics.regression import mae, pearson, r2, rmse
from medfl.objectives.objective import Objective
from medfl.objectives.target_checks import any_in_rows, check_rows

REGRESSION_METRICS = {"mae": mae, "rmse": rmse, "r2": r2, "pearson": pearson}
"""Metrics of regression by name."""

NUM_STRATA = 5
"""Number of quantile groups into which cases are divided for stratification."""


@dataclass(frozen=True)
class Regression(Objective):
    """Prediction of one or more numbers, such as an age.

    A target is float32, shape (D,); a network has D outputs, which are the predictions.

    Attributes:
        dimensions: Number of predicted values D, >= 1.
    """

    name: ClassVar[str] = "regression"
    """Name of the objective in data lists and bundles."""
    metrics: ClassVar[tuple[str, ...]] = ("mae", "rmse", "r2", "pearson")
    """Default metrics of a task; the first one is the key metric."""
    headline: ClassVar[tuple[str, ...]] = ("mae", "r2")
    """Metrics that a report shows side by side after the task's first one, if a run has them."""
    pipeline: ClassVar[str] = "regression"
    """Suffix of Hugging Face's pipeline tag for models of this objective."""
    outputs_field: ClassVar[str | None] = "dimensions"
    """Name of the field with the number of a network's output channels."""
    figures: ClassVar[tuple[str, ...]] = ("agreement",)
    """Keywords of the figures that a report draws from predictions."""
    target_type: ClassVar[torch.dtype] = torch.float32
    """Dtype of a batch of targets."""

    dimensions: int = 1

    def __post_init__(self) -> None:
        if self.dimensions < 1:
            raise SettingsError(
                "setting_out_of_range",
                f"expected at least 1 in dimensions, got {self.dimensions}.",
                setting="dimensions",
                minimum=1,
                found=self.dimensions,
            )

    @property
    def outputs(self) -> int:
        """Number of outputs, one per predicted value."""
        return self.dimensions

    @property
    def scores(self) -> Mapping[str, WeightedScore]:
        """Metrics by name: mean absolute error, root mean squared error, R squared and Pearson correlation."""
        return REGRESSION_METRICS

    def target_shape(self, image: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of one case's target: (D,)."""
        return (self.dimensions,)

    def check_targets(self, targets: torch.Tensor, where: str, start: int = 0) -> None:
        """Raise if a target is not a finite number."""
        wrong = any_in_rows(targets, lambda values: ~values.isfinite())
        check_rows(
            "not_finite", wrong, targets, where, start, "finite numbers", "Correct the list, or leave that record out"
        )

    def strata(self, targets: torch.Tensor) -> torch.Tensor:
        """Return each case's stratum, for partitions and folds that keep strata in proportion.

        The stratum is the quantile group of the first target value; cases with equal values are in the same group.
        """
        values = targets[:, 0].contiguous()
        if not len(values):
            return torch.empty(0, dtype=torch.int64)
        edges = values.quantile(torch.arange(1, NUM_STRATA) / NUM_STRATA)
        return torch.bucketize(values, edges)

    @property
    def stratum_names(self) -> tuple[str, ...]:
        """Names of the strata, which are the quantile groups."""
        return tuple(f"part {number + 1} of {NUM_STRATA} by size" for number in range(NUM_STRATA))

    def default_loss(self) -> nn.Module:
        """Return the default loss of a task: mean squared error."""
        return nn.MSELoss()

    def predictions(self, outputs: torch.Tensor) -> torch.Tensor:
        """Convert outputs to predictions: the outputs unchanged."""
        return outputs

    def columns(self, metrics: Sequence[str]) -> tuple[str, ...]:
        """Return the column names of the predicted values in prediction files: y0, y1, ..."""
        return tuple(f"y{number}" for number in range(self.dimensions))

    @property
    def target_columns(self) -> tuple[str, ...]:
        """Column names of a target's numbers in tables: t0, t1, ..."""
        return tuple(f"t{number}" for number in range(self.dimensions))
