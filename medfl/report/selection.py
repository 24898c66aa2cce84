"""What a report sets side by side: runs with their names, and the metrics that it shows first."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from medfl.report.groups import Group
from medfl.report.runs import RunRecord, repetition

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
    """The first metric of the task, then balanced accuracy, AUC and accuracy where all runs have them."""
    tasks = [[str(name) for name in run.run["identity"]["task"]["metrics"]] for group in groups for run in group.runs]
    shared = [name for name in tasks[0] if all(name in task for task in tasks)]
    return [*shared[:1], *(name for name in ("balanced_accuracy", "auc", "accuracy") if name in shared[1:])]
