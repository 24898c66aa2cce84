"""Survival analysis: prediction of a risk from event times, which may be censored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from medfl.metrics.metric import WeightedScore
from medfl.metrics.survival import concordance
from medfl.objectives.losses import CoxLoss, has_events
from medfl.objectives.objective import Objective
from medfl.objectives.target_checks import any_in_rows, check_rows

SURVIVAL_METRICS = {"c_index": concordance}
"""Metrics of survival analysis by name."""

HIGHER, LOWER = "higher", "lower"
"""Names of the two risk groups: risk above the median of other cases, and all others."""


@dataclass(frozen=True)
class Survival(Objective):
    """Prediction of a risk: the higher the risk, the earlier the event.

    A target is float32, shape (2,): the observation time, > 0, and 1 for an event or 0 for a censored time. A network
    has one output, the risk, on an arbitrary scale. There is no per-case loss: Cox's partial likelihood compares the
    cases of a batch. A site without any event can't train.
    """

    name: ClassVar[str] = "survival"
    """Name of the objective in data lists and bundles."""
    metrics: ClassVar[tuple[str, ...]] = ("c_index",)
    """Default metrics of a task; the first one is the key metric."""
    headline: ClassVar[tuple[str, ...]] = metrics
    """Metrics that a report shows side by side after the task's first one, if a run has them."""
    figures: ClassVar[tuple[str, ...]] = ("kaplan_meier",)
    """Keywords of the figures that a report draws from predictions."""
    target_type: ClassVar[torch.dtype] = torch.float32
    """Dtype of a batch of targets."""
    has_groups: ClassVar[bool] = True
    """Whether cases are grouped by a comparison with the predictions for other cases (`groups`)."""
    per_case_loss: ClassVar[bool] = False
    """Whether the loss of a batch is a mean of per-case losses, so that each case has its own gradient."""
    smallest_batch: ClassVar[int] = 2
    """Minimum number of cases in a batch for a useful gradient."""

    @property
    def outputs(self) -> int:
        """Number of outputs: 1."""
        return 1

    @property
    def scores(self) -> Mapping[str, WeightedScore]:
        """Metrics by name: Harrell's C-index."""
        return SURVIVAL_METRICS

    def target_shape(self, image: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of one case's target: (2,), time and event."""
        return (2,)

    def check_targets(self, targets: torch.Tensor, where: str, start: int = 0) -> None:
        """Raise if a time is not finite and above 0, or an event is neither 0 nor 1."""
        time, event = targets[:, :1], targets[:, 1:]
        wrong = any_in_rows(time, lambda values: ~((values > 0) & values.isfinite()))
        check_rows(
            "invalid_time",
            wrong,
            targets,
            where,
            start,
            "a finite time > 0",
            "Correct the list, or leave that record out",
        )
        wrong = any_in_rows(event, lambda values: (values != 0) & (values != 1))
        check_rows(
            "invalid_event",
            wrong,
            targets,
            where,
            start,
            "1 for an event or 0 for none after the time",
            "Correct the list",
        )

    def strata(self, targets: torch.Tensor) -> torch.Tensor:
        """Return each case's stratum, for partitions and folds that keep strata in proportion.

        The stratum is 1 for a case with an event, 0 for a censored one.
        """
        return targets[:, 1].long()

    @property
    def stratum_names(self) -> tuple[str, ...]:
        """Names of the strata: without and with the event."""
        return ("no event", "event")

    def can_train_on(self, targets: torch.Tensor) -> bool:
        """Return True if a model can be trained on these targets: an event, and another case to compare it with."""
        return len(targets) >= self.smallest_batch and has_events(targets)

    def default_loss(self) -> nn.Module:
        """Return the default loss of a task: `CoxLoss`, with Efron's treatment of ties."""
        return CoxLoss()

    def predictions(self, outputs: torch.Tensor) -> torch.Tensor:
        """Convert outputs to predictions: the risks (N, 1), unchanged."""
        return outputs

    def prediction_columns(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return the headings of `prediction_cells`: risk and unit. The names of the outputs are not used."""
        return ("risk", "unit")

    @property
    def unit(self) -> str:
        """Unit of the risk."""
        return "log of the hazard relative to other cases of this model"

    def columns(self, metrics: Sequence[str]) -> tuple[str, ...]:
        """Return the column names of the predictions in prediction files: only risk."""
        return ("risk",)

    @property
    def target_columns(self) -> tuple[str, ...]:
        """Column names of a target's numbers in tables: time and event."""
        return ("time", "event")

    def groups(self, predictions: torch.Tensor, others: torch.Tensor) -> tuple[str, ...]:
        """Return `HIGHER` for each case whose risk exceeds the median risk of the others, otherwise `LOWER`.

        For an even number of others, the lower median is used.
        """
        return tuple(HIGHER if above else LOWER for above in (predictions[:, 0] > others[:, 0].median()).tolist())
