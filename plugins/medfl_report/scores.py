"""Runs, references and metrics that a report compares, their scores, and their calibration.

A group is a set of runs of one method that differ only in seed and fold. A site exports its personal model if the
method trains one, else the global model.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import torch

from medfl.engine.runs.records import RunRecord, describe_repetition
from medfl.metrics import confusion
from medfl.metrics.calibration import NUM_BINS
from medfl.utils.text import plain_name
from medfl_report.figures import Reliability
from medfl_report.groups import Group
from medfl_report.patient_tests import PredictionSets
from medfl_report.predictions import PredictionSet, pooled
from medfl_report.site_comparison import mean_known
from medfl_report.statistics import mean_std, wilson_over_patients

COLUMNS = ("mean", "worst", "server_test", "public_test")
"""Fields of a score in a run's summary, and columns of the score tables, beside the values of each site."""


@dataclass(frozen=True)
class MeanAndSpread:
    """Mean and standard deviation of a score over the runs of a group.

    Attributes:
        mean: Mean; None if no run has the score.
        spread: Standard deviation (ddof = 1) over the runs that have the score; None for fewer than two.
    """

    mean: float | None
    spread: float | None = None


@dataclass(frozen=True)
class ScoreRow:
    """Scores of one group in one metric, for one kind of model.

    Attributes:
        name: Label of the group.
        model: Kind of model: ``global`` or ``personal``.
        mean: Mean over the sites.
        worst: Score of the worst site.
        server_test: Score on the server's test set.
        public_test: Score on the public test set.
    """

    name: str
    model: str
    mean: MeanAndSpread
    worst: MeanAndSpread
    server_test: MeanAndSpread
    public_test: MeanAndSpread


@dataclass(frozen=True)
class Confusion:
    """A confusion matrix.

    Attributes:
        name: Label of the group.
        counts: Number of images by [true class][predicted class], over all sites and seeds.
        shares: Counts divided by the sum of their row; 0 in a row without images.
    """

    name: str
    counts: list[list[int]]
    shares: list[list[float]]


@dataclass(frozen=True)
class SiteScore:
    """Score of a site, without a reference.

    Attributes:
        site: Name of the site.
        images: Number of test images; None if it is not known.
        value: Score; None if it is not defined.
        low: Lower end of the Wilson 95 % interval of an accuracy; None for other metrics and for several runs.
        high: Upper end of the interval.
        patients: Number of test patients; None if each image counts as one.
    """

    site: str
    images: int | None
    value: float | None
    low: float | None = None
    high: float | None = None
    patients: int | None = None


def score_table(groups: Sequence[Group], split: str) -> dict[str, list[ScoreRow]]:
    """Collect the scores of all groups on a split.

    Args:
        groups: Groups of the page.
        split: ``test``, ``val``, or ``shared`` (exported models on the server's test set).

    Returns:
        Maps each metric to its rows, group by group; empty if nothing was scored on the split.
    """
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


def value_over(values: Sequence[float | None]) -> MeanAndSpread:
    """Return mean and standard deviation of the values that are not None, for example one for each seed."""
    defined = [value for value in values if value is not None]
    return MeanAndSpread(*mean_std(defined)) if defined else MeanAndSpread(None)


def pool_group(group: Group, tested: Mapping[str, PredictionSets]) -> PredictionSet | None:
    """Concatenate the test sets of all sites and runs of a group; None without predictions."""
    return pooled(
        {
            f"{index} {site}": test_set
            for index, run in enumerate(group.runs)
            for site, test_set in tested[str(run.folder)].items()
        }
    )


def class_names(run: RunRecord) -> list[str]:
    """Return the names of the classes; their numbers while the run is not over."""
    names = run.objective.titles if run.holdings is None else run.holdings.classes
    return [plain_name(str(name), str(number)) for number, name in enumerate(names)]


def confusion_of(name: str, tested: PredictionSet) -> Confusion:
    """Return the confusion matrix of a test set.

    Args:
        name: Label of the group.
        tested: Test set, for example of all sites.
    """
    counts = confusion(tested.predictions, tested.targets, tested.objective.classes)
    shares = counts.double() / counts.sum(1, keepdim=True).clamp(min=1)
    return Confusion(name, counts.tolist(), shares.tolist())


def calibration_error(tested: PredictionSet) -> float:
    """Return the expected calibration error of a test set."""
    return tested.score("ece")


def reliability_of(name: str, tested: PredictionSet) -> Reliability:
    """Return the reliability curve of a test set, in the bins of `medfl.metrics.calibration`.

    Args:
        name: Label of the group.
        tested: Test set, for example of all sites.
    """
    sure, predicted = tested.predictions.max(dim=1)
    right = (predicted == tested.targets).double()
    edges = torch.linspace(0, 1, NUM_BINS + 1, dtype=torch.float64)[1:-1]
    bins = torch.bucketize(sure, edges)
    counts = torch.bincount(bins, minlength=NUM_BINS).double()
    filled = counts > 0
    means = [torch.bincount(bins, weights=part, minlength=NUM_BINS)[filled] / counts[filled] for part in (sure, right)]
    share = counts[filled] / len(bins)
    return Reliability(name, means[0].tolist(), means[1].tolist(), share.tolist())


def site_scores(group: Group, metric: str, tested: Mapping[str, PredictionSets]) -> list[SiteScore]:
    """Return the score of each site; an accuracy of a single run has a Wilson interval over the test patients.

    Args:
        group: Runs in which each site has the images of the same people. Images of several folds are counted together.
        metric: Name of the metric.
        tested: Mapping from each run folder (as text) to the run's test sets with predictions, by site name.
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


LOCAL = "local"
"""Name of the method in which each site trains on its own data only."""


Baseline = str | Mapping[str, str] | None
"""Label of the reference group, or a mapping from each group's label to its reference's label; None for the default."""


def baseline_of(label: str, baseline: Baseline) -> str | None:
    """Return the label of a group's reference; None if no reference was named.

    Args:
        label: Label of the group.
        baseline: Label of the reference of all groups, or a mapping from each group's label to the label of its
            reference.
    """
    return baseline.get(label) if isinstance(baseline, Mapping) else baseline


def compared(groups: Sequence[Group], baseline: Baseline) -> list[tuple[Group, Group]]:
    """Return each group with its reference, without the groups that are their own reference.

    Args:
        groups: Groups of a page.
        baseline: Label of the reference, or a mapping from each group's label to the label of its reference. Without a
            label, or if no group has this label, the reference is the first group of local training, or else the first
            group.
    """
    usual = next((group for group in groups if group.method == LOCAL), groups[0])
    named = {group.label: group for group in groups}
    pairs = [(group, named.get(baseline_of(group.label, baseline) or "", usual)) for group in groups]
    return [(group, base) for group, base in pairs if group is not base]


def reference_phrase(bases: Collection[str]) -> str:
    """Return a text for the references of a table: the label of the only one, or a phrase if there are several."""
    return next(iter(bases)) if len(bases) == 1 else "the reference of each"


def named_runs(groups: Sequence[Group]) -> list[tuple[str, RunRecord]]:
    """Return each run with its name: the label of its group, with seed and fold if the group has several runs."""
    return [
        (group.label if len(group.runs) == 1 else f"{group.label}, {describe_repetition(run.seed, run.fold)}", run)
        for group in groups
        for run in group.runs
    ]


def short_folders(runs: Sequence[RunRecord]) -> list[str]:
    """Return each run's folder relative to their common parent, so that the page contains no absolute path."""
    folders = [run.folder.absolute() for run in runs]
    common = os.path.commonpath([folder.parent for folder in folders])
    return [Path(os.path.relpath(folder, common)).as_posix() for folder in folders]


def key_metrics(groups: Sequence[Group]) -> list[str]:
    """Return the first metric of the task, then the objective's `headline`, if all runs have them."""
    tasks = [[str(name) for name in run.task_metrics] for group in groups for run in group.runs]
    shared = [name for name in tasks[0] if all(name in task for task in tasks)]
    return [*shared[:1], *(name for name in groups[0].objective.headline if name in shared[1:])]


IMBALANCE = 0.05
"""Classes count as unequal in size if the majority-class baseline exceeds 1 / (number of classes) by more than this."""


def majority_baseline(run: RunRecord) -> dict[str, float]:
    """Return the scores of a model that always predicts its site's most frequent training class.

    Args:
        run: A run of an objective with class labels. Its summary must contain the image counts of the sites.

    Returns:
        Maps ``accuracy``, ``balanced_accuracy`` and ``auc`` to the mean over the sites with training and test images;
        empty if the image counts are not known.
    """
    if run.holdings is None or not run.objective.has_class_labels:
        return {}
    accuracies, balanced = [], []
    for splits in run.holdings.sites.values():
        training, test = splits.get("training", ()), splits.get("test", ())
        if any(training) and any(test):
            hits = test[training.index(max(training))]
            accuracies.append(hits / sum(test))
            balanced.append((hits > 0) / sum(images > 0 for images in test))
    if not accuracies:
        return {}
    means = {"accuracy": fmean(accuracies), "balanced_accuracy": fmean(balanced)}
    return means | {"auc": 0.5}


def has_unequal_classes(groups: Sequence[Group]) -> bool:
    """Return whether class sizes are so unequal that accuracy must not be the leading metric (see `IMBALANCE`)."""
    for run in (run for group in groups for run in group.runs):
        accuracy = majority_baseline(run).get("accuracy")
        if accuracy is not None and run.holdings is not None and accuracy > 1 / len(run.holdings.classes) + IMBALANCE:
            return True
    return False


def page_metrics(groups: Sequence[Group]) -> list[str]:
    """Return the `key_metrics` in the order of a report, whose first one leads.

    With unequal class sizes, balanced accuracy or else AUC precedes accuracy.
    """
    metrics = key_metrics(groups)
    if metrics[:1] == ["accuracy"] and has_unequal_classes(groups):
        leading = [name for name in ("balanced_accuracy", "auc") if name in metrics]
        return [*leading, *(name for name in metrics if name not in leading)]
    return metrics
