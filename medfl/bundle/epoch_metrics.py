"""medfl's metrics for MONAI's evaluators, so that a bundle's own evaluation gives the numbers of a federation."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from ignite.metrics import EpochMetric
from monai.handlers import from_engine

from medfl.metrics import METRICS, check_metrics


def epoch_metrics(names: Sequence[str], num_classes: int) -> dict[str, EpochMetric]:
    """One metric over all images of an epoch for each name, in the order given.

    Args:
        names: Of metrics in `medfl.metrics`.
        num_classes: Number of classes.

    Raises:
        SettingsError: If a name is unknown.
    """
    check_metrics(names)
    return {name: _epoch_metric(name, num_classes) for name in names}


def _epoch_metric(name: str, num_classes: int) -> EpochMetric:
    def compute(logits: torch.Tensor, labels: torch.Tensor) -> float:
        return METRICS[name](logits.float().softmax(dim=1), labels, num_classes)

    return EpochMetric(compute, output_transform=from_engine(["pred", "label"]), check_compute_fn=False)
