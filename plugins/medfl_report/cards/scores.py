"""Scores of a card, from files of predictions alone.

Each score has a 95 % interval over patients, computed as in the report: Wilson's for a share of the images, else the
bootstrap of `medfl_report.objectives.site_scores`. Subgroups of few patients are named and not scored, since a score of
one or two patients reveals their disease.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import torch

from medfl.metrics.auc import weighted_binary_auc
from medfl.objectives import Objective
from medfl.utils.formats import PARTS, name_or_number
from medfl_report.cards.card_scores import CalibrationBin, CardRow, CardScores, CardTable, ScoreEstimate
from medfl_report.gains import mean_interval
from medfl_report.objectives.calibration import calibration
from medfl_report.objectives.site_scores import interval_of
from medfl_report.predictions import Tested, pooled
from medfl_report.scores import reliability_of
from medfl_report.sections.fairness_measures import SEXES
from medfl_report.statistics import Interval, wilson_over_patients

FEWEST = 5
"""Minimum number of patients behind a score; of a smaller group the card does not even state the number."""

CALIBRATION = ("ece", "brier")
"""Metrics of calibration, which each objective that has them is scored by."""

ALL, MEAN = "all test images", "mean of sites"
"""Names of rows that are about no subgroup."""

OF_A_CLASS = ("recall", "precision", "auc")
"""Scores of one class of several against the others."""


def card_scores(tested: Mapping[str, Tested], names: Sequence[str], metrics: Sequence[str]) -> CardScores:
    """Compute all scores of a model.

    Args:
        tested: Maps each site to the model's predictions for its test images.
        names: Names of the classes, structures, findings or numbers.
        metrics: Metrics of the task; a metric that its objective does not have is left out.
    """
    sets = {site: test_set for site, test_set in sorted(tested.items()) if len(test_set.rows)}
    if not sets:
        return CardScores()
    objective = next(iter(sets.values())).objective
    every = [name for name in dict.fromkeys([*metrics, *CALIBRATION]) if name in objective.scores]
    key = key_metrics(objective, every)
    pool = pooled(sets)
    if pool is None:  # a diverged model, of which there is nothing to say
        row = CardRow(name=ALL, cases=sum(len(s.rows) for s in sets.values()), patients=None, scores={})
        return CardScores(tables=(CardTable(part="all", metrics=(), rows=(row,)),))
    whole, tables = [_row(ALL, pool, every)], list[CardTable]()
    if len(sets) > 1:
        sites = [_row(site, test_set, every) for site, test_set in sets.items()]
        whole.append(_mean(sites, every))
        tables.append(CardTable(part="site", metrics=tuple(key), rows=tuple(_restricted(row, key) for row in sites)))
    if sexes := _sexes(pool):
        tables.append(CardTable(part="sex", metrics=tuple(key), rows=_subgroups(pool, sexes, key)))
    if centres := [text.strip() for text in pool.centre]:
        tables.append(CardTable(part="centre", metrics=tuple(key), rows=_subgroups(pool, centres, key)))
    overall = CardTable(part="all", metrics=tuple(every), rows=tuple(whole))
    return CardScores(tables=(overall, *tables, *_classes(pool, names)), bins=_bins(pool))


def key_metrics(objective: Objective, metrics: Sequence[str]) -> list[str]:
    """Return the metrics of subgroups: the task's first metric, then those of the objective's `headline`."""
    return [*metrics[:1], *(name for name in objective.headline if name in metrics[1:])]


def estimate(test_set: Tested, metric: str) -> ScoreEstimate | None:
    """Return a metric with its interval; None if it is not defined."""
    if metric == "accuracy":
        return _share(test_set.right, test_set.patients) if test_set.defined else None
    return _estimate_from(interval_of(test_set, metric))


def _share(right: torch.Tensor, patients: torch.Tensor | None) -> ScoreEstimate | None:
    """Return a share of images with Wilson's interval; None without images."""
    if not len(right):
        return None
    low, high = wilson_over_patients(right, patients)
    return ScoreEstimate(value=float(right.double().mean()), low=low, high=high)


def _estimate_from(interval: Interval | None) -> ScoreEstimate | None:
    if interval is None:
        return None
    return ScoreEstimate(value=interval.difference, low=interval.low, high=interval.high)


def _defined(estimates: Mapping[str, ScoreEstimate | None]) -> dict[str, ScoreEstimate]:
    return {metric: score for metric, score in estimates.items() if score is not None}


def _few(test_set: Tested) -> bool:
    return (test_set.patient_count or len(test_set.rows)) < FEWEST


def _unscored(name: str) -> CardRow:
    """Return the row of a group of too few patients."""
    return CardRow(name=name, cases=None, patients=None, scores={})


def _row(name: str, test_set: Tested, metrics: Sequence[str]) -> CardRow:
    if _few(test_set):
        return _unscored(name)
    scores = _defined({metric: estimate(test_set, metric) for metric in metrics})
    return CardRow(name=name, cases=len(test_set.rows), patients=test_set.patient_count, scores=scores)


def _restricted(row: CardRow, metrics: Sequence[str]) -> CardRow:
    """Return a row with the scores of some metrics only."""
    scores = {metric: row.scores[metric] for metric in metrics if metric in row.scores}
    return CardRow(name=row.name, cases=row.cases, patients=row.patients, scores=scores)


def _mean(sites: Sequence[CardRow], metrics: Sequence[str]) -> CardRow:
    """Return the mean over the sites where a metric is defined, every site with the same weight."""
    scores: dict[str, ScoreEstimate | None] = {}
    for metric in metrics:
        estimates = [row.scores[metric] for row in sites if metric in row.scores]
        intervals = [Interval(score.value, score.low, score.high) for score in estimates]
        scores[metric] = _estimate_from(mean_interval(intervals)) if intervals else None
    return CardRow(name=MEAN, cases=None, patients=None, scores=_defined(scores))


def _sexes(pool: Tested) -> list[str]:
    return [sex if (sex := text.strip().lower()) in SEXES else "" for text in pool.sex]


def _subgroups(pool: Tested, texts: Sequence[str], metrics: Sequence[str]) -> tuple[CardRow, ...]:
    rows = []
    for name in sorted(set(texts), key=lambda text: (not text, text)):
        part = pool.part(torch.tensor([text == name for text in texts]))
        rows.append(_row(name or "not known", part, metrics))
    return tuple(rows)


def _classes(pool: Tested, names: Sequence[str]) -> list[CardTable]:
    """Return a table of the classes, findings or structures; none if the objective has no parts."""
    objective = pool.objective
    if objective.has_class_labels:
        rows = [_one_class(pool, label, name) for label, name in enumerate(names)]
        return [CardTable(part="class", metrics=OF_A_CLASS, rows=tuple(rows))]
    parts: dict[int, dict[str, str]] = {}
    for metric in objective.scores:
        whole, _, number = metric.rpartition("_")
        if whole in PARTS and number.isdigit():
            parts.setdefault(int(number), {})[whole] = metric
    if not parts or _few(pool):
        return []
    rows = [
        CardRow(
            name=name_or_number(label, names),
            cases=len(pool.rows),
            patients=pool.patient_count,
            scores=_defined({whole: estimate(pool, metric) for whole, metric in metrics.items()}),
        )
        for label, metrics in sorted(parts.items())
    ]
    columns = sorted({name for metrics in parts.values() for name in metrics})
    return [CardTable(part="class", metrics=tuple(columns), rows=tuple(rows))]


def _one_class(pool: Tested, label: int, name: str) -> CardRow:
    """Score one class against the others; its precision is over the images that are predicted as this class."""
    own = pool.part(pool.targets == label)
    if _few(own):
        return _unscored(name)
    predicted = pool.part(pool.judged.argmax(dim=1) == label)
    scores = {
        "recall": _share(own.right, own.patients),
        "precision": _share(predicted.right, predicted.patients),
        "auc": _estimate_from(interval_of(pool, partial(_one_against_others, label))),
    }
    return CardRow(name=name, cases=len(own.rows), patients=own.patient_count, scores=_defined(scores))


def _one_against_others(label: int, judged: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    return weighted_binary_auc(judged[:, label].contiguous(), targets == label, weights)


def _bins(pool: Tested) -> tuple[CalibrationBin, ...]:
    """Return the bins of the calibration that have enough images; none if the objective has no classes."""
    if not pool.objective.has_class_labels:
        return ()
    if "calibration" in pool.objective.figures:
        bins = [(each.images, each.mean, each.share) for each in calibration(pool)]
    else:
        curve, count = reliability_of("", pool), len(pool.rows)
        shares = zip(curve.share, curve.confidence, curve.accuracy, strict=True)
        bins = [(round(share * count), mean, right) for share, mean, right in shares]
    return tuple(
        CalibrationBin(images=images, mean=mean, share=share) for images, mean, share in bins if images >= FEWEST
    )


def score_differences(old: CardScores, new: CardScores, tolerance: float = 1e-6) -> list[str]:
    """Return a sentence for each number that differs.

    Args:
        old: Scores of a card.
        new: Scores that were computed again.
        tolerance: Largest difference that counts as rounding, as on another machine.
    """
    before, after = dict(old.values()), dict(new.values())
    problems = []
    for name in sorted(before.keys() | after.keys()):
        left, right = before.get(name, "nothing"), after.get(name, "nothing")
        if isinstance(left, float) and isinstance(right, float):
            differ = abs(left - right) > tolerance
        else:
            differ = left != right
        if differ:
            problems.append(f"{name}: the card has {left}, the predictions give {right}")
    return problems


def count_numbers(scores: CardScores) -> int:
    """Return how many numbers the scores have."""
    return sum(isinstance(value, float | int) for _, value in scores.values())
