"""The summary of a run: its last round's scores, from the metrics file."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pandas as pd

from medfl.contract import Meta
from medfl.data.sites import GLOBAL
from medfl.evaluation import Row
from medfl.federation import Outcome


def summarise(csv: Path, method: str, outcome: Outcome) -> Meta:
    """The last round's scores: per site, mean over sites, worst site, and the global test set."""
    table = (
        pd.read_csv(csv, dtype={"site": str}, keep_default_na=False, na_values={"value": ["nan", ""]})
        if csv.exists()
        else pd.DataFrame(columns=list(Row._fields))
    )
    scores = table[(table["moment"] == "aggregated") & table["split"].isin(["val", "test"])]
    scores = scores[(scores["round"] == scores["round"].max()) & ~scores["model"].str.contains("@")]
    results: Meta = {}
    for (model, split, metric), group in scores.groupby(["model", "split", "metric"]):
        values = dict(zip(group["site"], group["value"], strict=True))
        pooled = values.pop(GLOBAL, None)
        found = [value for value in values.values() if not math.isnan(value)]
        results.setdefault(str(model), {}).setdefault(str(split), {})[str(metric)] = {
            "mean": sum(found) / len(found) if found else None,
            "worst": min(found) if found else None,
            "sites": {site: _number(value) for site, value in values.items()},
            "global_test": _number(pooled),
        }
    return {
        "method": method,
        "status": outcome.status,
        "reason": outcome.reason,
        "rounds": outcome.rounds,
        "evaluated_round": None if scores.empty else int(scores["round"].max()),
        "scores": results,
    }


def _number(value: Any) -> float | None:
    return None if value is None or math.isnan(value) else float(value)
