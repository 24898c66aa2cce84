"""Schema of the section ``tune`` of a study file: how ``medfl tune`` searches for settings of the study's rows.

A row of a study is a method with settings; a trial is a run of the row with other parameters.

``medfl study`` ignores the section. `medfl_studies.tune.space` checks the values against the methods and the settings
of a run.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

from pydantic import Field, model_validator

from medfl.settings import StrictModel

SamplerName = Literal["grid", "random", "tpe"]
"""Name of the sampler that chooses trials."""

ALL_VALUES = "all"
"""Value that means all possible values of a choice, a boolean, or a method's presets."""


class ValueRange(StrictModel):
    """Numbers from `low` to `high`, both included.

    Attributes:
        low: Smallest number.
        high: Largest number, > `low`.
        log: Whether to sample on a logarithmic scale; requires `low` > 0.
        points: Number of values in a grid, >= 2.
    """

    low: int | float
    high: int | float
    log: bool = False
    points: int | None = Field(None, ge=2)

    @model_validator(mode="after")
    def _check_order(self) -> ValueRange:
        """Check that low < high, and low > 0 on a logarithmic scale."""
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ValueError(f"expected low < high, both finite, got {self.low} and {self.high}")
        if self.log and self.low <= 0:
            raise ValueError(f"expected low > 0 with 'log', got {self.low}")
        return self


class RowSpace(StrictModel):
    """Search space of one row.

    Attributes:
        method_args: Maps a setting of the method to its values: a list, ``{low, high, log, points}``, or ``all``. The
            key ``preset`` selects among the method's presets; the key ``a#b`` names a part of a setting.
        settings: Maps an option of the run to its values: a list, ``{low, high, log, points}``, or ``all``.
    """

    method_args: dict[str, Any] = {}
    settings: dict[str, Any] = {}


class Tuning(StrictModel):
    """The section ``tune`` of a study file.

    Attributes:
        sampler: Sampler of Optuna. ``grid``: every combination; ``random``: random combinations; ``tpe``:
            tree-structured Parzen estimator (Bergstra et al., NeurIPS 2011).
        trials: Number of trials of each row, >= 2; None for a grid, whose size is known. The first one has the row's
            own settings, except in a grid.
        seed: Seed of the sampler. The runs of the trials use the study's first seed.
        nested: Whether to search in each split of the study separately (nested cross-validation, Varma and Simon, BMC
            Bioinformatics 2006). Each seed and fold then has its own best settings, and the test images of a split
            affect no settings that it is scored with.
        metric: Metric to optimize; None means the first metric of the runs.
        score: How a trial's score is computed from the sites' scores: ``mean``, or ``worst`` for the worst site.
        settings: Options of the run that are searched in every row; maps each option to its values: a list,
            ``{low, high, log, points}``, or ``all``.
        rows: Maps the name of a row to its additional search space.
    """

    sampler: SamplerName = "random"
    trials: int | None = Field(None, ge=1)
    seed: int = Field(0, ge=0)
    nested: bool = False
    metric: str | None = None
    score: Literal["mean", "worst"] = "mean"
    settings: dict[str, Any] = {}
    rows: dict[str, RowSpace] = {}

    @model_validator(mode="after")
    def _check_trials(self) -> Tuning:
        """Check that `trials` is given, and at least 2, unless the sampler is ``grid``."""
        if self.sampler != "grid" and (self.trials is None or self.trials < 2):
            raise ValueError(
                f"the sampler '{self.sampler}' needs 'trials', the number for each row: at least 2, because the first "
                f"trial has the row's own settings; got {self.trials}"
            )
        return self

    def rename_rows(self, rename: Callable[[str], str]) -> Tuning:
        """Return the section with renamed rows."""
        return self.model_copy(update={"rows": {rename(name): space for name, space in self.rows.items()}})
