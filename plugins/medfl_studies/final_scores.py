"""The final scores of each run of a study, in one table from which its means and intervals can be computed again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pandas as pd

from medfl.engine.runs.records import RunRecord
from medfl_report.groups import Group
from medfl_report.patient_tests import Sets

COLUMNS = (
    "study",
    "data",
    "row",
    "method",
    "seed",
    "fold",
    "site",
    "model",
    "taken_home",
    "split",
    "moment",
    "metric",
    "value",
    "images",
    "patients",
)
"""Columns of the table. `model` is ``global`` or ``personal``; `taken_home` is true for the one that the site keeps."""

AT_SERVER = ("global_test", "public_test")
"""Test sets at the server, which stand in the column `site`."""

MOMENT = "aggregated"
"""Final scores are those after the last evaluated aggregation."""


def final_scores(study: str, data: str, groups: Sequence[Group], sets_of: Callable[[RunRecord], Sets]) -> pd.DataFrame:
    """Collect the final scores of all runs.

    Args:
        study: Name of the study.
        data: Name of the data set.
        groups: The rows with their runs.
        sets_of: Returns the test sets of a run.

    Returns:
        A table with `COLUMNS`, a line for each score that is defined. `images` and `patients` are those of a site's
        test set; they are empty for other splits, without predictions, and `patients` where they are not known.
    """
    rows = [
        {"study": study, "data": data, "row": group.label, "method": run.method, "seed": run.seed, "fold": run.fold}
        | score
        for group in groups
        for run in group.runs
        for score in _scores(run, sets_of(run))
    ]
    table = pd.DataFrame(rows, columns=list(COLUMNS))
    return table.astype(dict.fromkeys(("fold", "images", "patients"), "Int64"))


def _scores(run: RunRecord, sets: Sets) -> Iterator[dict[str, Any]]:
    for model, splits in run.scores.items():
        for split, metrics in splits.items():
            for metric, scores in metrics.items():
                about = {"model": model, "split": split, "moment": MOMENT, "metric": metric}
                for site, value in scores.sites.items():
                    test_set = sets.get(site) if split == "test" else None
                    if value is not None:
                        yield about | {
                            "site": site,
                            "taken_home": run.exported_kind(site) == model,
                            "value": value,
                            "images": None if test_set is None else len(test_set.rows),
                            "patients": None if test_set is None else test_set.patient_count,
                        }
                for place in AT_SERVER:
                    if (value := getattr(scores, place)) is not None:
                        yield about | {"site": place, "taken_home": False, "value": value}
