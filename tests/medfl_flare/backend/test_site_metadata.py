"""Site information and data descriptions are accepted in the declared schema and refused otherwise."""

from __future__ import annotations

import math
from typing import Any

import pytest
from refusals import refused

from medfl.errors import RefusedError
from medfl.records.privacy_account import PrivacyAccount
from medfl_flare.backend.messages import Message
from medfl_flare.backend.protocol_messages import HelloReply, read_begin_reply, read_hello_reply, read_privacy_account

ACCOUNT = PrivacyAccount(
    unit="site",
    adjacency="replace",
    delta=1e-5,
    sigma=2.0,
    rate=1.0,
    steps=1,
    threshold=None,
    planned=3,
    releases=3,
    stated_epsilon=4.0,
    epsilon=4.0,
    composed=None,
    runs=2,
    total_epsilon=None,
    ledger=True,
)


def test_an_account_of_privacy_arrives_as_it_was_sent() -> None:
    assert read_privacy_account("a", Message("install", {}, {"privacy": None})) is None
    assert read_privacy_account("a", Message("install", {}, {"privacy": ACCOUNT.to_json()})) == ACCOUNT


@pytest.mark.parametrize("account", [[], "x", 5, True, {}, {"unit": "site"}, {"releases": {}, "ledger": None}], ids=str)
def test_an_account_of_privacy_of_another_form_is_refused(account: Any) -> None:
    with refused(RefusedError, "wrong_metadata", sender="site 'a'", key="privacy"):
        read_privacy_account("a", Message("install", {}, {"privacy": account}))


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"unit": "Doe"}, " in its field 'unit'"),
        ({"unit": "Doe, Jane"}, " in its field 'unit'"),
        ({"epsilon": math.nan}, " in its field 'epsilon'"),
        ({"epsilon": math.inf}, " in its field 'epsilon'"),
        ({"epsilon": 10**400}, " in its field 'epsilon'"),
        ({"releases": 10**400}, " in its field 'releases'"),
        ({"releases": True}, " in its field 'releases'"),
        ({"delta": "Doe"}, " in its field 'delta'"),
        ({"sigma": None}, ""),
        ({"sigma": math.inf}, ""),
        ({"Doe": 1}, ""),
    ],
    ids=str,
)
def test_the_refusal_of_an_account_names_the_field_and_no_value(changes: dict[str, Any], place: str) -> None:
    with refused(RefusedError, "wrong_metadata", sender="site 'a'", key="privacy") as caught:
        read_privacy_account("a", Message("install", {}, {"privacy": ACCOUNT.to_json() | changes}))
    assert f"of site 'a' was refused{place}: " in str(caught.value)
    assert "Doe" not in str(caught.value)


@pytest.mark.parametrize(
    ("facts", "key"),
    [
        ({"trainable": 1}, "trainable"),
        ({"validates": None}, "validates"),
        ({"size": True}, "size"),
        ({"size": 2**63}, "size"),
        ({"label_counts": [1, 2, -3]}, "label_counts"),
        ({"age": 71}, None),
    ],
    ids=str,
)
def test_facts_of_data_of_another_form_are_refused(facts: dict[str, Any], key: str | None) -> None:
    data = {"classes": ["x", "y", "z"], "names": [], "name": "cells", "modality": "", "shared_test": None}
    right = {"trainable": True, "validates": False, "size": 6, "label_counts": [1, 2, 3]}
    assert (
        read_begin_reply("a", Message("begin", {}, {"facts": right, "newest": 0, "data": data}), 3, 2)["facts"] == right
    )
    other = {name: value for name, value in right.items() if name not in facts} | {"age": 71}
    for wrong, field in ((right | facts, key), (other, None)):
        code, fields = (
            ("undeclared_metadata", {"found": "'age'"}) if field is None else ("wrong_metadata", {"key": field})
        )
        with refused(RefusedError, code, sender="site 'a'", **fields):
            read_begin_reply("a", Message("begin", {}, {"facts": wrong, "newest": 0, "data": data}), 3, 2)


@pytest.mark.parametrize(
    ("names", "code"),
    [
        (None, "wrong_output_count"),
        ("ab", "wrong_output_count"),
        (["oedema"], "wrong_output_count"),
        (["oedema", "$1/0"], "unsafe_name"),
        (["oedema", "a\nb"], "unsafe_name"),
        (["oedema", 7], "unsafe_name"),
    ],
    ids=str,
)
def test_names_of_outputs_are_as_many_plain_texts(names: Any, code: str) -> None:
    data = {
        "classes": ["cases"],
        "names": ["oedema", "effusion"],
        "name": "x-rays",
        "modality": "",
        "shared_test": None,
    }
    meta = {"facts": {"trainable": True, "validates": False}, "newest": 0, "data": data}
    assert read_begin_reply("a", Message("begin", {}, meta), 1, 2)["data"] == data
    with refused(RefusedError, code, site="a"):
        read_begin_reply("a", Message("begin", {}, meta | {"data": data | {"names": names}}), 1, 2)


def test_what_a_site_says_when_it_takes_an_offer() -> None:
    right = {"refused": None, "network": "wide", "profile": {"cpu_mhz": 1.0, "memory_gb": 2}}
    assert read_hello_reply("a", Message("hello", {}, right)) == HelloReply("wide", {"cpu_mhz": 1.0, "memory_gb": 2})
    assert read_hello_reply("a", Message("hello", {}, right | {"network": None, "profile": None})) == HelloReply()


@pytest.mark.parametrize(
    ("wrong", "code", "key"),
    [
        ({"network": 5}, "wrong_metadata", "network"),
        ({"network": "x" * 300}, "wrong_metadata", "network"),
        ({"profile": [1.0] * 7}, "wrong_metadata", "profile"),
        ({"profile": {"cpu_mhz": -1.0}}, "wrong_metadata", "profile"),
        ({"profile": "live"}, "wrong_metadata", "profile"),
        ({"age": 1}, "undeclared_metadata", None),
    ],
    ids=str,
)
def test_what_a_site_says_then_in_another_form_is_refused(wrong: dict[str, Any], code: str, key: str | None) -> None:
    with refused(RefusedError, code, sender="site 'a'", key=key):
        read_hello_reply("a", Message("hello", {}, {"refused": None, "network": None, "profile": None} | wrong))
