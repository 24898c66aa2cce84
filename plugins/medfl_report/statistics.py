"""Confidence intervals and significance tests: over the patients of a test set, over seeds, and over folds.

Images of one patient are resampled together. If patients are not known, each image counts as one patient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from statistics import NormalDist, fmean, stdev
from typing import Any

import numpy as np
import torch

ScoreFunction = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Function that computes a score under several weightings of the images, and returns a score for each, (B,).

Arguments: predictions (N, K) with K values for each of N images, targets (N, ...), and B weightings (N, B), float64.
"""

ROUNDING = 1e-12
"""Absolute differences of scores up to this value are rounding errors."""

CHUNK, WEIGHTS = 128, 2**20
"""Limits of memory. `CHUNK`: number of resamples drawn at once. `WEIGHTS`: number of image weights scored at once."""

LEVEL = 0.05
"""Significance level."""

EXCHANGES, EXHAUSTIVE = 1999, 10
"""Number of random exchanges of a test, and largest number n of patients for which all 2^n are computed instead."""

PROBES, TIE = 16, 1e-10
"""Number of exchanges that check whether a score is a sum over patients, and difference below which scores are tied."""


@dataclass(frozen=True)
class Interval:
    """A difference, or another number, with its confidence interval.

    Attributes:
        difference: Observed value.
        low: Lower end of the interval.
        high: Upper end of the interval.
    """

    difference: float
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        """True if 0 lies outside the interval by more than a rounding error."""
        return self.low > ROUNDING or self.high < -ROUNDING


def bootstrap(
    score: ScoreFunction,
    predictions: torch.Tensor,
    targets: torch.Tensor,
    seed: int = 0,
    resamples: int = 2000,
    level: float = 0.95,
    patients: torch.Tensor | None = None,
) -> Interval | None:
    """Return a score with a percentile bootstrap interval over the patients; None if the score is not defined.

    Patients are drawn with replacement, each with all images. Resamples without a defined score are left out.

    Source: Efron and Tibshirani 1993, An Introduction to the Bootstrap, section 13.3; for patients with several images
    Davison and Hinkley 1997, Bootstrap Methods and their Application, section 3.8.

    Args:
        score: Function that computes the score for given weights of the images.
        predictions: Predictions of each image, such as class probabilities, (N, K), floating.
        targets: Targets, (N, ...).
        seed: Seed of the resampling.
        resamples: Number of resamples, >= 1.
        level: Confidence level in (0, 1); the coverage is approximate for few patients.
        patients: Patient number of each image, (N,), int64; None if each image is of another patient.
    """
    value = float(score(predictions, targets, torch.ones(len(targets), 1, dtype=torch.float64))[0])
    if math.isnan(value):
        return None
    who = _patient_of_each_image(targets, patients)
    rng, units = np.random.default_rng(seed), int(who.max()) + 1
    with _one_thread():
        draws = (_draw(rng, units, min(CHUNK, resamples - done)) for done in range(0, resamples, CHUNK))
        together = max(1, WEIGHTS // (CHUNK * len(who)))
        batches = iter(lambda: tuple(islice(draws, together)), ())
        parts = [score(predictions, targets, torch.cat(batch, dim=1)[who]) for batch in batches]
    low, high = np.nanquantile(torch.cat(parts).numpy(), [(1 - level) / 2, (1 + level) / 2])
    return Interval(value, float(low), float(high))


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


@dataclass(frozen=True)
class ExchangeDistribution:
    """Differences of a score between two models on the same patients: observed, and after exchanges.

    An exchange swaps the two models' predictions for some of the patients, all images of a patient together.

    Attributes:
        observed: Difference without any exchange.
        patients: Number of patients, >= 1.
        values: Differences after B exchanges, (B,), float64: all 2^patients exchanges, or `EXCHANGES` random ones.
        exhaustive: True if `values` contains all exchanges.
    """

    observed: float
    patients: int
    values: np.ndarray
    exhaustive: bool

    @property
    def p(self) -> float:
        """Two-sided p-value of the hypothesis that the predictions of the two models are exchangeable.

        It is exact if all exchanges were computed. With random exchanges the observed difference counts as one of them
        (Phipson and Smyth 2010), so that the p-value is valid for any number of exchanges.
        """
        far = ~(np.abs(self.values) < abs(self.observed) - TIE)  # an undefined difference counts as far
        hits = int(far.sum())
        return hits / len(far) if self.exhaustive else (hits + 1) / (len(far) + 1)

    def draw(self, rng: np.random.Generator) -> np.ndarray:
        """Return `EXCHANGES` differences after random exchanges: drawn from `values` if `exhaustive`, else `values`."""
        return rng.choice(self.values, EXCHANGES) if self.exhaustive else self.values


def exchange_models(
    score: ScoreFunction,
    pairs: Sequence[tuple[torch.Tensor, torch.Tensor]],
    targets: torch.Tensor,
    patients: torch.Tensor | None = None,
    seed: int | Sequence[int] = 0,
    order_only: bool = False,
) -> ExchangeDistribution | None:
    """Compute a score's difference a - b, as a mean over pairs of models, under exchanges of their predictions.

    The null hypothesis is that the predictions of both models are exchangeable for each patient, so that neither model
    performs better. If the score is a mean over patients, an exchange flips the sign of the patient's difference.

    An AUC or a C-index compares a patient with others, so an exchange mixes the predictions of both models, which may
    be on different scales. For such scores the predictions of each model are standardised first. That is not exact:
    mean and variance are estimated from n patients, and the differences after exchanges vary somewhat too little. They
    are multiplied by sqrt(n / (n - 1.5)), a correction that was found by simulation
    (`tests/medfl_report/test_false_claims.py`). Ranks would be worse: if two models order nearly all patients alike, an
    exchange of one patient makes ties.

    Source: Fisher 1935, The Design of Experiments, section 21, for means; for areas under the ROC curve, but with
    ranks, Bandos, Rockette and Gur 2005, A permutation test sensitive to differences in areas for comparing ROC curves
    from a paired design.

    Args:
        score: Function that computes the score for given weights of the images.
        pairs: Predictions of both models, (N, K) each, floating, for each repetition, such as a seed. All repetitions
            have the same test images in the same order, and a patient is exchanged in all of them at once.
        targets: Targets, (N, ...).
        patients: Patient number of each image, (N,), int64; None if each image is of another patient.
        seed: Seed of the random exchanges. Tests that are combined later need different seeds.
        order_only: True if the score depends only on the ranking of a model's predictions.

    Returns:
        None if the score is not defined for all models.
    """
    who = _patient_of_each_image(targets, patients)
    units = int(who.max()) + 1 if len(who) else 0
    exhaustive = units <= EXHAUSTIVE
    if exhaustive:
        flips = torch.from_numpy((np.arange(2**units) >> np.arange(units)[:, None]) & 1)
    else:
        flips = torch.from_numpy(np.random.default_rng(seed).integers(2, size=(units, EXCHANGES), dtype=np.int8))
    observed, values = 0.0, np.zeros(flips.shape[1])
    with _one_thread():
        for pair in pairs:
            a, b = map(standardise, pair) if order_only else pair
            difference, exchanged = _exchanged(score, a, b, targets, who, flips)
            observed += difference / len(pairs)
            values += exchanged / len(pairs)
    if math.isnan(observed):
        return None
    scale = math.sqrt(units / max(units - 1.5, 0.5)) if order_only else 1.0
    return ExchangeDistribution(observed, units, scale * values, exhaustive)


def _exchanged(
    score: ScoreFunction,
    a: torch.Tensor,
    b: torch.Tensor,
    targets: torch.Tensor,
    who: torch.Tensor,
    flips: torch.Tensor,
) -> tuple[float, np.ndarray]:
    """Return the difference of a pair of models, and the differences after the exchanges.

    Most scores are additive: each patient adds its own effect to the difference, and an exchange reverses the sign of
    the effect. That holds for means over cases or classes, and also for an AUC or a C-index, since the joint
    contribution of two patients is the same for both models. Then the effects, which are a gradient, give all
    differences without scoring every exchange.

    Args:
        score: As in `exchange_models`.
        a: Predictions of the first model, (N, K).
        b: Predictions of the second model, (N, K).
        targets: Targets, (N, ...).
        who: Patient of each image, from 0, (N,), int64.
        flips: Exchanges, (patients, B): 1 if an exchange swaps the patient.
    """
    both, twice = torch.cat([a, b]), torch.cat([targets, targets])

    def differences(signs: torch.Tensor) -> torch.Tensor:
        """Return the differences after exchanges with signs (patients, B): -1 swaps a patient, 0 mixes both models."""
        ours = torch.cat([1 + signs[who], 1 - signs[who]]) / 2
        return score(both, twice, ours) - score(both, twice, 1 - ours)

    signs = 1 - 2 * flips.double()
    observed, *probed = differences(torch.cat([torch.ones_like(signs[:, :1]), signs[:, :PROBES]], dim=1))
    mixed = torch.zeros(len(signs), 1, dtype=torch.float64, requires_grad=True)
    middle = differences(mixed)
    if middle.requires_grad and not math.isnan(float(observed)):
        (effects,) = torch.autograd.grad(middle.sum(), mixed)
        computed = torch.stack([observed, *probed])
        expected = torch.cat([effects.sum(0), (effects.T @ signs[:, :PROBES])[0]])
        if torch.allclose(expected, computed, rtol=0, atol=TIE):
            return float(observed), (effects.T @ signs)[0].numpy()
    parts = signs.split(max(1, WEIGHTS // (2 * len(who))), dim=1)
    return float(observed), torch.cat([differences(part) for part in parts]).numpy()


def mean_exchange(parts: Sequence[tuple[float, ExchangeDistribution]], seed: int = 0) -> ExchangeDistribution:
    """Combine the exchanges of separate groups of patients, such as sites, each with a weight.

    Args:
        parts: At least one pair (weight, exchanges); random exchanges must have been drawn with different seeds.
        seed: Seed of the random exchanges.
    """
    observed = math.fsum(weight * part.observed for weight, part in parts)
    patients = sum(part.patients for _, part in parts)
    if patients <= EXHAUSTIVE and all(part.exhaustive for _, part in parts):
        values = np.zeros(1)
        for weight, part in parts:
            values = np.add.outer(values, weight * part.values).ravel()
        return ExchangeDistribution(observed, patients, values, exhaustive=True)
    rng = np.random.default_rng(seed)
    values = np.sum([weight * part.draw(rng) for weight, part in parts], axis=0)
    return ExchangeDistribution(observed, patients, values, exhaustive=False)


def can_decide(patients: int) -> bool:
    """Return whether a test over that many patients can reach the significance level `LEVEL`.

    With n patients, at best 2 of the 2^n exchanges have the largest difference, so that p >= 2^(1 - n).
    """
    return 2.0 ** (1 - patients) <= LEVEL


def combine_p(values: Sequence[float]) -> float:
    """Combine p-values of tests that may share patients in an unknown way: twice their mean, at most 1.

    Source: Rueschendorf 1982, Random variables with maximum sums; Vovk and Wang 2020, Combining p-values via averaging.

    Args:
        values: At least one p-value; a single p-value is returned unchanged.
    """
    return values[0] if len(values) == 1 else min(1.0, 2 * fmean(values))


def standardise(scores: torch.Tensor) -> torch.Tensor:
    """Return scores with mean 0 and variance 1 in each column, so that two models share a scale; the order is kept.

    Args:
        scores: Scores, (N, C), floating, without NaN. Scores in [0, 1], such as probabilities, become logits first.
    """
    scores = scores.double()
    if len(scores) and float(scores.min()) >= 0 and float(scores.max()) <= 1:
        scores = scores.logit()
        finite = scores[scores.isfinite()]
        ends = (float(finite.min()) - 1, float(finite.max()) + 1) if len(finite) else (-1.0, 1.0)
        scores = scores.clamp(*ends)
    centred = scores - scores.mean(dim=0)
    spread = (centred**2).mean(dim=0).sqrt()
    return centred / torch.where(spread > 0, spread, 1.0)


def _patient_of_each_image(targets: torch.Tensor, patients: torch.Tensor | None) -> torch.Tensor:
    """Return the patient number of each image, from 0, (N,), int64; without patients each image is one patient."""
    return torch.arange(len(targets)) if patients is None else patients.unique(return_inverse=True)[1]


@contextmanager
def _one_thread() -> Iterator[None]:
    """Limit torch to one thread within the block: threads slow many small operations down."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _draw(rng: np.random.Generator, units: int, size: int) -> torch.Tensor:
    """Draw resamples; return how often each patient is in each, (units, size), float64, with column sums `units`."""
    drawn = rng.integers(units, size=(units, size)) * size + np.arange(size)
    counts = np.bincount(drawn.ravel(), minlength=units * size).reshape(units, size)
    return torch.from_numpy(counts.astype(np.float64))


def wilson(correct: float, n: float, level: float = 0.95) -> tuple[float, float]:
    """Return the Wilson interval (low, high) of a proportion, such as an accuracy, for any n and proportion.

    Source: Wilson 1927, Probable Inference, the Law of Succession, and Statistical Inference.

    Args:
        correct: Number of correct images, 0 to `n`.
        n: Number of images, or effective sample size; 0 gives the interval (0, 1).
        level: Confidence level in (0, 1).
    """
    if not n:
        return 0.0, 1.0
    z = NormalDist().inv_cdf((1 + level) / 2)
    share, shrink = correct / n, 1 + z**2 / n
    centre = (share + z**2 / (2 * n)) / shrink
    half = z / shrink * math.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    return max(0.0, centre - half), min(1.0, centre + half)


def wilson_over_patients(right: torch.Tensor, patients: torch.Tensor | None) -> tuple[float, float]:
    """Return the interval of `wilson` for several images of one patient.

    The effective sample size is the number of images divided by the design effect: the variance of the proportion
    relative to as many patients with one image each, at least 1. If all images are correct, or none is, the
    effective sample size is the number of patients.

    Source: Korn and Graubard 1998, Confidence intervals for proportions with small expected number of positive counts
    estimated from survey data; for Wilson's interval Dean and Pagano 2015, Evaluating confidence interval methods for
    binomial proportions in clustered surveys.

    Args:
        right: True for each correct image, (N,), bool.
        patients: Patient number of each image, (N,), int64; None if each image is of another patient.
    """
    n, correct = len(right), int(right.sum())
    if patients is None or not n:
        return wilson(correct, n)
    who = patients.unique(return_inverse=True)[1]
    units, share = int(who.max()) + 1, correct / n
    if correct in (0, n):
        return wilson(share * units, units)
    sums = torch.zeros(units, dtype=torch.float64).index_add_(0, who, right.double() - share)
    effect = max(1.0, float((sums**2).sum()) / (n * share * (1 - share)))
    return wilson(correct / effect, n / effect)


def mean_std(values: Sequence[float]) -> tuple[float, float | None]:
    """Return the mean and the standard deviation (ddof = 1); the latter is None for a single value.

    Args:
        values: At least one value, for example one for each seed.
    """
    return fmean(values), stdev(values) if len(values) > 1 else None


def paired_t(differences: Sequence[float], level: float = 0.95, folds: int | None = None) -> Interval | None:
    """Return the mean of paired differences, or of scores, with its interval by Student's t, for example over seeds.

    Over K folds any two training sets share images, so the variance of the mean is not s^2 / n but about
    s^2 (1 / n + r), where r = 1 / (K - 1) is the size of a test set divided by the number of all other images.

    Source: Nadeau and Bengio 2003, Inference for the generalization error; for several cross-validations Bouckaert and
    Frank 2004, Evaluating the replicability of significance tests.

    Args:
        differences: One difference for each pair.
        level: Confidence level in (0, 1).
        folds: Number of folds K, >= 2, if the pairs are folds of one or several cross-validations; else None.

    Returns:
        The interval; None if the spread is not known: for fewer than two differences, and if all are the same, as can
        happen with few seeds and few images.
    """
    if len(differences) < 2 or max(differences) - min(differences) <= ROUNDING:
        return None
    from scipy.stats import t

    mean = fmean(differences)
    share = 1 / len(differences) + (0.0 if folds is None else 1 / (folds - 1))
    half = float(t.ppf((1 + level) / 2, len(differences) - 1)) * stdev(differences) * math.sqrt(share)
    return Interval(mean, mean - half, mean + half)


HEADER = ("p (t)", "p (corrected t)", "p (Wilcoxon)")
"""Column heads of the tests in Markdown tables, in the order of the attributes of `PairedTests`."""


@dataclass(frozen=True)
class PairedTests:
    """Two-sided p-values of tests of a zero difference; NaN if a test is not defined.

    Attributes:
        t: Paired t test.
        corrected: Paired t test with the corrected variance for folds, whose training data overlap (see `paired_t`).
        wilcoxon: Wilcoxon's signed-rank test.
    """

    t: float
    corrected: float
    wilcoxon: float


def paired_tests(differences: Sequence[float], folds: int | None) -> PairedTests:
    """Test paired differences over the folds of one or several cross-validations.

    Args:
        differences: One difference for each pair.
        folds: Number of folds K, >= 2; None if the pairs are not of several folds, which gives NaN for all tests.
    """
    n = len(differences)
    if n < 2 or folds is None:
        return PairedTests(math.nan, math.nan, math.nan)
    wilcoxon = signed_rank(differences)
    if max(differences) - min(differences) <= ROUNDING:
        return PairedTests(math.nan, math.nan, wilcoxon)
    from scipy.stats import t as student

    plain, shared = (
        2 * float(student.sf(abs(fmean(differences)) / (stdev(differences) * math.sqrt(variance)), n - 1))
        for variance in (1 / n, 1 / n + 1 / (folds - 1))
    )
    return PairedTests(plain, shared, wilcoxon)


def signed_rank(differences: Sequence[float]) -> float:
    """Return the two-sided p-value of Wilcoxon's signed-rank test, exact for any number of pairs, also with ties.

    Differences of 0 are left out. With n others the p-value is at least 2^(1 - n). scipy uses a normal approximation
    if there are ties, which is wrong for few pairs. Source: Wilcoxon 1945, Individual comparisons by ranking methods.

    Args:
        differences: One difference for each pair.

    Returns:
        The p-value in (0, 1]; NaN if all differences are 0.
    """
    moved = np.round([value for value in differences if abs(value) > ROUNDING], 12)
    if not len(moved):
        return math.nan
    from scipy.stats import rankdata

    ranks = np.rint(2 * rankdata(np.abs(moved))).astype(np.int64)  # twice the ranks: ties have halves
    shares = np.zeros(ranks.sum() + 1)  # share of all sign patterns by their sum of positive ranks
    shares[0] = 1.0
    for rank in ranks:
        shares = (shares + np.concatenate([np.zeros(rank), shares[:-rank]])) / 2
    positive = int(ranks[moved > 0].sum())
    return min(1.0, 2 * float(shares[: min(positive, len(shares) - 1 - positive) + 1].sum()))


def explain(pairs: int) -> str:
    """Return sentences that explain the columns of `HEADER`, for rows of at most `pairs` >= 2 pairs."""
    return (
        "Each run of a seed and a fold counts as one. Folds share training images: the interval, the effect and "
        "p (corrected t) account for that with the variance of Nadeau and Bengio (2003); p (t) does not and is too "
        f"small. p (Wilcoxon): exact signed-rank test; with {pairs} pairs it cannot be below "
        f"{2.0 ** (1 - pairs):.4g}."
    )
