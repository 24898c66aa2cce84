"""Random classifiers, and what scikit-learn says of them."""

from __future__ import annotations

import math

import numpy as np
import torch
from hypothesis import strategies as st
from sklearn import metrics


def case(n: int, classes: int, seed: int, ties: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities and labels; with few images some classes are absent."""
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (n,), generator=g)
    logits = torch.randn(n, classes, generator=g) + torch.nn.functional.one_hot(labels, classes)
    return (logits.round() if ties else logits).softmax(dim=1), labels


CASES = st.builds(
    lambda n, classes, seed, ties: (*case(n, classes, seed, ties), classes),
    n=st.integers(1, 60),
    classes=st.integers(2, 6),
    seed=st.integers(0, 10**6),
    ties=st.booleans(),
)


def reference(name: str, probabilities: torch.Tensor, labels: torch.Tensor, classes: int) -> float:
    """A metric by scikit-learn; nan where it is undefined."""
    truth, guess = labels.numpy(), probabilities.argmax(dim=1).numpy()
    if name == "accuracy":
        return float(metrics.accuracy_score(truth, guess))
    if name == "balanced_accuracy":
        return float(metrics.balanced_accuracy_score(truth, guess))
    if name == "ece":
        return _ece(probabilities.double().numpy(), truth, guess)
    values = [_one_class(name, truth == c, guess == c, probabilities[:, c].numpy()) for c in _scored(classes, truth)]
    if classes > 2:
        values = [value for value, c in zip(values, _scored(classes, truth), strict=True) if c in truth]
    defined = [value for value in values if not math.isnan(value)]
    return sum(defined) / len(defined) if defined else math.nan


def _scored(classes: int, truth: np.ndarray) -> list[int]:
    return [1] if classes == 2 else list(range(classes))


def _one_class(name: str, truth: np.ndarray, guess: np.ndarray, scores: np.ndarray) -> float:
    if name == "specificity":
        return math.nan if truth.all() else float(metrics.recall_score(~truth, ~guess, zero_division=0))
    if not truth.any():
        return math.nan
    if name == "auc":
        return math.nan if truth.all() else float(metrics.roc_auc_score(truth, scores))
    score = {"precision": metrics.precision_score, "recall": metrics.recall_score, "f1": metrics.f1_score}[name]
    return float(score(truth, guess, zero_division=0))


def _ece(probabilities: np.ndarray, truth: np.ndarray, guess: np.ndarray) -> float:
    confidence, total = probabilities.max(axis=1), 0.0
    for b in range(15):
        inside = (confidence > b / 15) & (confidence <= (b + 1) / 15)
        if inside.any():
            total += inside.mean() * abs((truth == guess)[inside].mean() - confidence[inside].mean())
    return total
