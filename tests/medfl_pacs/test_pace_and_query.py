"""Tests of rate, hours, and search keys."""

from __future__ import annotations

import datetime

import pytest
from refusals import refused

from medfl.errors import SettingsError
from medfl_pacs.pace import Pace, parse_hours
from medfl_pacs.query import parse_query


class Clock:
    """A clock that moves only while someone sleeps."""

    def __init__(self, start: str) -> None:
        self.start, self.seconds = datetime.datetime.fromisoformat(start), 0.0
        self.lines: list[str] = []

    def now(self) -> datetime.datetime:
        return self.start + datetime.timedelta(seconds=self.seconds)

    def sleep(self, seconds: float) -> None:
        assert 0 < seconds <= 30
        self.seconds += seconds

    def pace(self, per_second: float | None, hours: str | None) -> Pace:
        return Pace(
            per_second,
            parse_hours(hours) if hours else None,
            self.lines.append,
            now=self.now,
            clock=lambda: self.seconds,
            sleep=self.sleep,
        )


def test_the_rate_is_limited():
    clock = Clock("2026-01-01T00:00")
    pace = clock.pace(4, None)
    times = []
    for _ in range(5):
        pace.wait()
        times.append(clock.seconds)
    assert times == pytest.approx([0, 0.25, 0.5, 0.75, 1.0])


def test_idle_time_gives_no_credit():
    clock = Clock("2026-01-01T00:00")
    pace = clock.pace(1, None)
    pace.wait()
    clock.seconds = 100
    times = []
    for _ in range(3):
        pace.wait()
        times.append(clock.seconds)
    assert times == pytest.approx([100, 101, 102])


def test_without_a_limit_nothing_waits():
    clock = Clock("2026-01-01T00:00")
    pace = clock.pace(None, None)
    for _ in range(5):
        pace.wait()
    assert clock.seconds == 0


@pytest.mark.parametrize(
    ("hours", "now", "expected"),
    [
        ("20:00-06:00", "2026-01-01T23:00", "2026-01-01T23:00"),
        ("20:00-06:00", "2026-01-01T05:59", "2026-01-01T05:59"),
        ("20:00-06:00", "2026-01-01T06:00", "2026-01-01T20:00"),
        ("20:00-06:00", "2026-01-01T12:30", "2026-01-01T20:00"),
        ("01:30-05:00", "2026-01-01T12:30", "2026-01-02T01:30"),
        ("01:30-05:00", "2026-01-01T01:00", "2026-01-01T01:30"),
        ("1:30-5:00", "2026-01-01T01:30", "2026-01-01T01:30"),
    ],
)
def test_requests_wait_for_the_hours(hours: str, now: str, expected: str):
    clock = Clock(now)
    clock.pace(None, hours).wait()
    assert clock.now() == datetime.datetime.fromisoformat(expected)
    until = expected.replace("T", " ")
    assert [until in line for line in clock.lines] == ([] if now == expected else [True])


@pytest.mark.parametrize("text", ["", "20-06", "24:00-06:00", "20:00", "20:60-06:00", "20:00-20:00", "20:00-06:00x"])
def test_invalid_hours(text: str):
    with refused(SettingsError, "invalid_hours", value=text):
        parse_hours(text)


def test_search_keys_belong_to_studies_or_series():
    query = parse_query("ModalitiesInStudy=CT, StudyDate=20200101-20201231,Modality=CT,SeriesDescription=thin, axial")
    assert query.study == {"ModalitiesInStudy": "CT", "StudyDate": "20200101-20201231"}
    assert query.series == {"Modality": "CT", "SeriesDescription": "thin, axial"}


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "empty_query"),
        ("  ", "empty_query"),
        ("StudyDate", "invalid_query"),
        ("StudyDate=", "invalid_query"),
        ("=3", "invalid_query"),
        ("StudyDat=20200101", "unknown_search_key"),
        ("PixelData=1", "unknown_search_key"),
        ("Rows=512", "unknown_search_key"),
        ("SeriesNumber=abc", "invalid_query"),
        ("PatientWeight=7*", "invalid_query"),
        ("StudyDate=1,StudyDate=2", "repeated_search_key"),
    ],
)
def test_wrong_search_keys(text: str, code: str):
    with refused(SettingsError, code):
        parse_query(text)


def test_messages_contain_no_values():
    with refused(SettingsError, "unknown_search_key", keyword="PatientNam") as caught:
        parse_query("PatientNam=Qwertzuiop")
    assert "Qwertzuiop" not in str(caught.value)
