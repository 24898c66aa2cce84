"""What tables and reports ask of an objective."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch

from medfl.errors import ContractError

GROUP = "group"
"""The column of `Shown.groups` in a file of predictions."""


THRESHOLD = 0.5
"""Probability from which a finding counts as present."""


def as_cell(value: float) -> str:
    """Return a number as text with nine significant digits."""
    return f"{value:.9g}"


def output_name(names: Sequence[str], number: int) -> str:
    """Return the name of a class or output; its number if it has no name."""
    return names[number] if number < len(names) else str(number)


class Shown(ABC):
    """How the cases of an objective stand in a file of predictions, and what a report makes of them."""

    name: ClassVar[str]
    """Of the objective."""

    headline: ClassVar[tuple[str, ...]]
    """Metrics that a report sets side by side, after the first one of the task, where a run has them."""

    pipeline: ClassVar[str] = "other"
    """End of the pipeline tag of Hugging Face for such models, for example ``classification``."""

    figures: ClassVar[tuple[str, ...]] = ()
    """What a report draws from predictions: sections look for their own word."""

    has_groups: ClassVar[bool] = False
    """Whether cases are shown in groups, by what their model says of other cases (`groups`)."""

    @abstractmethod
    def columns(self, metrics: Sequence[str]) -> tuple[str, ...]:
        """The names of the K columns of `Objective.judged`, for tables."""

    def prediction_columns(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return the headings of `prediction_cells`; by default one per output, and the unit.

        Args:
            names: Names of the outputs; of another number than there are outputs, the names of `columns` are used.
        """
        columns = self.columns(())
        return (*(names if len(names) == len(columns) else columns), "unit")

    def prediction_cells(self, predictions: torch.Tensor, names: Sequence[str]) -> list[str]:
        """Return the cells of one case in the file that a bundle's inference writes.

        Args:
            predictions: Predicted numbers of the case, (K,), from `Objective.predictions`.
            names: As in `prediction_columns`.
        """
        return [*map(as_cell, predictions.tolist()), self.unit]

    @property
    def unit(self) -> str:
        """Unit of the predicted numbers."""
        return "that of the training targets"

    @property
    def target_columns(self) -> tuple[str, ...]:
        """The names of a target's numbers in tables; none for masks."""
        return ("label",)

    @property
    def kept_columns(self) -> tuple[str, ...]:
        """The names of the columns of `Objective.kept` in tables; by default those of targets."""
        return self.target_columns

    def gave_numbers(self, judged: torch.Tensor) -> bool:
        """Whether a model gave a number for every case, as it does unless its training diverged.

        Args:
            judged: (N, K), from `Objective.judged`.
        """
        return not bool(torch.isnan(judged).any())

    def groups(self, judged: torch.Tensor, others: torch.Tensor) -> tuple[str, ...]:
        """The group of each case.

        Args:
            judged: (N, K), from `Objective.judged`.
            others: (M, K), the same of other cases under the same model, M >= 1.

        Raises:
            ContractError: If there are no groups (`has_groups`).
        """
        raise ContractError(
            "objective_not_supported",
            f"Expected an objective with groups, got '{self.name}'.",
            objective=self.name,
            expected="groups",
        )

    def masks(self, outputs: torch.Tensor) -> torch.Tensor:
        """What outputs take each voxel for: (N, L, *spatial), bool.

        Raises:
            ContractError: If cases have no masks.
        """
        raise ContractError(
            "objective_not_supported",
            f"Expected an objective with masks, got '{self.name}'.",
            objective=self.name,
            expected="masks",
        )

    def references(self, targets: torch.Tensor) -> torch.Tensor:
        """Targets as masks: (N, L, *spatial), bool.

        Raises:
            ContractError: If cases have no masks.
        """
        raise ContractError(
            "objective_not_supported",
            f"Expected an objective with masks, got '{self.name}'.",
            objective=self.name,
            expected="masks",
        )
