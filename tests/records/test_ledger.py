"""Test privacy ledgers: round trip, damaged files, and validation of entries."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from pydantic import ValidationError
from refusals import refused

from medfl.errors import StoreError
from medfl.records.ledger import Ledger, LedgerEntry

VALUES = {
    "unit": "sample",
    "mechanism": "poisson-subsampled gaussian",
    "adjacency": "add_remove",
    "sigma": 0.1 + 0.2,
    "rate": 0.25,
    "steps": 4,
    "delta": 1e-5,
    "epsilon": 8.0,
    "planned": 3,
    "releases": ("a1", "b2"),
    "threshold": None,
}
GAUSSIAN = {"mechanism": "gaussian", "rate": 1.0}
LEDGER = Ledger(entries={"key": LedgerEntry(**VALUES)}, copy_of=Path("/ledgers/data.json"))


def test_a_file_returns_the_ledger_that_was_written(tmp_path: Path) -> None:
    LEDGER.write(tmp_path / Ledger.NAME)
    assert Ledger.load(tmp_path / Ledger.NAME, "north") == LEDGER
    values = json.loads((tmp_path / Ledger.NAME).read_text(encoding="utf-8"))
    assert sorted(values) == ["copy_of", "entries", "sha256", "version"]
    assert values["entries"]["key"] == VALUES | {"releases": ["a1", "b2"]}


def test_without_a_file_a_ledger_is_empty(tmp_path: Path) -> None:
    assert Ledger.load(tmp_path / Ledger.NAME, "north") == Ledger()
    assert not any(tmp_path.iterdir())


def test_an_entry_without_steps_has_infinite_noise(tmp_path: Path) -> None:
    entry = LedgerEntry(**(VALUES | {"sigma": math.inf, "steps": 0}))
    Ledger(entries={"key": entry}).write(tmp_path / Ledger.NAME)
    assert Ledger.load(tmp_path / Ledger.NAME, "north").entries == {"key": entry}


@pytest.mark.parametrize("old", ["0.25", "b2", "sample", "ledgers", "key"])
def test_a_changed_file_is_damaged_and_the_message_names_site_and_consequence(tmp_path: Path, old: str) -> None:
    path = tmp_path / Ledger.NAME
    LEDGER.write(path)
    path.write_text(path.read_text().replace(old, old.replace("2", "3").replace("e", "d")))
    with refused(StoreError, "damaged_file", site="north", path=str(path)) as caught:
        Ledger.load(path, "north")
    assert "ledger of site 'north'" in str(caught.value)
    assert "releases nothing until the file can be read again or is restored from a copy." in str(caught.value)


def test_a_file_that_can_not_be_read_is_not_taken_for_an_empty_ledger(tmp_path: Path) -> None:
    (tmp_path / Ledger.NAME).mkdir()
    with refused(StoreError, "unreadable_file", site="north") as caught:
        Ledger.load(tmp_path / Ledger.NAME, "north")
    assert "releases nothing until the file can be read again" in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"unit": "no name"},
        {"mechanism": "laplace"},
        {"sigma": -1.0},
        {"sigma": math.nan},
        {"sigma": math.inf},
        {"rate": 0.0},
        {"rate": 1.5},
        {"steps": -1},
        {"delta": 1.0},
        {"epsilon": math.inf},
        {"threshold": 0},
        {"mechanism": "gaussian"},
        {"rate": 1.0},
        GAUSSIAN | {"mechanism": "distributed discrete gaussian", "rate": 0.5},
        {"patient": "Doe"},
    ],
    ids=str,
)
def test_an_entry_that_makes_no_sense_is_refused(changes: dict) -> None:
    LedgerEntry(**VALUES)
    LedgerEntry(**(VALUES | GAUSSIAN))
    with pytest.raises(ValidationError):
        LedgerEntry(**(VALUES | changes))
