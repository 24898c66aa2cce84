"""Tests of errors with codes and fields."""

from __future__ import annotations

import ast
import copy
import json
import re
from pathlib import Path

import pytest
from pydantic import BaseModel, ValidationError, field_validator
from refusals import refused

from medfl.errors import DataError, MedflError, SettingsError, check_choice, explain, validation_message


def test_a_validation_message_is_the_validators_own() -> None:
    class Even(BaseModel):
        number: int

        @field_validator("number")
        @classmethod
        def _check(cls, value: int) -> int:
            if value % 2:
                raise ValueError("expected an even number")
            return value

    with pytest.raises(ValidationError) as caught:
        Even(number=3)
    assert validation_message(caught.value.errors()[0]) == "expected an even number"


def test_an_error_has_a_code_fields_and_a_message():
    error = DataError("missing_column", "a.csv has no column 'label'.", path=Path("a.csv"), expected=("label", "id"))
    assert str(error) == "a.csv has no column 'label'."
    assert error.code == "missing_column"
    assert error.fields == {"path": "a.csv", "expected": ["label", "id"]}
    assert json.loads(json.dumps(error.fields)) == error.fields


def test_a_set_becomes_a_list_in_order():
    assert MedflError("any", "any", names={"b", "a"}).fields["names"] == ["a", "b"]


def test_an_error_survives_copying():
    """Copying uses the same functions as pickling."""
    error = DataError("missing_column", "no column", column="label")
    again = copy.deepcopy(error)
    assert (type(again), again.code, str(again), again.fields) == (DataError, error.code, str(error), error.fields)


def test_other_words_keep_class_code_and_fields():
    error = DataError("missing_column", "no column", column="label").reworded("site-1: no column")
    assert (type(error), error.code, str(error)) == (DataError, "missing_column", "site-1: no column")
    assert error.fields == {"column": "label"}


def test_an_unknown_choice():
    with refused(SettingsError, "unknown_choice", what="method", choice="fedprx"):
        check_choice("method", "fedprx", ["fedprox", "fedavg"])


def test_the_check_of_refusals_can_fail():
    with pytest.raises(AssertionError), refused(MedflError, "expected_code"):
        raise MedflError("other_code", "text")
    with pytest.raises(AssertionError), refused(MedflError, "code", name="a"):
        raise MedflError("code", "text", name="b")


def error_classes() -> set[str]:
    """Return the names of all error classes of medfl and its packages."""
    bases = re.compile(r"^class (\w+)\((?:MedflError|StoreError)\):", re.MULTILINE)
    return {"MedflError"} | {name for path in sources() for name in bases.findall(path.read_text(encoding="utf-8"))}


def sources() -> list[Path]:
    root = Path(__file__).parents[1]
    folders = ("medfl", "plugins/medfl_methods", "plugins/medfl_mlflow", "plugins/medfl_encoders", "data_prep")
    return [path for folder in folders for path in sorted((root / folder).rglob("*.py"))]


def test_codes_are_snake_case_names():
    """A code that is not a literal is passed on from another error."""
    codes: set[str] = set()
    classes = error_classes()
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in classes:
                assert len(node.args) == 2, f"{path}:{node.lineno}: expected a code and a message"
                if isinstance(node.args[0], ast.Constant):
                    codes.add(str(node.args[0].value))
    assert len(codes) > 300
    assert [code for code in sorted(codes) if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)+", code)] == []


def _raise_from(cause: BaseException, *messages: str) -> BaseException:
    """Return the last of nested errors, as MONAI wraps the error of a component."""
    for message in messages:
        error = RuntimeError(message)
        error.__cause__ = cause
        cause = error
    return cause


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (SettingsError("unknown_method", "unknown."), 2, "unknown."),
        (_raise_from(SettingsError("unknown_method", "unknown."), "Failed to instantiate A", "any"), 2, "unknown."),
        (
            _raise_from(ValueError("too low"), "Failed to instantiate A\nwith x"),
            2,
            "too low. Failed to instantiate A: ",
        ),
        (_raise_from(KeyError("k"), "Failed to instantiate A"), 1, "KeyError: 'k'. Failed to instantiate A: check"),
        (_raise_from(ValueError("too low"), "any"), 1, "RuntimeError: any"),
        (ZeroDivisionError("by zero"), 1, "ZeroDivisionError: by zero"),
        (KeyboardInterrupt(), 130, "stopped; "),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
def test_any_error_has_a_reason_and_an_exit_status(error: BaseException, status: int, reason: str) -> None:
    explanation = explain(error)
    assert explanation.status == status
    assert explanation.reason.startswith(reason)
    assert explanation.message.endswith(explanation.reason)
