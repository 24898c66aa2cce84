"""Numbers to predict."""

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
from medfl.objectives.rows import check_rows, in_rows

SCORES = {"mae": mae, "rmse": rmse, "r2": r2, "pearson": pearson}

STRATA = 5
"""Into how many parts by size the cases are cut, where partitions keep them in proportion."""


@dataclass(frozen=True)
class Regression(Objective):
    """One number or several are predicted, such as an age.

    A target is float32, shape (D,); a network puts out D values, which are the predictions.

    Attributes:
        dimensions: D, >= 1.
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
        """One for each number."""
        return self.dimensions

    @property
    def scores(self) -> Mapping[str, WeightedScore]:
        """Errors, and how much of the spread is explained."""
        return SCORES

    def target_shape(self, image: Sequence[int]) -> tuple[int, ...]:
        """(D,)."""
        return (self.dimensions,)

    def check_targets(self, targets: torch.Tensor, where: str, start: int = 0) -> None:
        """Refuse what is no finite number."""
        wrong = in_rows(targets, lambda values: ~values.isfinite())
        check_rows(
            "not_finite", wrong, targets, where, start, "finite numbers", "Correct the list, or leave that record out"
        )

    def strata(self, targets: torch.Tensor) -> torch.Tensor:
        """Which fifth of the cases the first number is in, by size; cases of equal numbers are in one."""
        values = targets[:, 0].contiguous()
        if not len(values):
            return torch.empty(0, dtype=torch.int64)
        edges = values.quantile(torch.arange(1, STRATA) / STRATA)
        return torch.bucketize(values, edges)

    @property
    def stratum_names(self) -> tuple[str, ...]:
        """The fifths by size."""
        return tuple(f"part {number + 1} of {STRATA} by size" for number in range(STRATA))

    def default_loss(self) -> nn.Module:
        """Mean squared error."""
        return nn.MSELoss()

    def predictions(self, outputs: torch.Tensor) -> torch.Tensor:
        """The values."""
        return outputs

    def columns(self, metrics: Sequence[str]) -> tuple[str, ...]:
        """y0, y1, ..."""
        return tuple(f"y{number}" for number in range(self.dimensions))

    @property
    def target_columns(self) -> tuple[str, ...]:
        """t0, t1, ..."""
        return tuple(f"t{number}" for number in range(self.dimensions))
