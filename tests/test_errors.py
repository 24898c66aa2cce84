"""Errors with codes and fields."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
from refusals import refused

from medfl.errors import DataError, MedflError, SettingsError, check_choice


def test_an_error_has_a_code_fields_and_a_message():
    error = DataError("missing_column", "a.csv has no column 'label'.", path=Path("a.csv"), expected=("label", "id"))
    assert str(error) == "a.csv has no column 'label'."
    assert error.code == "missing_column"
    assert error.fields == {"path": "a.csv", "expected": ["label", "id"]}
    assert json.loads(json.dumps(error.fields)) == error.fields


def test_a_set_becomes_a_list_in_order():
    assert MedflError("any", "any", names={"b", "a"}).fields["names"] == ["a", "b"]


def test_an_error_survives_copying():
    """Copies and pickles are made in the same way."""
    error = DataError("missing_column", "no column", column="label")
    again = copy.deepcopy(error)
    assert (type(again), again.code, str(again), again.fields) == (DataError, error.code, str(error), error.fields)


def test_other_words_keep_class_code_and_fields():
    error = DataError("missing_column", "no column", column="label").reworded("site-1: no column")
    assert (type(error), error.code, str(error)) == (DataError, "missing_column", "site-1: no column")
    assert error.fields == {"column": "label"}


def test_a_message_alone_has_no_code():
    assert (MedflError("out of order").code, str(MedflError("out of order"))) == ("unspecified", "out of order")


def test_an_unknown_choice():
    with refused(SettingsError, "unknown_choice", what="method", choice="fedprx"):
        check_choice("method", "fedprx", ["fedprox", "fedavg"])


def test_the_check_of_refusals_can_fail():
    with pytest.raises(AssertionError), refused(MedflError, "expected_code"):
        raise MedflError("other_code", "text")
    with pytest.raises(AssertionError), refused(MedflError, "code", name="a"):
        raise MedflError("code", "text", name="b")
