"""Metrics in plain words."""

from __future__ import annotations

WORDS = {
    "accuracy": ("accuracy", "share of the images that are recognised"),
    "balanced_accuracy": ("balanced accuracy", "accuracy in which every class counts the same, however rare"),
    "auc": ("AUC", "chance that an image of a class is ranked above one of another class; 0.5 is guessing, 1 is best"),
    "ece": ("calibration error", "how far the model's confidence is from its accuracy (ECE); lower is better"),
    "precision": ("precision", "of the images that are taken for a class, the share that are of it"),
    "recall": ("recall", "of the images of a class, the share that are recognised (sensitivity)"),
    "specificity": ("specificity", "of the images of other classes, the share that are not taken for the class"),
    "f1": ("F1", "harmonic mean of precision and recall"),
}
"""Name of a metric to how it is called, and what it says."""


def metric_words(metric: str) -> str:
    """How a metric is called in a sentence."""
    return WORDS[metric][0] if metric in WORDS else metric


def metric_meaning(metric: str) -> str:
    """What a metric says, as the rest of a sentence; empty for one that is not known here."""
    return WORDS[metric][1] if metric in WORDS else ""
