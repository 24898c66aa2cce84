"""What a study file says under ``tune``: how ``medfl tune`` looks for settings of its rows.

``medfl study`` passes it over. Values are checked against the methods and the settings of a run in
`medfl_studies.tune.space`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

from pydantic import Field, model_validator

from medfl.settings import Strict

Sampler = Literal["grid", "random", "tpe"]
"""How trials are chosen."""

ALL = "all"
"""In place of values: all that a field can be, of a choice, a yes or no, or a method's presets."""


class Range(Strict):
    """Numbers from `low` to `high`, both included.

    Attributes:
        low: The smallest.
        high: The largest, > `low`.
        log: Whether equal ratios count as equal distances; needs `low` > 0.
        points: For a grid: how many numbers, >= 2.
    """

    low: int | float
    high: int | float
    log: bool = False
    points: int | None = Field(None, ge=2)

    @model_validator(mode="after")
    def _in_order(self) -> Range:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ValueError(f"expected low < high, both finite, got {self.low} and {self.high}")
        if self.log and self.low <= 0:
            raise ValueError(f"expected low > 0 with 'log', got {self.low}")
        return self


class RowSpace(Strict):
    """What is tuned of one row.

    Attributes:
        method_args: Setting of the method to its values: a list, ``{low, high, log, points}``, or ``all``. ``preset``
            stands for the method's presets; ``a#b`` for a part.
        settings: Option of the run to its values, likewise.
    """

    method_args: dict[str, Any] = {}
    settings: dict[str, Any] = {}


class Tuning(Strict):
    """The section ``tune`` of a study file.

    Attributes:
        sampler: Sampler of Optuna. ``grid``: every combination; ``random``: drawn; ``tpe``: the tree-structured Parzen
            estimator (Bergstra et al., NeurIPS 2011).
        trials: Of each row; a grid knows its number.
        seed: Of what is drawn. The trials' own seed is the study's first.
        metric: What is compared; by default the first metric of the runs.
        score: Over the sites: their ``mean``, or the ``worst``.
        settings: What is tuned of every row: option of the run to its values, as in `RowSpace`.
        rows: Name of a row to what is tuned of it besides.
    """

    sampler: Sampler = "random"
    trials: int | None = Field(None, ge=1)
    seed: int = Field(0, ge=0)
    metric: str | None = None
    score: Literal["mean", "worst"] = "mean"
    settings: dict[str, Any] = {}
    rows: dict[str, RowSpace] = {}

    @model_validator(mode="after")
    def _counted(self) -> Tuning:
        if self.trials is None and self.sampler != "grid":
            raise ValueError(f"the sampler '{self.sampler}' needs 'trials', the number for each row")
        return self

    def renamed(self, rename: Callable[[str], str]) -> Tuning:
        """The same for rows of other names."""
        return self.model_copy(update={"rows": {rename(name): space for name, space in self.rows.items()}})
