"""Bootstrap over patients: resamples of patients with all their images, and BCa intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import NormalDist
from typing import Any

import numpy as np
import torch

from medfl_report.statistics import students_t, weighted_scores
from medfl_report.statistics.intervals import Interval
from medfl_report.statistics.weighted_scores import ScoreFunction, one_thread, patient_of_each_image

CHUNK = 128
"""Number of resamples drawn at once."""

MAX_PARTS = 400
"""Largest number of jackknife parts; more patients are left out in groups of equal size."""

NORMAL = NormalDist()


@dataclass(frozen=True)
class PatientBootstrap:
    """A score, or a difference of scores, with its values in resamples of the patients.

    Attributes:
        observed: Value for the observed patients.
        patients: Number of patients, >= 1.
        values: Values in B resamples, (B,), float64; NaN where the score is not defined.
        influences: Contribution of each jackknife part (a patient, or a group of patients) to the value, relative to
            the mean of the parts, (parts,), float64; NaN where the score is not defined without the part.
    """

    observed: float
    patients: int
    values: np.ndarray
    influences: np.ndarray

    @property
    def bias(self) -> float:
        """Bias correction z0: normal quantile of the share of resamples below the observed value; ties count half."""
        values = self.values[~np.isnan(self.values)]
        below = ((values < self.observed).sum() + (values <= self.observed).sum()) / 2
        return _quantile_of(below / len(values), len(values))

    @property
    def acceleration(self) -> float:
        """Acceleration a: a sixth of the skewness of the influences; 0 if these are all equal."""
        influences = self.influences[~np.isnan(self.influences)]
        spread = float((influences**2).sum())
        return float((influences**3).sum()) / (6 * spread**1.5) if spread > 0 else 0.0

    def interval(self, level: float = 0.95) -> Interval:
        """Return the BCa interval.

        Args:
            level: Confidence level in (0, 1); the coverage is approximate for few patients.
        """
        ends = []
        for tail in ((1 - level) / 2, (1 + level) / 2):
            z = self.bias + NORMAL.inv_cdf(tail)
            ends.append(NORMAL.cdf(self.bias + z / (1 - self.acceleration * z)))
        low, high = np.nanquantile(self.values, ends)
        return Interval(self.observed, float(low), float(high))

    @property
    def p(self) -> float:
        """Two-sided p-value of the value 0, for many patients: the larger of two.

        One is the level at which an end of the BCa interval is 0; it is left out if all resamples are on one side of 0.
        The other is Student's t test with the jackknife's variance. The random error of the resamples makes the first
        one alone claim too much.
        """
        if self.variance == 0:
            return 1.0
        values = self.values[~np.isnan(self.values)]
        share = ((values < 0).sum() + (values <= 0).sum()) / 2 / len(values)
        if share in (0, 1):
            return self.jackknife_p
        z = _quantile_of(share, len(values)) - self.bias
        tail = NORMAL.cdf(z / (1 + self.acceleration * z) - self.bias)
        return max(self.jackknife_p, min(1.0, 2 * min(tail, 1 - tail)))

    @property
    def jackknife_p(self) -> float:
        """Two-sided p-value of the value 0 by Student's t test with the jackknife's variance; 1 without variance."""
        if self.variance == 0:
            return 1.0
        return students_t.two_sided_p(self.observed / math.sqrt(self.variance), max(self.patients - 1, 1))

    @property
    def variance(self) -> float:
        """Variance of the value from the choice of patients, by the jackknife."""
        influences = self.influences[~np.isnan(self.influences)]
        return float((influences**2).sum()) * len(influences) / max(len(influences) - 1, 1)


def mean_bootstrap(parts: Sequence[tuple[float, PatientBootstrap]]) -> PatientBootstrap:
    """Combine the bootstraps of separate groups of patients, such as sites, each with a weight.

    Args:
        parts: At least one pair (weight, bootstrap); all have the same number of resamples, from different seeds.
    """
    return PatientBootstrap(
        observed=math.fsum(weight * part.observed for weight, part in parts),
        patients=sum(part.patients for _, part in parts),
        values=np.sum([weight * part.values for weight, part in parts], axis=0),
        influences=np.concatenate([weight * part.influences for weight, part in parts]),
    )


def _quantile_of(share: float, size: int) -> float:
    """Return the normal quantile of a share of resamples; 0 and 1 are replaced by half a resample inside."""
    return NORMAL.inv_cdf(min(max(share, 0.5 / size), 1 - 0.5 / size))


def resample_patients(
    score: ScoreFunction,
    predictions: torch.Tensor,
    targets: torch.Tensor,
    seed: int | Sequence[int] = 0,
    resamples: int = 2000,
    patients: torch.Tensor | None = None,
) -> PatientBootstrap | None:
    """Compute a score in resamples of the patients, and without each patient; None if the score is not defined.

    Patients are drawn with replacement, each with all images.

    Source: Efron 1987, Better bootstrap confidence intervals; Efron and Tibshirani 1993, An Introduction to the
    Bootstrap, section 14.3; for patients with several images Davison and Hinkley 1997, Bootstrap Methods and their
    Application, section 3.8.

    Args:
        score: Function that computes the score for given weights of the images.
        predictions: Predictions of each image, such as class probabilities, (N, K), floating.
        targets: Targets, (N, ...).
        seed: Seed of the resampling. Bootstraps that are combined later need different seeds.
        resamples: Number of resamples; with 0, only the jackknife is computed, so there is no interval.
        patients: Patient number of each image, (N,), int64; None if each image is of another patient.
    """
    value = float(score(predictions, targets, torch.ones(len(targets), 1, dtype=torch.float64))[0])
    if math.isnan(value):
        return None
    who = patient_of_each_image(targets, patients)
    rng, units = np.random.default_rng(seed), int(who.max()) + 1
    with one_thread():
        draws = (_draw(rng, units, min(CHUNK, resamples - done)) for done in range(0, resamples, CHUNK))
        together = max(1, weighted_scores.WEIGHTS // (CHUNK * len(who)))
        batches = iter(lambda: tuple(islice(draws, together)), ())
        scores = [score(predictions, targets, torch.cat(batch, dim=1)[who]) for batch in batches]
        values = torch.cat([torch.zeros(0, dtype=torch.float64), *scores])
        left_out = torch.arange(units) % min(units, MAX_PARTS)
        kept = (left_out[:, None] != torch.arange(min(units, MAX_PARTS))).double()
        pieces = kept.split(max(1, weighted_scores.WEIGHTS // len(who)), dim=1)
        without = torch.cat([score(predictions, targets, piece[who]) for piece in pieces]).numpy()
    return PatientBootstrap(value, units, values.numpy(), _influences(without))


def resample_differences(
    score: ScoreFunction,
    pairs: Sequence[tuple[torch.Tensor, torch.Tensor]],
    targets: torch.Tensor,
    patients: torch.Tensor | None = None,
    seed: int | Sequence[int] = 0,
    resamples: int = 2000,
) -> PatientBootstrap | None:
    """Compute a score's difference a - b, as a mean over pairs of models, in resamples of the patients.

    Args:
        score: Function that computes the score of one model.
        pairs: Predictions of both models, (N, K) each, floating, for each repetition, such as a seed. All repetitions
            have the same test images in the same order, and a resample draws the same patients for all of them.
        targets: Targets, (N, ...).
        patients: Patient number of each image, (N,), int64; None if each image is of another patient.
        seed: Seed of the resampling. Bootstraps that are combined later need different seeds.
        resamples: Number of resamples, as in `resample_patients`.

    Returns:
        None if the score is not defined for all models.
    """
    size = pairs[0][0].shape[1]
    together = torch.cat([side for pair in pairs for side in pair], dim=1)

    def mean_difference(columns: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        sides = [score(side, targets, weights) for side in columns.split(size, dim=1)]
        return torch.stack([a - b for a, b in zip(sides[::2], sides[1::2], strict=True)]).mean(dim=0)

    return resample_patients(mean_difference, together, targets, seed, resamples, patients)


def _influences(without: np.ndarray) -> np.ndarray:
    """Return the contribution of each part from the scores without it; zeros if no such score is defined."""
    defined = without[~np.isnan(without)]
    if not len(defined):
        return np.zeros(len(without))
    return (defined.mean() - without) * (len(without) - 1) / len(without)


def bootstrap(
    score: ScoreFunction,
    predictions: torch.Tensor,
    targets: torch.Tensor,
    seed: int = 0,
    resamples: int = 2000,
    level: float = 0.95,
    patients: torch.Tensor | None = None,
) -> Interval | None:
    """Return a score with its BCa bootstrap interval over the patients; None if the score is not defined.

    Resamples without a defined score are left out. See `resample_patients` for the method.

    Args:
        score: Function that computes the score for given weights of the images.
        predictions: Predictions of each image, such as class probabilities, (N, K), floating.
        targets: Targets, (N, ...).
        seed: Seed of the resampling.
        resamples: Number of resamples, >= 1.
        level: Confidence level in (0, 1); the coverage is approximate for few patients.
        patients: Patient number of each image, (N,), int64; None if each image is of another patient.
    """
    resampled = resample_patients(score, predictions, targets, seed, resamples, patients)
    return None if resampled is None else resampled.interval(level)


def paired_bootstrap(
    score: ScoreFunction,
    predictions_a: torch.Tensor,
    predictions_b: torch.Tensor,
    targets: torch.Tensor,
    **options: Any,
) -> Interval | None:
    """Return the difference a - b of a score between two models, with its bootstrap interval over the patients.

    Both models are scored on the same resamples, so that the difficulty of an image cancels. The interval is about
    these two trained models and not about the methods that trained them: another seed gives other models.

    Args:
        score: Function that computes the score for given weights of the images.
        predictions_a: Predictions of the first model, (N, K), floating.
        predictions_b: Predictions of the second model, (N, K), floating, for the same images in the same order.
        targets: Targets, (N, ...).
        **options: Further arguments of `bootstrap`.

    Returns:
        The interval; None if the score is not defined for both models.
    """
    size = predictions_a.shape[1]

    def difference(both: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return score(both[:, :size], targets, weights) - score(both[:, size:], targets, weights)

    return bootstrap(difference, torch.cat([predictions_a, predictions_b], dim=1), targets, **options)


def _draw(rng: np.random.Generator, units: int, size: int) -> torch.Tensor:
    """Draw resamples; return how often each patient is in each, (units, size), float64, with column sums `units`."""
    drawn = rng.integers(units, size=(units, size)) * size + np.arange(size)
    counts = np.bincount(drawn.ravel(), minlength=units * size).reshape(units, size)
    return torch.from_numpy(counts.astype(np.float64))
