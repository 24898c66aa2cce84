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
    metrics: ClassVar[tuple[str, ...]] = ("mae", "rmse", "r2", "pearson")
    headline: ClassVar[tuple[str, ...]] = ("mae", "r2")
    pipeline: ClassVar[str] = "regression"
    outputs_field: ClassVar[str | None] = "dimensions"
    figures: ClassVar[tuple[str, ...]] = ("agreement",)
    target_type: ClassVar[torch.dtype] = torch.float32

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
        """Metrics by name: errors, explained variance and correlation."""
        return REGRESSION_METRICS

    def target_shape(self, image: Sequence[int]) -> tuple[int, ...]:
        """Return (D,)."""
        return (self.dimensions,)

    def check_targets(self, targets: torch.Tensor, where: str, start: int = 0) -> None:
        """Raise if a target is not a finite number."""
        wrong = any_in_rows(targets, lambda values: ~values.isfinite())
        check_rows(
            "not_finite", wrong, targets, where, start, "finite numbers", "Correct the list, or leave that record out"
        )

    def strata(self, targets: torch.Tensor) -> torch.Tensor:
        """Return each case's quantile group by its first value; cases with equal values are in the same group."""
        values = targets[:, 0].contiguous()
        if not len(values):
            return torch.empty(0, dtype=torch.int64)
        edges = values.quantile(torch.arange(1, NUM_STRATA) / NUM_STRATA)
        return torch.bucketize(values, edges)

    @property
    def stratum_names(self) -> tuple[str, ...]:
        """Names of the quantile groups."""
        return tuple(f"part {number + 1} of {NUM_STRATA} by size" for number in range(NUM_STRATA))

    def default_loss(self) -> nn.Module:
        """Return mean squared error."""
        return nn.MSELoss()

    def predictions(self, outputs: torch.Tensor) -> torch.Tensor:
        """Return the outputs."""
        return outputs

    def columns(self, metrics: Sequence[str]) -> tuple[str, ...]:
        """Return y0, y1, ..."""
        return tuple(f"y{number}" for number in range(self.dimensions))

    @property
    def target_columns(self) -> tuple[str, ...]:
        """Column names t0, t1, ..."""
        return tuple(f"t{number}" for number in range(self.dimensions))
