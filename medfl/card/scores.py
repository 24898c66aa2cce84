"""The scores of a card: what files of predictions say of a model, and nothing else.

Each number has a 95 % interval over patients, computed as on the page of a report: Wilson's of a share of the images,
else the bootstrap of `medfl.report.objectives.site_scores`. Subgroups of few patients are named and not scored, since a
score of one or two of them tells what somebody has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import torch

from medfl.metrics.auc import weighted_binary_auc
from medfl.objectives import Multiclass, Objective
from medfl.report.formats import PARTS, name_or_number
from medfl.report.gains import mean_interval
from medfl.report.objectives.calibration import calibration
from medfl.report.objectives.site_scores import interval_of
from medfl.report.predictions import Tested, pooled
from medfl.report.scores import reliability_of
from medfl.report.sections.fairness_measures import SEXES
from medfl.report.statistics import Interval, wilson_over_patients
from medfl.types import Meta

FEWEST = 5
"""Patients of whom a score is told at least; of fewer, not even their number is."""

CALIBRATION = ("ece", "brier")
"""What says how far probabilities can be believed, where the objective has it."""

ALL, MEAN = "all test images", "mean of sites"
"""Names of rows that are about no subgroup."""

OF_A_CLASS = ("recall", "precision", "auc")
"""Scores of one class of several against the others."""

Estimate = list[float | None]
"""A number with both ends of its interval."""


def card_scores(tested: Mapping[str, Tested], names: Sequence[str], metrics: Sequence[str]) -> Meta:
    """All scores of a model, as JSON.

    Args:
        tested: Site to what the model says of the site's test images.
        names: Of the classes, structures, findings or numbers.
        metrics: Of the task; those that its objective does not know are left out.

    Returns:
        ``tables``, a list of objects with ``part`` (``all``, ``site``, ``sex``, ``centre``, ``class``), ``metrics`` and
        ``rows``, each with ``name``, ``cases``, ``patients``, and ``scores``, a metric to value, low and high, or to
        None where it is not defined; and ``bins`` of the calibration, where there are classes. Empty without any test
        image.
    """
    sets = {site: test_set for site, test_set in sorted(tested.items()) if len(test_set.rows)}
    if not sets:
        return {}
    objective = next(iter(sets.values())).objective
    every = [name for name in dict.fromkeys([*metrics, *CALIBRATION]) if name in objective.scores]
    key = key_metrics(objective, every)
    pool = pooled(sets)
    if pool is None:  # a diverged model, of which there is nothing to say
        rows = [{"name": ALL, "cases": sum(len(s.rows) for s in sets.values()), "patients": None, "scores": {}}]
        return {"tables": [{"part": "all", "metrics": [], "rows": rows}], "bins": []}
    whole = [_row(ALL, pool, every)]
    tables = [{"part": "all", "metrics": every, "rows": whole}]
    if len(sets) > 1:
        sites = [_row(site, test_set, every) for site, test_set in sets.items()]
        whole.append(_mean(sites, every))
        kept = [row | {"scores": {name: row["scores"].get(name) for name in key}} for row in sites]
        tables.append({"part": "site", "metrics": key, "rows": kept})
    for part, texts in (("sex", _sexes(pool)), ("centre", [text.strip() for text in pool.centre])):
        if texts:
            tables.append({"part": part, "metrics": key, "rows": _subgroups(pool, texts, key)})
    tables += _classes(pool, names)
    return {"tables": tables, "bins": _bins(pool)}


def key_metrics(objective: Objective, metrics: Sequence[str]) -> list[str]:
    """By which subgroups are scored: the task's first metric, then those of the objective's `headline`."""
    return [*metrics[:1], *(name for name in objective.headline if name in metrics[1:])]


def estimate(test_set: Tested, metric: str) -> Estimate | None:
    """A metric with its interval; None where it is not defined."""
    if metric == "accuracy":
        return _share(test_set.right, test_set.patients) if test_set.defined else None
    return _parts(interval_of(test_set, metric))


def _share(right: torch.Tensor, patients: torch.Tensor | None) -> Estimate | None:
    """A share of images with Wilson's interval; None without images."""
    return [float(right.double().mean()), *wilson_over_patients(right, patients)] if len(right) else None


def _parts(interval: Interval | None) -> Estimate | None:
    return None if interval is None else [interval.difference, interval.low, interval.high]


def _few(test_set: Tested) -> bool:
    return (test_set.patient_count or len(test_set.rows)) < FEWEST


def _row(name: str, test_set: Tested, metrics: Sequence[str]) -> Meta:
    if _few(test_set):
        return {"name": name, "cases": None, "patients": None, "scores": {}}
    scores = {metric: estimate(test_set, metric) for metric in metrics}
    return {"name": name, "cases": len(test_set.rows), "patients": test_set.patient_count, "scores": scores}


def _mean(sites: Sequence[Meta], metrics: Sequence[str]) -> Meta:
    """The mean over the sites where a metric is defined, every site with the same weight."""
    scores: Meta = {}
    for metric in metrics:
        defined = [Interval(*row["scores"][metric]) for row in sites if row["scores"].get(metric)]
        scores[metric] = _parts(mean_interval(defined)) if defined else None
    return {"name": MEAN, "cases": None, "patients": None, "scores": scores}


def _sexes(pool: Tested) -> list[str]:
    return [sex if (sex := text.strip().lower()) in SEXES else "" for text in pool.sex]


def _subgroups(pool: Tested, texts: Sequence[str], metrics: Sequence[str]) -> list[Meta]:
    rows = []
    for name in sorted(set(texts), key=lambda text: (not text, text)):
        part = pool.part(torch.tensor([text == name for text in texts]))
        rows.append(_row(name or "not known", part, metrics))
    return rows


def _classes(pool: Tested, names: Sequence[str]) -> list[Meta]:
    """A table of the classes, findings or structures; none where the objective has no parts."""
    objective = pool.objective
    if isinstance(objective, Multiclass):
        rows = [_one_class(pool, label, name) for label, name in enumerate(names)]
        return [{"part": "class", "metrics": list(OF_A_CLASS), "rows": rows}]
    parts: dict[int, dict[str, str]] = {}
    for metric in objective.scores:
        whole, _, number = metric.rpartition("_")
        if whole in PARTS and number.isdigit():
            parts.setdefault(int(number), {})[whole] = metric
    if not parts or _few(pool):
        return []
    rows = [
        {
            "name": name_or_number(label, names),
            "cases": len(pool.rows),
            "patients": pool.patient_count,
            "scores": {whole: estimate(pool, metric) for whole, metric in metrics.items()},
        }
        for label, metrics in sorted(parts.items())
    ]
    return [
        {"part": "class", "metrics": sorted({name for metrics in parts.values() for name in metrics}), "rows": rows}
    ]


def _one_class(pool: Tested, label: int, name: str) -> Meta:
    """One class against the others; its precision is of the images that are taken for it."""
    own = pool.part(pool.targets == label)
    if _few(own):
        return {"name": name, "cases": None, "patients": None, "scores": {}}
    taken = pool.part(pool.judged.argmax(dim=1) == label)
    scores = {
        "recall": _share(own.right, own.patients),
        "precision": _share(taken.right, taken.patients),
        "auc": _parts(interval_of(pool, partial(_one_against_others, label))),
    }
    return {"name": name, "cases": len(own.rows), "patients": own.patient_count, "scores": scores}


def _one_against_others(label: int, judged: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    return weighted_binary_auc(judged[:, label].contiguous(), targets == label, weights)


def _bins(pool: Tested) -> list[Meta]:
    """How often the model is right, or a finding is there, where it says so with this probability."""
    if not isinstance(pool.objective, Multiclass):
        return []
    if "calibration" in pool.objective.figures:
        bins = [(each.images, each.mean, each.share) for each in calibration(pool)]
    else:
        curve, count = reliability_of("", pool), len(pool.rows)
        shares = zip(curve.share, curve.confidence, curve.accuracy, strict=True)
        bins = [(round(share * count), mean, right) for share, mean, right in shares]
    return [{"images": images, "mean": mean, "share": share} for images, mean, share in bins if images >= FEWEST]


def same_scores(old: Meta, new: Meta, tolerance: float = 1e-6) -> list[str]:
    """Which numbers differ, as sentences; empty for none.

    Args:
        old: Those that a card has, from `card_scores`.
        new: Those that were computed again.
        tolerance: Of a number; less is rounding, as on another machine.
    """
    before, after = _flat(old), _flat(new)
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


def count_numbers(scores: Meta) -> int:
    """How many numbers there are."""
    return sum(isinstance(value, float | int) for value in _flat(scores).values())


def _flat(value: object, path: str = "") -> dict[str, object]:
    """Each leaf by its place, in words."""
    if isinstance(value, Mapping):
        named = value.get("name") or value.get("part")
        inner = {key: part for key, part in value.items() if key not in ("name", "part")} if named else value
        items = [(f"{path} {named}" if named else path, key, part) for key, part in inner.items()]
        return {name: leaf for way, key, part in items for name, leaf in _flat(part, f"{way} {key}").items()}
    if isinstance(value, list):
        ways = (
            f"{path}" if isinstance(part, Mapping) and "images" not in part else f"{path} {place + 1}"
            for place, part in enumerate(value)
        )
        return {name: leaf for way, part in zip(ways, value, strict=True) for name, leaf in _flat(part, way).items()}
    return {path.replace(" tables", "").replace(" rows", "").replace(" scores", "").strip(): value}
