"""Test metadata: each type accepts only its values, and errors do not show a value."""

from __future__ import annotations

import json
import math
from typing import Annotated, Any

import pytest
import torch
from pydantic import with_config
from refusals import refused
from typing_extensions import TypedDict

from medfl.contract import Request
from medfl.engine.filters import check_method
from medfl.engine.reply_checks import check_reply
from medfl.errors import ContractError, RefusedError
from medfl.settings import Settings
from medfl.testing.cohort import make_task
from medfl.toolkit.aggregation import check_updates
from medfl.toolkit.averaging import Averaging
from medfl.utils.field_descriptions import words_of
from medfl.utils.metadata import (
    MAX_COUNT,
    PEER_MESSAGE,
    AnyMetadata,
    Count,
    Length,
    MetaField,
    Number,
    Text,
    bounded_number,
    check_metadata,
    dict_of,
    list_of,
    one_of,
)

KNOWN = {"classes": 3, "heads": 2, "model": "site-1", "networks": ["plain", "wide"], "nobody": None}
NO_NUMBER: list[Any] = [None, True, "3", {}, [], [1], math.nan, math.inf, -math.inf, 2**63, 10**400, -1, -0.5]


class Pair(TypedDict):
    n: Count
    of: Annotated[list[Count], Length("heads")]


TYPES: list[tuple[Any, list[Any], list[Any]]] = [
    (Count, [0, 7, MAX_COUNT], [*NO_NUMBER, 1.0, MAX_COUNT + 1]),
    (list_of(Count, "classes"), [[0, 0, 0], [1, 2, 3]],
     [*NO_NUMBER, 5, [1, 2], [1, 2, 3, 4], [1, 2, -3], [1, 2, True]]),
    (list_of(Count, "heads", "heads"), [[[1, 2], [3, 4]]],
     [[1, 2], [[1, 2]], [[1, 2], [3]], [[1, 2], 3], 4, [1] * 10_000]),
    (list_of(Count, 2, shorter=True), [[], [1], [1, 2]], [[1, 2, 3], [-1], None, 1]),
    (Number, [0, -2.5, 1e300, 2**62], [None, True, "3", [], math.nan, math.inf, -(2**63), 10**400]),
    (bounded_number(0, 1), [0, 1, 0.5], [*NO_NUMBER, 1.5, 2]),
    (list_of(bounded_number(0, 1), "classes"), [[0, 1, 0.5]], [[0, 1], [0, 1, 2], 0.5]),
    (bool, [True, False], [0, 1, None, "true", []]),
    (Text, ["", "a b", "x" * 200], [None, 3, True, "x" * 201, "a\nb", [], ["a"]]),
    (list_of(Text, 2), [["a", "b"]], [["a"], "ab", [1, 2]]),
    (one_of("model", empty=True), ["", "site-1"], [None, "site-2", "site", 0, ["site-1"], {}]),
    (one_of("networks", "model", "nobody"), ["plain", "wide", "site-1"], ["", "pla", None, 1, []]),
    (with_config(extra="forbid")(Pair), [{"n": 1, "of": [1, 2]}],
     [{}, {"n": 1}, {"n": 1, "of": [1]}, {"n": 1, "of": [1, 2], "more": 1}, None, [], [["n", 1]]]),
    (dict_of(bounded_number(0, 9), 2), [{}, {"a": 0, "b": 9.0}],
     [None, [], [1], {"a": -1}, {"a": 10}, {"a": "1"}, {"a": {}}, {"a": 1, "b": 2, "c": 3},
      {"x" * 201: 1}, {"a\n": 1}]),
    (bounded_number(0) | None, [None, 0.5], [*NO_NUMBER[1:]]),
    (AnyMetadata, [{}, {"a": [{"b": [None, "c", -1.5, True]}]}], [None, [], 1, {"a": [math.nan]}, {"b": -10**400}]),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "right", "wrong"), TYPES, ids=[words_of(kind) for kind, _, _ in TYPES])
def test_a_type_takes_its_values_and_no_others(kind: Any, right: list[Any], wrong: list[Any]) -> None:
    field = MetaField("public", kind)
    assert [value for value in right if field.problem_of(json.loads(json.dumps(value)), KNOWN)] == []
    assert [value for value in wrong if field.problem_of(value, KNOWN) is None] == []


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Count, "whole number, >= 0"),
        (Number, "number"),
        (bounded_number(0.5), "number, >= 0.5"),
        (list_of(bool, "classes", 2), "list of list of `True` or `False`, 2 entries, 'classes' entries"),
        (Text | None, "text, at most 200 characters or `None`"),
        (one_of("model", empty=True), "text, known to the receiver as 'model', or empty"),
        (Pair, "n: whole number, >= 0; of: list of whole number, >= 0, 'heads' entries"),
    ],
)
def test_a_type_in_words(kind: Any, words: str) -> None:
    assert MetaField("public", kind).words == words


SCHEMA = {
    "size": MetaField("private", Count),
    "score": MetaField("private", bounded_number(0, 1), after=("judge",)),
    "stamp": MetaField("public", Count, after=(PEER_MESSAGE,)),
}


@pytest.mark.parametrize(
    ("meta", "op", "private", "code", "fields"),
    [
        ({"size": 3}, "fit", False, None, {}),
        ({"size": 3, "score": 0.5}, "judge", False, None, {}),
        ({}, "judge", True, None, {}),
        ({"size": 3}, "judge", False, "missing_metadata", {"key": "score", "found": "none"}),
        ({}, PEER_MESSAGE, True, "missing_metadata", {"key": "stamp", "expected": "whole number, >= 0 as 'stamp'"}),
        (
            {"size": "Jane"},
            "fit",
            False,
            "wrong_metadata",
            {"key": "size", "found": "str"},
        ),
        (
            {"size": [5]},
            "fit",
            False,
            "wrong_metadata",
            {"key": "size", "found": "list"},
        ),
        (
            {"size": math.nan},
            "fit",
            False,
            "wrong_metadata",
            {"key": "size", "found": "float"},
        ),
        (
            {"size": 10**400},
            "fit",
            False,
            "wrong_metadata",
            {"key": "size", "found": "int"},
        ),
        ({"Jane": 3}, "fit", False, "undeclared_metadata", {"found": "'Jane'"}),
        ([1], "fit", False, "wrong_type", {"expected": "fields by name", "found": "list"}),
        (None, "fit", False, "wrong_type", {"expected": "fields by name", "found": "NoneType"}),
    ],
)
def test_metadata_fits_or_is_refused(
    meta: Any, op: str, private: bool, code: str | None, fields: dict[str, str]
) -> None:
    if code is None:
        check_metadata(meta, SCHEMA, op, KNOWN, "site 'site-01'", private)
        return
    with refused(RefusedError, code, sender="site 'site-01'", **fields) as caught:
        check_metadata(meta, SCHEMA, op, KNOWN, "site 'site-01'", private)
    assert "Jane" not in str(caught.value).replace("found 'Jane'", "")


def test_a_length_that_the_request_does_not_give_is_the_methods_own_fault() -> None:
    with refused(ContractError, "undeclared_length", size="heads"):
        MetaField("public", list_of(Count, "heads")).problem_of([1], {"classes": 3})


def test_a_declaration_without_a_type_is_refused_at_the_start() -> None:
    class Bare(Averaging):
        sends_meta = {"size": "private"}  # type: ignore[assignment, dict-item]  # noqa: RUF012

    with refused(ContractError, "invalid_schema", method="Bare", key="size"):
        check_method(Bare(), Settings(rounds=1))


# ---- tensors

BEFORE = {
    "model/a": torch.zeros(2),
    "model/n": torch.tensor(3),
    "part/b": torch.zeros(1, 2),
    "shared/x": torch.zeros(1),
}
SENDS: Any = {"model/": "update", "part/": "update", "shared/": "samples"}


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({}, None),
        ({"model/n": None}, None),  # counters stay at home under a privacy setting
        ({"part/b": None}, None),  # a part as a whole may
        ({"model/a": None, "model/n": None, "part/b": None}, None),
        ({"shared/x": torch.zeros(9, 9)}, None),
        ({"model/a": None}, {"tensor": "model/a"}),
        ({"model/a": torch.zeros(3)}, {"expected": "torch.float32 [2]", "found": "torch.float32 [3]"}),
        ({"model/a": torch.zeros(2).double()}, {"expected": "torch.float32 [2]", "found": "torch.float64 [2]"}),
        ({"model/n": torch.tensor([3])}, {"expected": "torch.int64 []", "found": "torch.int64 [1]"}),
        ({"model/c": torch.zeros(2)}, {"expected": "no such name"}),
    ],
)
def test_updates_have_the_tensors_of_the_request(changes: dict[str, Any], fields: dict[str, str] | None) -> None:
    updates = {name: tensor for name, tensor in (BEFORE | changes).items() if tensor is not None}
    if fields is None:
        check_updates(updates, BEFORE, SENDS)
        return
    with refused(RefusedError, "wrong_tensor" if "expected" in fields else "missing_tensor", **fields):
        check_updates(updates, BEFORE, SENDS)


@pytest.mark.parametrize(
    ("gone", "needed", "lacking"),
    [
        (BEFORE, (), None),
        (BEFORE, SENDS, "model/"),
        (BEFORE, ("part/",), "part/"),
        (("part/b",), SENDS, "part/"),
        (("part/b",), ("model/",), None),
        (("model/n",), SENDS, None),
        (("shared/x",), SENDS, None),  # samples are no updates
    ],
)
def test_a_reply_without_the_updates_that_a_step_needs_is_refused(gone: Any, needed: Any, lacking: str | None) -> None:
    updates = {name: tensor for name, tensor in BEFORE.items() if name not in gone}
    if lacking is None:
        check_updates(updates, BEFORE, SENDS, needed)
        return
    with refused(RefusedError, "missing_updates", prefix=lacking, count=1):
        check_updates(updates, BEFORE, SENDS, needed)


def test_a_reply_is_checked_by_both() -> None:
    task, request = make_task(), Request("a", "fit", {"model/a": torch.zeros(2)})
    check_reply(Averaging(), task, request, {"model/a": torch.ones(2)}, {"size": 3}, "a")
    right, wrong = {"model/a": torch.ones(2)}, {"model/a": torch.ones(3)}
    for code, tensors, meta in (("wrong_tensor", wrong, {"size": 3}), ("wrong_metadata", right, {"size": -3})):
        with refused(RefusedError, code):
            check_reply(Averaging(), task, request, tensors, meta, "a")
