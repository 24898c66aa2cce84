"""Computation of a model card's scores from files of predictions alone.

Each score has a 95 % confidence interval over patients, computed as in the report: Wilson's interval for a proportion,
else the percentile bootstrap of `medfl_report.objectives.site_scores`. Subgroups of few patients are named but not
scored, because a score over one or two patients reveals their diagnosis.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import torch

from medfl.metrics.auc import weighted_binary_auc
from medfl.objectives import Objective
from medfl.records.calibration import Calibration
from medfl.utils.formats import NUMBERED_PARTS, name_or_number
from medfl_report.calibration.evaluation import evaluate_calibration
from medfl_report.cards.card_scores import (
    CalibrationBin,
    CardRow,
    CardScores,
    CardTable,
    MajorityBaseline,
    ScoreEstimate,
)
from medfl_report.objectives.calibration import calibration
from medfl_report.objectives.site_scores import interval_of
from medfl_report.predictions import PredictionSet, pooled
from medfl_report.scores import reliability_of
from medfl_report.sections.fairness_measures import SEXES
from medfl_report.site_comparison import mean_interval
from medfl_report.statistics import Interval, wilson_over_patients

MIN_PATIENTS = 5
"""Minimum number of patients (images, if patients are unknown) in a scored group.

The card does not state the size of a smaller group. A bin of the calibration curve needs as many images.
"""

CALIBRATION_METRICS = ("ece", "brier")
"""Calibration metrics that are computed in addition to the task's metrics, if the objective has them."""

IMBALANCE_METRICS = ("balanced_accuracy", "auc")
"""Metrics that are preferred to accuracy if the test images have unequal class sizes."""

ALL_IMAGES, SITE_MEAN = "all test images", "mean of sites"
"""Names of two rows. `ALL_IMAGES`: all test images together. `SITE_MEAN`: unweighted mean of the sites' scores."""

CLASS_METRICS = ("recall", "precision", "auc")
"""Metrics in the table by class, each for one class against all others."""


def compute_card_scores(
    tested: Mapping[str, PredictionSet],
    names: Sequence[str],
    metrics: Sequence[str],
    calibration: Calibration | None = None,
) -> CardScores:
    """Compute all scores of a model.

    If the test images have unequal class sizes, and the task's first metric is accuracy, balanced accuracy or AUC comes
    first instead, because the accuracy of an imbalanced test set is high for a useless model.

    Args:
        tested: Maps each site to the model's predictions for its test images.
        names: Names of the network outputs: classes, structures, findings or target values.
        metrics: Metrics of the task; a metric that its objective lacks is left out.
        calibration: Calibration of the model; None without one.
    """
    sets = {site: test_set for site, test_set in sorted(tested.items()) if len(test_set.rows)}
    if not sets:
        return CardScores()
    objective = next(iter(sets.values())).objective
    known_metrics = [name for name in dict.fromkeys([*metrics, *CALIBRATION_METRICS]) if name in objective.scores]
    pool = pooled(sets)
    if pool is None:  # the model diverged, so that no site has finite predictions
        row = CardRow(name=ALL_IMAGES, cases=sum(len(s.rows) for s in sets.values()), patients=None, scores={})
        return CardScores(tables=(CardTable(part="all", metrics=(), rows=(row,)),))
    all_metrics = _put_leading_metric_first(known_metrics, pool)
    subgroup_metrics = select_subgroup_metrics(objective, all_metrics)
    overall_rows, tables = [_make_row(ALL_IMAGES, pool, all_metrics)], list[CardTable]()
    if len(sets) > 1:
        sites = [_make_row(site, test_set, all_metrics) for site, test_set in sets.items()]
        overall_rows.append(_mean_row(sites, all_metrics))
        tables.append(
            CardTable(
                part="site",
                metrics=tuple(subgroup_metrics),
                rows=tuple(_select_metrics(row, subgroup_metrics) for row in sites),
            )
        )
    if sexes := _sexes(pool):
        tables.append(
            CardTable(part="sex", metrics=tuple(subgroup_metrics), rows=_subgroup_rows(pool, sexes, subgroup_metrics))
        )
    if centres := [text.strip() for text in pool.centre]:
        tables.append(
            CardTable(
                part="centre", metrics=tuple(subgroup_metrics), rows=_subgroup_rows(pool, centres, subgroup_metrics)
            )
        )
    overall = CardTable(part="all", metrics=tuple(all_metrics), rows=tuple(overall_rows))
    return CardScores(
        tables=(overall, *tables, *_class_tables(pool, names)),
        baseline=_majority_baseline(pool, names),
        bins=_calibration_bins(pool),
        calibrated=tuple(
            evaluate_calibration(site, calibration, test_set) for site, test_set in sets.items() if calibration
        ),
    )


def _class_sizes(pool: PredictionSet) -> list[int]:
    """Return the number of test images of each class; empty if the objective has no classes."""
    if not pool.objective.has_class_labels:
        return []
    sizes: list[int] = torch.bincount(pool.targets, minlength=pool.objective.classes).tolist()
    return sizes


def _put_leading_metric_first(metrics: Sequence[str], pool: PredictionSet) -> list[str]:
    """Return the metrics with one of `IMBALANCE_METRICS` first, if accuracy came first and class sizes are unequal.

    Balanced accuracy is added if the metrics contain neither it nor AUC.
    """
    sizes = [size for size in _class_sizes(pool) if size]
    if metrics[:1] != ["accuracy"] or len(set(sizes)) < 2:
        return list(metrics)
    leading = next((name for name in metrics if name in IMBALANCE_METRICS), IMBALANCE_METRICS[0])
    return [leading, *(name for name in metrics if name != leading)]


def _majority_baseline(pool: PredictionSet, names: Sequence[str]) -> MajorityBaseline | None:
    """Return the majority-class baseline; None without classes, and for too few patients."""
    sizes = _class_sizes(pool)
    if not sizes or _has_few_patients(pool):
        return None
    largest = max(sizes)
    return MajorityBaseline(
        class_name=name_or_number(sizes.index(largest), names),
        class_images=largest,
        images=sum(sizes),
        balanced_accuracy=1 / sum(size > 0 for size in sizes),
    )


def select_subgroup_metrics(objective: Objective, metrics: Sequence[str]) -> list[str]:
    """Return the metrics that are shown for subgroups: the card's first metric, then the objective's leading ones.

    Args:
        objective: Objective of the task.
        metrics: All metrics of the card; metrics that are not among them are left out.
    """
    return [*metrics[:1], *(name for name in objective.headline if name in metrics[1:])]


def estimate_metric(test_set: PredictionSet, metric: str) -> ScoreEstimate | None:
    """Return a metric of a test set with its confidence interval; None if the metric is undefined.

    Args:
        test_set: Test images with predictions.
        metric: Name of a metric of the objective.
    """
    if metric == "accuracy":
        return _estimate_proportion(test_set.right, test_set.patients) if test_set.defined else None
    return estimate_from(interval_of(test_set, metric))


def _estimate_proportion(right: torch.Tensor, patients: torch.Tensor | None) -> ScoreEstimate | None:
    """Return a proportion of right predictions with Wilson's interval; None without images.

    Args:
        right: Shape (N,), bool: whether the prediction for each image is right.
        patients: Shape (N,), int64: patient number of each image; None if patients are unknown.
    """
    if not len(right):
        return None
    low, high = wilson_over_patients(right, patients)
    return ScoreEstimate(value=float(right.double().mean()), low=low, high=high)


def estimate_from(interval: Interval | None) -> ScoreEstimate | None:
    """Return the score and the ends of an interval as the record of an estimate; None for None."""
    if interval is None:
        return None
    return ScoreEstimate(value=interval.difference, low=interval.low, high=interval.high)


def _drop_undefined(estimates: Mapping[str, ScoreEstimate | None]) -> dict[str, ScoreEstimate]:
    """Return the estimates that are not None."""
    return {metric: score for metric, score in estimates.items() if score is not None}


def _has_few_patients(test_set: PredictionSet) -> bool:
    """Return whether there are fewer than `MIN_PATIENTS` patients, or images if patients are unknown."""
    return (test_set.patient_count or len(test_set.rows)) < MIN_PATIENTS


def _unscored_row(name: str) -> CardRow:
    """Return the row of a group of too few patients."""
    return CardRow(name=name, cases=None, patients=None, scores={})


def _make_row(name: str, test_set: PredictionSet, metrics: Sequence[str]) -> CardRow:
    """Return the row of a group of test images; without scores if it has too few patients."""
    if _has_few_patients(test_set):
        return _unscored_row(name)
    scores = _drop_undefined({metric: estimate_metric(test_set, metric) for metric in metrics})
    return CardRow(name=name, cases=len(test_set.rows), patients=test_set.patient_count, scores=scores)


def _select_metrics(row: CardRow, metrics: Sequence[str]) -> CardRow:
    """Return a row with the scores of some metrics only."""
    scores = {metric: row.scores[metric] for metric in metrics if metric in row.scores}
    return CardRow(name=row.name, cases=row.cases, patients=row.patients, scores=scores)


def _mean_row(sites: Sequence[CardRow], metrics: Sequence[str]) -> CardRow:
    """Return the row with the unweighted mean over the sites; sites where a metric is undefined are left out."""
    scores: dict[str, ScoreEstimate | None] = {}
    for metric in metrics:
        estimates = [row.scores[metric] for row in sites if metric in row.scores]
        intervals = [Interval(score.value, score.low, score.high) for score in estimates]
        scores[metric] = estimate_from(mean_interval(intervals)) if intervals else None
    return CardRow(name=SITE_MEAN, cases=None, patients=None, scores=_drop_undefined(scores))


def _sexes(pool: PredictionSet) -> list[str]:
    """Return the sex of each image's patient, or "" if it is unknown; empty if it is unknown for all images."""
    return [sex if (sex := text.strip().lower()) in SEXES else "" for text in pool.sex]


def _subgroup_rows(pool: PredictionSet, texts: Sequence[str], metrics: Sequence[str]) -> tuple[CardRow, ...]:
    """Return a row for each subgroup, sorted by name, the images without a known subgroup last.

    Args:
        pool: Test images with predictions.
        texts: Subgroup of each image; "" if it is unknown.
        metrics: Metrics of the rows.
    """
    rows = []
    for name in sorted(set(texts), key=lambda text: (not text, text)):
        part = pool.part(torch.tensor([text == name for text in texts]))
        rows.append(_make_row(name or "unknown", part, metrics))
    return tuple(rows)


def _class_tables(pool: PredictionSet, names: Sequence[str]) -> list[CardTable]:
    """Return a table with a row for each class, finding or structure; no table if the objective lacks them."""
    objective = pool.objective
    if objective.has_class_labels:
        rows = [_class_row(pool, label, name) for label, name in enumerate(names)]
        return [CardTable(part="class", metrics=CLASS_METRICS, rows=tuple(rows))]
    parts: dict[int, dict[str, str]] = {}  # output number -> metric without its number -> metric
    for metric in objective.scores:
        whole, _, number = metric.rpartition("_")
        if whole in NUMBERED_PARTS and number.isdigit():
            parts.setdefault(int(number), {})[whole] = metric
    if not parts or _has_few_patients(pool):
        return []
    rows = [
        CardRow(
            name=name_or_number(label, names),
            cases=len(pool.rows),
            patients=pool.patient_count,
            scores=_drop_undefined({whole: estimate_metric(pool, metric) for whole, metric in metrics.items()}),
        )
        for label, metrics in sorted(parts.items())
    ]
    columns = sorted({name for metrics in parts.values() for name in metrics})
    return [CardTable(part="class", metrics=tuple(columns), rows=tuple(rows))]


def _class_row(pool: PredictionSet, label: int, name: str) -> CardRow:
    """Return the scores of one class against all others; precision is over the images predicted as this class."""
    members = pool.part(pool.targets == label)
    if _has_few_patients(members):
        return _unscored_row(name)
    predicted = pool.part(pool.predictions.argmax(dim=1) == label)
    scores = {
        "recall": _estimate_proportion(members.right, members.patients),
        "precision": _estimate_proportion(predicted.right, predicted.patients),
        "auc": estimate_from(interval_of(pool, partial(_one_vs_rest_auc, label))),
    }
    return CardRow(name=name, cases=len(members.rows), patients=members.patient_count, scores=_drop_undefined(scores))


def _one_vs_rest_auc(
    label: int, predictions: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """Return the AUC of one class against all others, for each of several weightings of the images."""
    return weighted_binary_auc(predictions[:, label].contiguous(), targets == label, weights)


def _calibration_bins(pool: PredictionSet) -> tuple[CalibrationBin, ...]:
    """Return the bins of the calibration curve with at least `MIN_PATIENTS` images; empty without classes."""
    if not pool.objective.has_class_labels:
        return ()
    if "calibration" in pool.objective.figures:
        bins = [(bin_.images, bin_.mean, bin_.share) for bin_ in calibration(pool)]
    else:
        curve, count = reliability_of("", pool), len(pool.rows)
        shares = zip(curve.share, curve.confidence, curve.accuracy, strict=True)
        bins = [(round(share * count), mean, right) for share, mean, right in shares]
    return tuple(
        CalibrationBin(images=images, mean=mean, share=share) for images, mean, share in bins if images >= MIN_PATIENTS
    )


def find_score_differences(old: CardScores, new: CardScores, tolerance: float = 1e-6) -> list[str]:
    """Return a sentence for each value that differs between a card and the predictions.

    Args:
        old: Scores in a card.
        new: Scores that were computed again from the predictions.
        tolerance: Largest absolute difference that counts as a rounding error, such as on another machine.
    """
    before, after = dict(old.values()), dict(new.values())
    problems = []
    for name in sorted(before.keys() | after.keys()):
        left, right = before.get(name, "nothing"), after.get(name, "nothing")
        if isinstance(left, float) and isinstance(right, float):
            differs = abs(left - right) > tolerance
        else:
            differs = left != right
        if differs:
            problems.append(f"{name}: the card has {left}, the predictions give {right}")
    return problems


def count_numbers(scores: CardScores) -> int:
    """Return the number of scores and counts in the scores."""
    return sum(isinstance(value, float | int) for _, value in scores.values())
