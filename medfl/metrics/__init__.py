"""Scores of a classifier: one function in each file, all of one form.

A metric takes softmax probabilities (N, C), labels (N,) int64 and the number of classes C, and returns a float. It is
NaN where it is not defined, for example without images, and where a probability is NaN, as after a diverged training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from medfl.errors import SettingsError, did_you_mean
from medfl.metrics.accuracy import accuracy
from medfl.metrics.auc import auc
from medfl.metrics.balanced_accuracy import balanced_accuracy

Metric = Callable[[torch.Tensor, torch.Tensor, int], float]
"""``metric(probabilities, labels, num_classes)``."""

METRICS: dict[str, Metric] = {"accuracy": accuracy, "auc": auc, "balanced_accuracy": balanced_accuracy}
"""Name to metric; larger is better for each."""


def check_metrics(names: Iterable[str]) -> None:
    """Refuse a metric that does not exist.

    Raises:
        SettingsError: Naming the nearest known one.
    """
    for name in names:
        if name not in METRICS:
            raise SettingsError(f"Unknown metric '{name}'. {did_you_mean(name, METRICS)}")
