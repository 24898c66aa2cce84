"""Decision curves: net benefit of acting on a model's probability, at every threshold that a clinic may use.

The net benefit at the threshold t is the share of true positives minus t / (1 - t) times the share of false positives:
someone who acts at the probability t counts a missed case as bad as (1 - t) / t needless actions.

Source: Vickers and Elkin 2006, Decision curve analysis: a novel method for evaluating prediction models.
"""

from __future__ import annotations

import numpy as np


def net_benefit(probabilities: np.ndarray, present: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """Return the net benefit of acting at and above each of T thresholds, (T,); at most the prevalence.

    Args:
        probabilities: Probabilities of the class, (N,), N >= 1.
        present: True for each case of the class, (N,), bool.
        thresholds: Thresholds in [0, 1), (T,).
    """
    with_class, without = np.sort(probabilities[present]), np.sort(probabilities[~present])
    true_positives = len(with_class) - np.searchsorted(with_class, thresholds)
    false_positives = len(without) - np.searchsorted(without, thresholds)
    return np.asarray((true_positives - thresholds / (1 - thresholds) * false_positives) / len(present))


def net_benefit_of_all(present: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """Return the net benefit of acting for every case, (T,); acting for no case has the net benefit 0."""
    prevalence = float(present.mean())
    return np.asarray(prevalence - thresholds / (1 - thresholds) * (1 - prevalence))
