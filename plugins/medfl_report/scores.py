"""Which runs and metrics a report sets side by side, their scores, and how far confidence can be believed."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from medfl.engine.runs.records import RunRecord, repetition
from medfl.metrics import confusion
from medfl.metrics.calibration import BINS
from medfl.utils.text import plain_name
from medfl_report.figures import Reliability
from medfl_report.gains import mean_known
from medfl_report.groups import Group
from medfl_report.patient_tests import Sets
from medfl_report.predictions import Tested, pooled
from medfl_report.statistics import mean_std, wilson_over_patients

COLUMNS = ("mean", "worst", "global_test", "public_test")
"""What a summary has of a score, beside the values of each site."""


@dataclass(frozen=True)
class Value:
    """A score, as mean over seeds.

    Attributes:
        mean: The score, or None if no seed has one.
        spread: Standard deviation over the seeds that have one, if there are several.
    """

    mean: float | None
    spread: float | None = None


@dataclass(frozen=True)
class ScoreRow:
    """The scores of one group by one metric, for one kind of model."""

    name: str
    model: str
    mean: Value
    worst: Value
    global_test: Value
    public_test: Value


@dataclass(frozen=True)
class Confusion:
    """A confusion matrix.

    Attributes:
        name: Of the group.
        counts: [true class][predicted class] images, over all sites and seeds.
        shares: The same over the sum of the row; 0 in a row without images.
    """

    name: str
    counts: list[list[int]]
    shares: list[list[float]]


@dataclass(frozen=True)
class SiteScore:
    """A site's score without anything to compare it with: value, and Wilson's 95 % interval of an accuracy.

    `patients` is None where each image counts as one.
    """

    site: str
    images: int | None
    value: float | None
    low: float | None = None
    high: float | None = None
    patients: int | None = None


def score_table(groups: Sequence[Group], split: str) -> dict[str, list[ScoreRow]]:
    """Metric to its rows, group by group, on ``test``, ``shared`` or ``val``; empty if nothing was scored on it."""
    table: dict[str, list[ScoreRow]] = {}
    for group in groups:
        summaries = [run.scores for run in group.runs]
        for model in sorted({model for scores in summaries for model in scores}):
            run_scores = [scores.get(model, {}).get(split, {}) for scores in summaries]
            for metric in [name for name in group.objective.scores if any(name in scored for scored in run_scores)]:
                values = [metrics[metric] for metrics in run_scores if metric in metrics]
                row = [value_over([getattr(value, key) for value in values]) for key in COLUMNS]
                table.setdefault(metric, []).append(ScoreRow(group.label, model, *row))
    return table


def value_over(values: Sequence[float | None]) -> Value:
    """Mean and spread of the values that are there, for example one for each seed."""
    known = [value for value in values if value is not None]
    return Value(*mean_std(known)) if known else Value(None)


def pool_group(group: Group, tested: Mapping[str, Sets]) -> Tested | None:
    """The test images of all sites and seeds of a group, each under the model that its site takes home."""
    return pooled(
        {
            f"{index} {site}": test_set
            for index, run in enumerate(group.runs)
            for site, test_set in tested[str(run.folder)].items()
        }
    )


def class_names(run: RunRecord) -> list[str]:
    """Names of the classes; their numbers as long as the run is not over."""
    names = run.objective.titles if run.holdings is None else run.holdings.classes
    return [plain_name(str(name), str(number)) for number, name in enumerate(names)]


def confusion_of(name: str, tested: Tested) -> Confusion:
    """The confusion matrix of pooled test images."""
    counts = confusion(tested.judged, tested.targets, tested.objective.classes)
    shares = counts.double() / counts.sum(1, keepdim=True).clamp(min=1)
    return Confusion(name, counts.tolist(), shares.tolist())


def calibration_error(tested: Tested) -> float:
    """Expected calibration error of pooled test images."""
    return tested.score("ece")


def reliability_of(name: str, tested: Tested) -> Reliability:
    """The reliability curve of pooled test images, in the bins of `medfl.metrics.calibration`."""
    sure, predicted = tested.judged.max(dim=1)
    right = (predicted == tested.targets).double()
    edges = torch.linspace(0, 1, BINS + 1, dtype=torch.float64)[1:-1]
    bins = torch.bucketize(sure, edges)
    counts = torch.bincount(bins, minlength=BINS).double()
    filled = counts > 0
    means = [torch.bincount(bins, weights=part, minlength=BINS)[filled] / counts[filled] for part in (sure, right)]
    share = counts[filled] / len(bins)
    return Reliability(name, means[0].tolist(), means[1].tolist(), share.tolist())


def site_scores(group: Group, metric: str, tested: Mapping[str, Sets]) -> list[SiteScore]:
    """The score of each site; an accuracy with Wilson's interval over its test patients, if there is one run.

    Args:
        group: Runs on the same people: see `medfl_report.groups`. Images of several folds are counted
        together.
        metric: Its name.
        tested: Run folder, as text, to its test sets.
    """
    rows = []
    for site in group.runs[0].sites:
        value = mean_known(run.score(site, metric) for run in group.runs)
        first_set = tested[str(group.runs[0].folder)].get(site)
        sets = {run.data: test_set for run in group.runs if (test_set := tested[str(run.folder)].get(site)) is not None}
        images = sum(len(test_set.rows) for test_set in sets.values()) if sets else None
        ends: tuple[float | None, float | None] = (None, None)
        if first_set is not None and first_set.defined and metric == "accuracy" and len(group.runs) == 1:
            ends = wilson_over_patients(first_set.right, first_set.patients)
        named = any(test_set.patients is not None for test_set in sets.values())
        patients = sum(test_set.patient_count or len(test_set.rows) for test_set in sets.values()) if named else None
        rows.append(SiteScore(site, images, value, *ends, patients))
    return rows


ALONE = "local"
"""The method in which every site trains alone."""


Baseline = str | Mapping[str, str] | None
"""Label of the group that the others are compared with, or of each group by its own label; None for the usual one."""


def baseline_of(label: str, baseline: Baseline) -> str | None:
    """Label of the group that a group is compared with, if one was named."""
    return baseline.get(label) if isinstance(baseline, Mapping) else baseline


def compared(groups: Sequence[Group], baseline: Baseline) -> list[tuple[Group, Group]]:
    """Each group with the one that it is compared with, but for those that would be compared with themselves.

    Args:
        groups: Of a page.
        baseline: Without one, or where no group has its label: the sites alone, or else the first group.
    """
    usual = next((group for group in groups if group.method == ALONE), groups[0])
    named = {group.label: group for group in groups}
    pairs = [(group, named.get(baseline_of(group.label, baseline) or "", usual)) for group in groups]
    return [(group, base) for group, base in pairs if group is not base]


def over(bases: Collection[str]) -> str:
    """What gains are gains over, in words: the label of the one baseline."""
    return next(iter(bases)) if len(bases) == 1 else "the baseline of each"


def named_runs(groups: Sequence[Group]) -> list[tuple[str, RunRecord]]:
    """Each run with its name: the label of its group, with seed and fold where the group has several."""
    return [
        (group.label if len(group.runs) == 1 else f"{group.label}, {repetition(run.seed, run.fold)}", run)
        for group in groups
        for run in group.runs
    ]


def short_folders(runs: Sequence[RunRecord]) -> list[str]:
    """The folder of each run from where the runs' folders part, so that no path of a machine gets into a page."""
    folders = [run.folder.absolute() for run in runs]
    common = os.path.commonpath([folder.parent for folder in folders])
    return [Path(os.path.relpath(folder, common)).as_posix() for folder in folders]


def key_metrics(groups: Sequence[Group]) -> list[str]:
    """The first metric of the task, then those of the objective's `headline`, as far as all runs have them."""
    tasks = [[str(name) for name in run.task_metrics] for group in groups for run in group.runs]
    shared = [name for name in tasks[0] if all(name in task for task in tasks)]
    return [*shared[:1], *(name for name in groups[0].objective.headline if name in shared[1:])]
