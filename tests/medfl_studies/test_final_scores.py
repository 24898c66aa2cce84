"""Table of final scores: model, split and number of images; and rows with their own baselines."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from medfl_studies import study_tables
from medfl_studies.study_tables import final_scores


def scored(sites: dict[str, float | None], server_test: float | None = None) -> Any:
    return SimpleNamespace(sites=sites, server_test=server_test, public_test=None)


@pytest.fixture
def table() -> pd.DataFrame:
    """Return the scores of a run whose first site exports a personal model, and whose second site the global one."""
    scores = {
        "personal": {"test": {"auc": scored({"site-01": 0.7, "site-02": None})}},
        "global": {
            "test": {"auc": scored({"site-01": 0.8, "site-02": 0.9}, server_test=0.85)},
            "val": {"auc": scored({"site-01": 0.6})},
        },
    }
    kinds = {"site-01": "personal", "site-02": "global"}
    run = SimpleNamespace(method="ditto", seed=3, fold=1, scores=scores, exported_kind=kinds.__getitem__)
    sets = {"site-01": SimpleNamespace(rows=range(12), patient_count=5)}
    groups = [SimpleNamespace(label="row", runs=[run])]
    return final_scores("study", "data", groups, lambda _: sets)  # type: ignore[arg-type, return-value]


def test_each_defined_score_has_a_line(table):
    places = table[["model", "split", "site", "value"]].to_records(index=False).tolist()
    assert places == [
        ("personal", "test", "site-01", 0.7),
        ("global", "test", "site-01", 0.8),
        ("global", "test", "site-02", 0.9),
        ("global", "test", "server_test", 0.85),
        ("global", "val", "site-01", 0.6),
    ]
    assert {(row.row, row.method, row.seed, row.fold) for row in table.itertuples()} == {("row", "ditto", 3, 1)}


def test_a_model_is_marked_at_the_site_that_exports_it(table):
    assert table["exported"].tolist() == [True, False, True, False, False]


def test_images_and_patients_are_those_of_test_sets_with_predictions(table):
    counts = table[["images", "patients"]].astype(object).where(table[["images", "patients"]].notna(), None)
    assert counts.to_numpy().tolist() == [[12, 5], [12, 5], [None, None], [None, None], [None, None]]


def test_a_row_is_compared_with_its_own_baseline_first():
    rows = {name: SimpleNamespace(baseline=baseline) for name, baseline in (("a", None), ("b", "a"), ("c", "d"))}
    study: Any = SimpleNamespace(rows=rows, baseline="c")
    assert study_tables._baselines(study, ["a", "b", "c"]) == {"a": "c", "b": "a"}, "there are no runs of row d"
