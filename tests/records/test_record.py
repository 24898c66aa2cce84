"""Test the base classes of records: round trip, strict types, versions, checksums, and messages without values."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import ClassVar

import pytest
from pydantic import ValidationError
from refusals import refused

from medfl.errors import DataError, StoreError
from medfl.records.record import FileRecord, Record


class Point(Record):
    x: float
    name: str = ""


class Points(FileRecord):
    NAME: ClassVar[str] = "points.json"
    points: tuple[Point, ...]
    by_site: dict[str, Point | None] = {}


class Checked(Points):
    VERSION: ClassVar[int] = 3
    HAS_CHECKSUM: ClassVar[bool] = True
    ERROR: ClassVar[type] = DataError
    REPAIR: ClassVar[str] = "Partition again."


FULL = Points(points=(Point(x=0.1 + 0.2), Point(x=2, name="ü")), by_site={"b": None, "a": Point(x=-1.5)})


def test_a_file_returns_the_record_that_was_written(tmp_path: Path) -> None:
    FULL.write(tmp_path / "points.json")
    assert Points.read(tmp_path / "points.json") == FULL
    values = json.loads((tmp_path / "points.json").read_text(encoding="utf-8"))
    assert values["version"] == 1
    assert list(values) == sorted(values)


def test_numbers_keep_their_bits_and_nan_stays(tmp_path: Path) -> None:
    Points(points=(Point(x=5e-324), Point(x=math.nan), Point(x=-math.inf))).write(tmp_path / "p")
    small, nan, infinite = (point.x for point in Points.read(tmp_path / "p").points)
    assert small == 5e-324
    assert math.isnan(nan)
    assert infinite == -math.inf


def test_a_record_can_not_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        FULL.points[0].x = 3.0  # type: ignore[misc]


@pytest.mark.parametrize(
    ("content", "key"),
    [
        ('{"version": 1, "points": [{"x": "1"}]}', "points.0.x"),
        ('{"version": 1, "points": [{"x": 1, "patient": "Doe"}]}', "points.0.patient"),
        ('{"version": 1}', "points"),
        ('{"version": 1, "points": [], "by_site": {"a": {"name": "Doe"}}}', "by_site.a.x"),
    ],
)
def test_the_message_names_the_place_and_no_value(content: str, key: str) -> None:
    with refused(StoreError, "damaged_file", key=key) as caught:
        Points.from_bytes(content.encode(), Path("points.json"))
    assert "Doe" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b"[" * 100_000, b"null"])
def test_other_content_than_an_object_is_refused(content: bytes) -> None:
    with refused(StoreError, "damaged_file"):
        Points.from_bytes(content, Path("points.json"))


@pytest.mark.parametrize(("content", "version"), [('{"points": []}', "None"), ('{"points": [], "version": 2}', "2")])
def test_other_versions_are_refused(content: str, version: str) -> None:
    with refused(StoreError, "other_version", expected=1, found=version):
        Points.from_bytes(content.encode(), Path("points.json"))


def test_every_changed_character_of_a_file_with_a_checksum_is_found(tmp_path: Path) -> None:
    path = tmp_path / "points.json"
    Checked(points=(Point(x=1.5, name="a"),)).write(path)
    content = path.read_text(encoding="utf-8")
    for place, character in enumerate(content):
        if character.isalnum():
            other = content[:place] + ("0" if character != "0" else "1") + content[place + 1 :]
            with pytest.raises(DataError):
                Checked.from_bytes(other.encode(), path)
    assert Checked.read(path).points[0] == Point(x=1.5, name="a")


def test_a_missing_and_an_unreadable_file_are_distinguished(tmp_path: Path) -> None:
    with refused(DataError, "missing_file"):
        Checked.read(tmp_path / "points.json")
    (tmp_path / "points.json").mkdir()
    with refused(DataError, "unreadable_file"):
        Checked.read(tmp_path / "points.json")
