"""How sure a difference is: over the patients of a test set, over the seeds of a run, and over folds.

Images of one patient are alike, so they go together; where nobody knows patients, each image counts as one. Nothing
here looks at which result is wanted: an interval that holds 0 means that the data don't decide.
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

Score = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""A score (B,) of what models say (N, K), targets (N, ...), and B weightings of the images, (N, B), float64."""

ROUNDING = 1e-12
"""Below this a difference of scores is rounding."""

CHUNK, WEIGHTS = 128, 2**20
"""Resamples that are drawn at once, and weights that are scored at once, 8 MB, unless a chunk has more."""

LEVEL = 0.05
"""Largest p-value with which a difference is claimed."""

EXCHANGES, EXHAUSTIVE = 1999, 10
"""Random exchanges of a test; largest number of patients of which all 2^n exchanges are computed instead."""

PROBES, TIE = 16, 1e-10
"""Exchanges by which it is checked that a score is additive; differences of scores that are closer are ties."""


@dataclass(frozen=True)
class Interval:
    """A difference, or another number, with its confidence interval.

    Attributes:
        difference: As measured.
        low: Lower end of the interval.
        high: Upper end.
    """

    difference: float
    low: float
    high: float

    @property
    def decided(self) -> bool:
        """Whether 0 lies outside, by more than what rounding leaves over."""
        return self.low > ROUNDING or self.high < -ROUNDING


def bootstrap(
    score: Score,
    judged: torch.Tensor,
    targets: torch.Tensor,
    seed: int = 0,
    resamples: int = 2000,
    level: float = 0.95,
    patients: torch.Tensor | None = None,
) -> Interval | None:
    """A score with a percentile interval over the patients.

    Patients are drawn with replacement, each with all images. Resamples without a defined score are left out.

    Source: Efron and Tibshirani 1993, An Introduction to the Bootstrap, section 13.3; for patients with several images
    Davison and Hinkley 1997, Bootstrap Methods and their Application, section 3.8.

    Args:
        score: For any weights of the images.
        judged: (N, K), floating: what it needs to know of each image beside its target, such as probabilities.
        targets: (N, ...).
        seed: Of the draws.
        resamples: How many, >= 1.
        level: Share of the intervals that hold the true score, in (0, 1); approximate for few patients.
        patients: (N,), int64: numbers that images of one patient share; None if each image is of another patient.

    Returns:
        None where the score is not defined.
    """
    value = float(score(judged, targets, torch.ones(len(targets), 1, dtype=torch.float64))[0])
    if math.isnan(value):
        return None
    who = _patient_of_each_image(targets, patients)
    rng, units = np.random.default_rng(seed), int(who.max()) + 1
    with _one_thread():
        draws = (_draw(rng, units, min(CHUNK, resamples - done)) for done in range(0, resamples, CHUNK))
        together = max(1, WEIGHTS // (CHUNK * len(who)))
        batches = iter(lambda: tuple(islice(draws, together)), ())
        parts = [score(judged, targets, torch.cat(batch, dim=1)[who]) for batch in batches]
    low, high = np.nanquantile(torch.cat(parts).numpy(), [(1 - level) / 2, (1 + level) / 2])
    return Interval(value, float(low), float(high))


def paired_bootstrap(
    score: Score, judged_a: torch.Tensor, judged_b: torch.Tensor, targets: torch.Tensor, **options: Any
) -> Interval | None:
    """The difference a - b of a score between two models, with its interval over the patients.

    The same patients are drawn for both models, so what makes an image hard for both cancels. The interval is about
    these two models, not about the methods that made them: another seed gives other models. None where the score is
    not defined for both.

    Args:
        score: As for `bootstrap`, like `targets` and the options.
        judged_a: (N, K), floating, of the one model.
        judged_b: (N, K), floating, of the other, for the same images in the same order.

    """
    size = judged_a.shape[1]

    def difference(both: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return score(both[:, :size], targets, weights) - score(both[:, size:], targets, weights)

    return bootstrap(difference, torch.cat([judged_a, judged_b], dim=1), targets, **options)


@dataclass(frozen=True)
class Exchange:
    """Differences of a score between two models on the same patients: as observed, and after exchanges.

    An exchange swaps the two models' predictions for some of the patients, all images of a patient together.

    Attributes:
        observed: The difference of the score without any exchange.
        patients: Number of patients, >= 1.
        values: (B,), float64: the differences after all 2^patients exchanges, or after `EXCHANGES` random ones.
        exhaustive: Whether `values` has all exchanges.
    """

    observed: float
    patients: int
    values: np.ndarray
    exhaustive: bool

    @property
    def p(self) -> float:
        """Two-sided p-value of the hypothesis that the two models' predictions can be exchanged.

        It is exact if all exchanges are there. With random ones the observed difference counts as one of them (Phipson
        and Smyth 2010), so that the p-value is valid for any number of them.
        """
        far = ~(np.abs(self.values) < abs(self.observed) - TIE)  # an undefined difference counts as far
        hits = int(far.sum())
        return hits / len(far) if self.exhaustive else (hits + 1) / (len(far) + 1)

    def draw(self, rng: np.random.Generator) -> np.ndarray:
        """Return `EXCHANGES` random differences."""
        return rng.choice(self.values, EXCHANGES) if self.exhaustive else self.values


def exchange_models(
    score: Score,
    pairs: Sequence[tuple[torch.Tensor, torch.Tensor]],
    targets: torch.Tensor,
    patients: torch.Tensor | None = None,
    seed: int | Sequence[int] = 0,
    order_only: bool = False,
) -> Exchange | None:
    """Compute a score's difference a - b, as a mean over pairs of models, under exchanges of their predictions.

    The hypothesis of the test is that, for each patient, the predictions of both models are exchangeable: that neither
    model does better. If the score is a mean over patients, an exchange flips the sign of the patient's difference.

    An AUC or a C-index compares a patient with others, so an exchange mixes the predictions of both models, which may
    be on different scales. For such scores the predictions of each model are standardised first. That is not exact:
    mean and variance are estimated from n patients, and the differences after exchanges vary somewhat too little. They
    are multiplied by sqrt(n / (n - 1.5)), a correction that was found by simulation
    (`tests/medfl_report/test_false_claims.py`). Ranks would be worse: where two models order nearly all patients alike,
    an exchange of one patient makes ties.

    Source: Fisher 1935, The Design of Experiments, section 21, for means; for areas under the ROC curve, but with
    ranks, Bandos, Rockette and Gur 2005, A permutation test sensitive to differences in areas for comparing ROC curves
    from a paired design.

    Args:
        score: A score, for any weights of the images.
        pairs: For each repetition, for example each seed, the predictions (N, K) of both models, floating. All
            repetitions have the same test images in the same order, and a patient is exchanged in all at once.
        targets: (N, ...).
        patients: (N,), int64: numbers that images of one patient share; None if each image is of another patient.
        seed: Seed of the random exchanges. Tests that are to be combined need different ones.
        order_only: Whether the score depends only on the order of a model's predictions.

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
    return Exchange(observed, units, scale * values, exhaustive)


def _exchanged(
    score: Score, a: torch.Tensor, b: torch.Tensor, targets: torch.Tensor, who: torch.Tensor, flips: torch.Tensor
) -> tuple[float, np.ndarray]:
    """Return the difference of a pair of models, and the differences after the exchanges.

    Most scores are additive: each patient adds an effect of its own to the difference, with the other sign if it is
    exchanged. That holds for means over cases or classes, and for an AUC or a C-index as well, since what two patients
    contribute jointly is the same for both models. Then the effects, which are a gradient, give all differences.

    Args:
        score: As in `exchange_models`, like `a`, `b` and `targets`.
        who: (N,), int64: the patient of each image, from 0.
        flips: (patients, B): 1 where an exchange swaps the patient.
    """
    both, twice = torch.cat([a, b]), torch.cat([targets, targets])

    def differences(signs: torch.Tensor) -> torch.Tensor:
        """The differences after exchanges given as signs (patients, B): -1 swaps a patient, 0 mixes both halves."""
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


def mean_exchange(parts: Sequence[tuple[float, Exchange]], seed: int = 0) -> Exchange:
    """Combine the exchanges of separate groups of patients, such as sites, each with a weight.

    Args:
        parts: At least one weight with its exchanges; random ones must have been drawn with different seeds.
        seed: Seed of the random exchanges.
    """
    observed = math.fsum(weight * part.observed for weight, part in parts)
    patients = sum(part.patients for _, part in parts)
    if patients <= EXHAUSTIVE and all(part.exhaustive for _, part in parts):
        values = np.zeros(1)
        for weight, part in parts:
            values = np.add.outer(values, weight * part.values).ravel()
        return Exchange(observed, patients, values, exhaustive=True)
    rng = np.random.default_rng(seed)
    values = np.sum([weight * part.draw(rng) for weight, part in parts], axis=0)
    return Exchange(observed, patients, values, exhaustive=False)


def can_decide(patients: int) -> bool:
    """Return whether a test over that many patients can have a p-value of at most `LEVEL` for some predictions.

    With n patients at best 2 of the 2^n exchanges have the largest difference, so that p >= 2^(1 - n).
    """
    return 2.0 ** (1 - patients) <= LEVEL


def combine_p(values: Sequence[float]) -> float:
    """Combine p-values of tests that may share patients in an unknown way: twice their mean, at most 1.

    Source: Rueschendorf 1982, Random variables with maximum sums; Vovk and Wang 2020, Combining p-values via averaging.

    Args:
        values: At least one; a single one is returned as it is.
    """
    return values[0] if len(values) == 1 else min(1.0, 2 * fmean(values))


def standardise(scores: torch.Tensor) -> torch.Tensor:
    """Return scores on a scale that two models share: columns with mean 0 and variance 1, in the same order.

    Args:
        scores: (N, C), floating, without NaN. The logits of numbers in [0, 1] are taken, such as probabilities.
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
    """Return the number, from 0, of each image's patient, (N,), int64; without patients each image is its own."""
    return torch.arange(len(targets)) if patients is None else patients.unique(return_inverse=True)[1]


@contextmanager
def _one_thread() -> Iterator[None]:
    """Many small operations: threads cost more than they save, and very much more on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _draw(rng: np.random.Generator, units: int, size: int) -> torch.Tensor:
    """How often each patient is in each resample: (units, size), float64, columns with the sum `units`."""
    drawn = rng.integers(units, size=(units, size)) * size + np.arange(size)
    counts = np.bincount(drawn.ravel(), minlength=units * size).reshape(units, size)
    return torch.from_numpy(counts.astype(np.float64))


def wilson(correct: float, n: float, level: float = 0.95) -> tuple[float, float]:
    """Confidence interval of a share, such as an accuracy; usable for small n and shares near 0 and 1.

    Source: Wilson 1927, Probable Inference, the Law of Succession, and Statistical Inference.

    Args:
        correct: Images that are right, 0 to `n`.
        n: All images, or as many as they are worth; 0 tells nothing, which is the interval (0, 1).
        level: In (0, 1).

    Returns:
        Lower and upper end, in [0, 1].
    """
    if not n:
        return 0.0, 1.0
    z = NormalDist().inv_cdf((1 + level) / 2)
    share, shrink = correct / n, 1 + z**2 / n
    centre = (share + z**2 / (2 * n)) / shrink
    half = z / shrink * math.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    return max(0.0, centre - half), min(1.0, centre + half)


def wilson_over_patients(right: torch.Tensor, patients: torch.Tensor | None) -> tuple[float, float]:
    """The interval of `wilson` for images of which several are of one patient: with as many as they are worth.

    The number of images is divided by the design effect: by how much the variance of the share is larger than that of
    as many patients with one image each. It is at least 1. Where all are right, or all wrong, only patients count.

    Source: Korn and Graubard 1998, Confidence intervals for proportions with small expected number of positive counts
    estimated from survey data; for Wilson's interval Dean and Pagano 2015, Evaluating confidence interval methods for
    binomial proportions in clustered surveys.

    Args:
        right: (N,), bool: whether each image is right.
        patients: As in `paired_bootstrap`.
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
    """Mean and standard deviation (ddof = 1); the deviation of one value is None.

    Args:
        values: At least one, for example one for each seed.
    """
    return fmean(values), stdev(values) if len(values) > 1 else None


def paired_t(differences: Sequence[float], level: float = 0.95, folds: int | None = None) -> Interval | None:
    """Mean of paired differences with its interval by Student's t, for example over seeds.

    Over K folds any two training sets share images, so the variance of the mean is not s^2 / n but about
    s^2 (1 / n + r), where r = 1 / (K - 1) is the size of a test set over that of all other images.

    Source: Nadeau and Bengio 2003, Inference for the generalization error; for several cross-validations Bouckaert and
    Frank 2004, Evaluating the replicability of significance tests.

    Args:
        differences: One for each pair.
        level: In (0, 1).
        folds: K, >= 2, where the pairs are folds of one or several cross-validations.

    Returns:
        None where nothing is known of the spread: for fewer than two, and if all are the same, as it happens with few
        seeds and few images. An interval without width would promise what nobody knows.
    """
    if len(differences) < 2 or max(differences) - min(differences) <= ROUNDING:
        return None
    from scipy.stats import t

    mean = fmean(differences)
    share = 1 / len(differences) + (0.0 if folds is None else 1 / (folds - 1))
    half = float(t.ppf((1 + level) / 2, len(differences) - 1)) * stdev(differences) * math.sqrt(share)
    return Interval(mean, mean - half, mean + half)


HEADER = ("p (t)", "p (corrected t)", "p (Wilcoxon)")
"""Columns of a table in Markdown, in the order of the attributes of `PairedTests`."""


@dataclass(frozen=True)
class PairedTests:
    """Two-sided p-values for "the difference is 0"; NaN where a test says nothing.

    Attributes:
        t: Paired t test.
        corrected: The same with a variance for folds, whose training data overlap.
        wilcoxon: Wilcoxon's signed-rank test.
    """

    t: float
    corrected: float
    wilcoxon: float


def paired_tests(differences: Sequence[float], folds: int | None) -> PairedTests:
    """Tests of paired differences over the folds of one or several cross-validations.

    The corrected test has the variance of `medfl_report.statistics.paired_t` over folds.

    Args:
        differences: One for each pair, n of them.
        folds: K, the number of folds, >= 2; None where the pairs are not of several folds: nothing is tested.
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
    """Two-sided p-value of Wilcoxon's signed-rank test, exact for any number of pairs, also with ties.

    Differences of 0 are left out. With n others the p-value is at least 2^(1 - n). Source: Wilcoxon 1945, Individual
    comparisons by ranking methods. scipy turns to a normal approximation at the first tie, which is wrong for few.

    Args:
        differences: One for each pair.

    Returns:
        In (0, 1]; NaN if all are 0.
    """
    moved = np.round([value for value in differences if abs(value) > ROUNDING], 12)
    if not len(moved):
        return math.nan
    from scipy.stats import rankdata

    ranks = np.rint(2 * rankdata(np.abs(moved))).astype(np.int64)  # twice the ranks: ties have halves
    shares = np.zeros(ranks.sum() + 1)  # of all signs, those with this sum of the positive ranks
    shares[0] = 1.0
    for rank in ranks:
        shares = (shares + np.concatenate([np.zeros(rank), shares[:-rank]])) / 2
    positive = int(ranks[moved > 0].sum())
    return min(1.0, 2 * float(shares[: min(positive, len(shares) - 1 - positive) + 1].sum()))


def explain(pairs: int) -> str:
    """What the columns of `HEADER` say, as sentences.

    Args:
        pairs: The most that any row has, >= 2.
    """
    return (
        "Each run of a seed and a fold counts as one. Folds share training images: the interval, the verdict and "
        "p (corrected t) allow for that with the variance of Nadeau and Bengio (2003); p (t) does not and is too sure "
        f"of itself. p (Wilcoxon): signed-rank test, exact; with {pairs} pairs it cannot go below "
        f"{2.0 ** (1 - pairs):.4g}."
    )
