"""What a report sets side by side: runs with their names, and the metrics that it shows first."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from medfl.report.groups import Group
from medfl.report.runs import RunRecord, repetition

ALONE = "local"
"""The method in which every site trains alone."""


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
