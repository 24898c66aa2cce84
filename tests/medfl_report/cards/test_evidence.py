"""Evidence files: every changed byte is found, and no name in them leads to another folder."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
from card_records import EVIDENCE
from pydantic import ValidationError
from refusals import refused

from medfl.errors import StoreError
from medfl.records.record import CHECKSUM, checksum_of
from medfl_report.cards.evidence import CardFile, Evidence

PATH = Path("bundle") / Evidence.NAME


def sealed(change: dict[str, Any], **options: Any) -> bytes:
    """Return the content of an evidence file with other values, whose checksum fits."""
    values = json.loads(EVIDENCE.to_bytes()) | change
    del values[CHECKSUM]
    return (json.dumps(values | {CHECKSUM: checksum_of(values)}, sort_keys=True, indent=2, **options) + "\n").encode()


def test_the_file_returns_the_record(tmp_path: Path) -> None:
    EVIDENCE.write(tmp_path / Evidence.NAME)
    assert Evidence.read(tmp_path / Evidence.NAME) == EVIDENCE


def test_a_score_that_is_no_number_stays(tmp_path: Path) -> None:
    row = EVIDENCE.scores.tables[0].rows[0]
    estimate = row.scores["auc"].model_copy(update={"value": math.nan, "low": -math.inf})
    table = EVIDENCE.scores.tables[0].model_copy(update={"rows": (row.model_copy(update={"scores": {"a": estimate}}),)})
    scores = EVIDENCE.scores.model_copy(update={"tables": (table,)})
    EVIDENCE.model_copy(update={"scores": scores}).write(tmp_path / Evidence.NAME)
    read = Evidence.read(tmp_path / Evidence.NAME).scores.tables[0].rows[0].scores["a"]
    assert math.isnan(read.value)
    assert read.low == -math.inf


def test_every_changed_byte_is_found() -> None:
    content, stream = EVIDENCE.to_bytes(), random.Random(0)
    for place, byte in enumerate(content):
        other = content[:place] + bytes([byte ^ (1 << stream.randrange(8))]) + content[place + 1 :]
        with pytest.raises(StoreError):
            Evidence.from_bytes(other, PATH)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"1e-05", b"1E-05"),
        (b"1e-05", b"0.00001"),
        (b"\\u00e9", "é".encode()),
        (b'  "card"', b'   "card"'),
        (b'"version": 1', b'"version": 2,\n  "version": 1'),
        (b"}\n", b"}"),
    ],
)
def test_a_change_that_no_parser_notices_is_found(old: bytes, new: bytes) -> None:
    content = EVIDENCE.to_bytes()
    assert old in content
    with refused(StoreError, "damaged_file", cause="its bytes differ from those that medfl writes"):
        Evidence.from_bytes(content[::-1].replace(old[::-1], new[::-1], 1)[::-1], PATH)


@pytest.mark.parametrize("name", ["", ".", "..", "/etc/hosts", "../a", "a/b"])
def test_names_lead_to_no_other_folder(name: str) -> None:
    with pytest.raises(ValidationError):
        CardFile(name=name, medfl_version="0.1.0")
    with refused(StoreError, "damaged_file", key="card.name"):
        Evidence.from_bytes(sealed({"card": {"name": name, "medfl_version": "0.1.0"}}), PATH)
    with refused(StoreError, "damaged_file", key=f"predictions.{name}.[key]"):
        Evidence.from_bytes(sealed({"predictions": {name: "0" * 64}}), PATH)


@pytest.mark.parametrize("depth", [100, 900, 950, 980, 990, 10_000])
def test_values_in_values_in_values_are_refused(depth: int) -> None:
    value = "[" * depth + "]" * depth
    content = EVIDENCE.to_bytes().replace(b'"identity": {', f'"identity": {{"deep": {value}, '.encode())
    with refused(StoreError, "damaged_file"):
        Evidence.from_bytes(content, PATH)


def test_identities_keep_their_kinds_of_numbers() -> None:
    args = {"a": 1, "b": 1.0, "c": None, "d": [True, 2**70]}
    identity = EVIDENCE.identity.model_copy(update={"method_args": args})
    read = Evidence.from_bytes(sealed({"identity": identity.to_json()}), PATH)
    assert json.dumps(read.identity.method_args) == '{"a": 1, "b": 1.0, "c": null, "d": [true, 1180591620717411303424]}'
