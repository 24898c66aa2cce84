"""Record of a search: round trip, damage, and differences between two searches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from refusals import refused

from medfl.errors import StoreError
from medfl_studies.records.study_files import (
    PrivacyCost,
    SearchDefinition,
    SearchOutcome,
    SearchRecord,
    Trial,
    TrialResult,
)

DEFINITION = SearchDefinition(
    study={"name": "small", "settings": {"epochs": 1}, "tune": None}, bundle="bundle", metric="auc", optuna="4.0.0"
)
TRIALS = (
    Trial(number=0, parameters={"optimizer#lr": 0.1 + 0.2, "method_args#mu": None}),
    Trial(number=1, parameters={"optimizer#lr": 1e-30, "layers": ["a", 2]}),
)
RECORD = SearchRecord(
    definition=DEFINITION,
    results=(
        TrialResult(row="mean", trial=TRIALS[0], run=0, status="finished", score=0.1 * 3, seconds=1.125),
        TrialResult(row="mean", trial=TRIALS[1], run=0, status="diverged", score=None, seconds=0.0),
    ),
    outcome=SearchOutcome(
        trials=2,
        rounds=6,
        score="mean",
        seed=0,
        winners={"mean": 0},
        prices=(
            PrivacyCost(unit="site", adjacency="replace", delta=1e-5, trials=2, largest=1.0, epsilon=None, site="a"),
        ),
    ),
)


@pytest.mark.parametrize("record", [RECORD, RECORD.model_copy(update={"outcome": None, "results": ()})])
def test_the_file_returns_the_record(record: SearchRecord, tmp_path: Path) -> None:
    record.write(tmp_path / SearchRecord.NAME)
    assert SearchRecord.read(tmp_path / SearchRecord.NAME) == record


@pytest.mark.parametrize(
    ("key", "value"),
    [("status", "running"), ("score", "0.5"), ("run", 0.5), ("seconds", None), ("trial", {"number": 0, "rounds": 1})],
)
def test_a_result_that_no_search_writes_is_damage(key: str, value: Any) -> None:
    values = json.loads(RECORD.to_bytes())
    values["results"][1][key] = value
    with refused(StoreError, "damaged_file") as caught:
        SearchRecord.from_bytes(json.dumps(values).encode(), Path(SearchRecord.NAME))
    assert f"results.1.{key}" in str(caught.value)
    assert "Remove the file" in str(caught.value)


def test_the_changes_of_a_definition_are_named_by_the_fields_of_the_study_and_the_others() -> None:
    assert DEFINITION.changes(DEFINITION) == []
    study = {"name": "small", "settings": {"epochs": 2}, "seeds": [0]}
    other = SearchDefinition(study=study, bundle="bundle", metric="f1", optuna="4.0.0")
    assert DEFINITION.changes(other) == other.changes(DEFINITION) == ["metric", "seeds", "settings"]
