"""Exchange tests: swap the predictions of two models for some of the patients, with all images of a patient."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
import torch

from medfl_report.statistics import procedures, weighted_scores
from medfl_report.statistics.weighted_scores import ScoreFunction, one_thread, patient_of_each_image

EXCHANGES = 9999
"""Number of random exchanges of a test."""

PROBES, TIE = 16, 1e-10
"""Number of exchanges that check whether a score is a sum over patients, and difference below which scores are tied."""


@dataclass(frozen=True)
class ExchangeDistribution:
    """Differences of a score between two models on the same patients: observed, and after exchanges.

    An exchange swaps the two models' predictions for some of the patients, all images of a patient together.

    Attributes:
        observed: Difference without any exchange.
        patients: Number of patients, >= 1.
        values: Differences after B exchanges, (B,), float64: all 2^patients exchanges, or `EXCHANGES` random ones.
        exhaustive: True if `values` contains all exchanges.
        variance: Variance of the difference from the choice of patients, >= 0; NaN if it is not known.
    """

    observed: float
    patients: int
    values: np.ndarray
    exhaustive: bool
    variance: float = math.nan

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
    who = patient_of_each_image(targets, patients)
    units = int(who.max()) + 1 if len(who) else 0
    exhaustive = units <= procedures.EXHAUSTIVE
    if exhaustive:
        flips = torch.from_numpy((np.arange(2**units) >> np.arange(units)[:, None]) & 1)
    else:
        flips = torch.from_numpy(np.random.default_rng(seed).integers(2, size=(units, EXCHANGES), dtype=np.int8))
    observed, values = 0.0, np.zeros(flips.shape[1])
    with one_thread():
        for pair in pairs:
            a, b = map(standardise, pair) if order_only else pair
            difference, exchanged = _exchanged(score, a, b, targets, who, flips)
            observed += difference / len(pairs)
            values += exchanged / len(pairs)
    if math.isnan(observed):
        return None
    scale = math.sqrt(units / max(units - 1.5, 0.5)) if order_only else 1.0
    return ExchangeDistribution(
        observed, units, scale * values, exhaustive, _patient_variance(observed, scale * values, units)
    )


def _patient_variance(observed: float, values: np.ndarray, units: int) -> float:
    """Return the variance of a difference from the choice of patients.

    The mean square of the exchanged differences is sum(d^2) / n^2 for the differences d of n patients. Around their
    mean, with the unbiased estimate, that becomes (sum(d^2) / n^2 - mean^2 / n) n / (n - 1).
    """
    if units < 2:
        return math.nan
    return max(0.0, float(np.nanmean(values**2)) - observed**2 / units) * units / (units - 1)


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
    differences without scoring every exchange. A few exchanges are scored to check it; if there are no others, their
    scores are the result.

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
        of_a, of_b = score(both, twice, torch.cat([ours, 1 - ours], dim=1)).chunk(2)
        return of_a - of_b

    signs = 1 - 2 * flips.double()
    computed = differences(torch.cat([torch.ones_like(signs[:, :1]), signs[:, :PROBES]], dim=1))
    observed = float(computed[0])
    if signs.shape[1] <= PROBES:
        return observed, computed[1:].numpy()
    mixed = torch.zeros(len(signs), 1, dtype=torch.float64, requires_grad=True)
    middle = differences(mixed)
    if middle.requires_grad and not math.isnan(observed):
        (effects,) = torch.autograd.grad(middle.sum(), mixed)
        expected = torch.cat([effects.sum(0), (effects.T @ signs[:, :PROBES])[0]])
        if torch.allclose(expected, computed, rtol=0, atol=TIE):
            return observed, (effects.T @ signs)[0].numpy()
    parts = signs.split(max(1, weighted_scores.WEIGHTS // (4 * len(who))), dim=1)
    return observed, torch.cat([differences(part) for part in parts]).numpy()


def mean_exchange(parts: Sequence[tuple[float, ExchangeDistribution]], seed: int = 0) -> ExchangeDistribution:
    """Combine the exchanges of separate groups of patients, such as sites, each with a weight.

    Args:
        parts: At least one pair (weight, exchanges); random exchanges must have been drawn with different seeds.
        seed: Seed of the random exchanges.
    """
    observed = math.fsum(weight * part.observed for weight, part in parts)
    patients = sum(part.patients for _, part in parts)
    variance = math.fsum(weight**2 * part.variance for weight, part in parts)
    if patients <= procedures.EXHAUSTIVE and all(part.exhaustive for _, part in parts):
        values = np.zeros(1)
        for weight, part in parts:
            values = np.add.outer(values, weight * part.values).ravel()
        return ExchangeDistribution(observed, patients, values, exhaustive=True, variance=variance)
    rng = np.random.default_rng(seed)
    values = np.sum([weight * part.draw(rng) for weight, part in parts], axis=0)
    return ExchangeDistribution(observed, patients, values, exhaustive=False, variance=variance)


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
