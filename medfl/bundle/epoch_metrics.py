"""medfl's metrics for MONAI's evaluators, so that a bundle's own evaluation gives the numbers of a federation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from ignite.metrics import EpochMetric
from monai.handlers import from_engine

from medfl.objectives import Objective


def epoch_metrics(names: Sequence[str], objective: Objective) -> dict[str, EpochMetric]:
    """One metric over all images of an epoch for each name, in the order given.

    Args:
        names: Of metrics in `medfl.metrics`.
        objective: What is learned.

    Raises:
        SettingsError: If a name is unknown.
    """
    objective.check_metrics(names)
    return {name: _epoch_metric(name, objective) for name in names}


def _epoch_metric(name: str, objective: Objective) -> EpochMetric:
    read = from_engine(["pred", "label"])

    def judged(output: Any) -> tuple[torch.Tensor, torch.Tensor]:
        outputs, targets = read(output)  # what is judged is small, even where outputs are masks
        return objective.judged(outputs.float(), targets, [name]), objective.kept(targets)

    def compute(rows: torch.Tensor, targets: torch.Tensor) -> float:
        rows = rows.unsqueeze(1) if rows.dim() == 1 else rows  # ignite drops an axis of one channel
        if targets.dim() == 1 and not objective.has_class_labels:
            targets = targets.unsqueeze(1)
        return objective.score(name, rows, targets)

    return EpochMetric(compute, output_transform=judged, check_compute_fn=False)
