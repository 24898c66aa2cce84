"""medfl's metrics for MONAI's evaluators, so that a bundle's own evaluation gives the same scores as a federation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from ignite.metrics import EpochMetric
from monai.handlers import from_engine

from medfl.objectives import Objective


def epoch_metrics(names: Sequence[str], objective: Objective) -> dict[str, EpochMetric]:
    """Return a metric over all cases of an epoch for each name, in the order of `names`.

    Args:
        names: Names of metrics in `medfl.metrics`.
        objective: Objective of the task.

    Raises:
        SettingsError: If the objective has no metric of a name.
    """
    objective.check_metrics(names)
    return {name: _epoch_metric(name, objective) for name in names}


def _epoch_metric(name: str, objective: Objective) -> EpochMetric:
    """Return one metric. It keeps only the values that the score needs, which are small even if outputs are masks."""
    read = from_engine(["pred", "label"])

    def score_inputs(output: Any) -> tuple[torch.Tensor, torch.Tensor]:
        outputs, targets = read(output)
        return objective.scoring_inputs(outputs.float(), targets, [name]), objective.scoring_targets(targets)

    def compute(rows: torch.Tensor, targets: torch.Tensor) -> float:
        rows = rows.unsqueeze(1) if rows.dim() == 1 else rows  # ignite drops an axis of length 1
        if targets.dim() == 1 and not objective.has_class_labels:
            targets = targets.unsqueeze(1)
        return objective.score(name, rows, targets)

    return EpochMetric(compute, output_transform=score_inputs, check_compute_fn=False)
