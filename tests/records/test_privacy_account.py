"""Test privacy accounts: round trip through JSON, and validation."""

from __future__ import annotations

import json
import math

import pytest
from pydantic import ValidationError

from medfl.records.privacy_account import PrivacyAccount

VALUES = {
    "unit": "sample",
    "adjacency": "replace",
    "delta": 1e-5,
    "sigma": 0.1 + 0.2,
    "rate": 0.25,
    "steps": 4,
    "threshold": None,
    "planned": 3,
    "releases": 2,
    "stated_epsilon": 8.0,
    "epsilon": 5.5,
    "composed": None,
    "runs": 2,
    "total_epsilon": 20.0,
    "ledger": True,
}
WITHHELD = {"sigma": None, "rate": None, "steps": None}


@pytest.mark.parametrize("changes", [{}, WITHHELD, {"sigma": math.inf, "steps": 0}], ids=str)
def test_an_account_stays_the_same_in_json(changes: dict) -> None:
    account = PrivacyAccount(**(VALUES | changes))
    values = json.loads(json.dumps(account.to_json()))
    assert values == VALUES | changes
    assert PrivacyAccount.model_validate(values, strict=True) == account
    assert account.withholds_noise == (changes == WITHHELD)


@pytest.mark.parametrize(
    "changes",
    [
        {"unit": "no name"},
        {"delta": 0.0},
        {"sigma": None},
        {"rate": None, "steps": None},
        {"sigma": math.inf},
        {"sigma": math.nan},
        {"epsilon": math.inf},
        {"composed": math.nan},
        {"releases": -1},
        {"releases": 10**13},
        {"runs": "2"},
        {"ledger": 1},
        {"stated_epsilon": 0.0},
        {"patient": "Doe"},
    ],
    ids=str,
)
def test_an_account_that_makes_no_sense_is_refused(changes: dict) -> None:
    with pytest.raises(ValidationError):
        PrivacyAccount.model_validate(VALUES | changes, strict=True)
