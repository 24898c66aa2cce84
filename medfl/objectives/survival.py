"""When an event comes, of which some are not seen to the end."""

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
from medfl.objectives.rows import check_rows, in_rows

SCORES = {"c_index": concordance}

HIGHER, LOWER = "higher", "lower"
"""Groups of risk."""


@dataclass(frozen=True)
class Survival(Objective):
    """A risk is predicted: the higher, the sooner the event.

    A target is float32, shape (2,): the time under observation, > 0, and whether it ended with the event (1) or was cut
    short (0). A network puts out one risk, on a scale of its own. A case has no loss alone: Cox's partial likelihood
    compares it with the others of its batch. Without any event a site has nothing to learn from.
    """

    name: ClassVar[str] = "survival"
    metrics: ClassVar[tuple[str, ...]] = ("c_index",)
    headline: ClassVar[tuple[str, ...]] = metrics
    figures: ClassVar[tuple[str, ...]] = ("kaplan_meier",)
    target_type: ClassVar[torch.dtype] = torch.float32
    has_groups: ClassVar[bool] = True
    per_case_loss: ClassVar[bool] = False
    smallest_batch: ClassVar[int] = 2

    @property
    def outputs(self) -> int:
        """One."""
        return 1

    @property
    def scores(self) -> Mapping[str, WeightedScore]:
        """Harrell's C-index."""
        return SCORES

    def target_shape(self, image: Sequence[int]) -> tuple[int, ...]:
        """(2,)."""
        return (2,)

    def check_targets(self, targets: torch.Tensor, where: str, start: int = 0) -> None:
        """Refuse a time that is not above 0 and finite, and an event that is neither 0 nor 1."""
        time, event = targets[:, :1], targets[:, 1:]
        wrong = in_rows(time, lambda values: ~((values > 0) & values.isfinite()))
        check_rows(
            "invalid_time",
            wrong,
            targets,
            where,
            start,
            "a finite time > 0",
            "Correct the list, or leave that record out",
        )
        wrong = in_rows(event, lambda values: (values != 0) & (values != 1))
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
        """Whether the event came."""
        return targets[:, 1].long()

    @property
    def stratum_names(self) -> tuple[str, ...]:
        """Without and with the event."""
        return ("no event", "event")

    def teaches(self, targets: torch.Tensor) -> bool:
        """Whether there is an event, and someone to compare it with."""
        return len(targets) >= self.smallest_batch and has_events(targets)

    def default_loss(self) -> nn.Module:
        """Minus the logarithm of Cox's partial likelihood, with ties as by Efron."""
        return CoxLoss()

    def predictions(self, outputs: torch.Tensor) -> torch.Tensor:
        """The risks (N, 1)."""
        return outputs

    def prediction_columns(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return risk and unit, whatever the columns of the targets are called."""
        return ("risk", "unit")

    @property
    def unit(self) -> str:
        """Unit of the risk."""
        return "log of the hazard relative to other cases of this model"

    def columns(self, metrics: Sequence[str]) -> tuple[str, ...]:
        """risk."""
        return ("risk",)

    @property
    def target_columns(self) -> tuple[str, ...]:
        """time, event."""
        return ("time", "event")

    def groups(self, judged: torch.Tensor, others: torch.Tensor) -> tuple[str, ...]:
        """Whether the risk is above the median risk of the others; of an even number the lower of the two medians."""
        return tuple(HIGHER if above else LOWER for above in (judged[:, 0] > others[:, 0].median()).tolist())
