"""Trials of the searches that chose a study's settings, as a part of its raw results."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd

from medfl_studies.records.study_files import SearchRecord

TRIALS = "trials.csv.gz"
"""Name of the file with all trials; a study without a search has none."""

TRIAL_COLUMNS = ("split", "row", "trial", "status", "score", "sites", "chosen", "parameters", "seconds")
"""Columns of the table of trials.

`split` is the split of a nested search, such as ``seed-0``, and empty otherwise. `score` is the score on validation
images, and `sites` the number of sites with a score, empty in searches of earlier versions. `chosen` is True for the
best trial of a row. `parameters` is a JSON object. `seconds` is the time of training and evaluation, summed over the
sites; 0 for a trial that repeated an earlier one.
"""


def collect_trials(out: Path) -> pd.DataFrame:
    """Return the trials of all finished searches in the output folder of ``medfl tune``.

    Args:
        out: Output folder, which contains the search, or a folder for the search of each split.

    Returns:
        A table with `TRIAL_COLUMNS`, empty without a search.

    Raises:
        StoreError: If the record of a search is damaged.
    """
    lines = []
    for path in sorted([*out.glob(SearchRecord.NAME), *out.glob(f"*/{SearchRecord.NAME}")]):
        record = SearchRecord.read(path)
        if record.outcome is None:
            continue
        for result in record.results:
            number = result.trial.number
            lines.append(
                {
                    "split": record.definition.split or "",
                    "row": result.row,
                    "trial": number,
                    "status": result.status,
                    "score": result.score,
                    "sites": result.sites,
                    "chosen": record.outcome.winners[result.row] == number,
                    "parameters": json.dumps(result.trial.parameters, sort_keys=True),
                    "seconds": result.seconds if result.run == number else 0.0,
                }
            )
    return pd.DataFrame(lines, columns=list(TRIAL_COLUMNS)).astype({"sites": "Int64"})
