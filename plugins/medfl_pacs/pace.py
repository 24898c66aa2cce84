"""Limit the load on a PACS: a maximum rate of requests, and hours of the day in which requests are allowed."""

from __future__ import annotations

import datetime
import re
import time
from collections.abc import Callable
from dataclasses import dataclass

from medfl.errors import SettingsError
from medfl.utils.text import Say

MAX_SLEEP_SECONDS = 30.0
"""Longest uninterrupted sleep, so that a change of the clock is noticed."""


@dataclass(frozen=True)
class Hours:
    """Hours of the day, in local time.

    Attributes:
        start: First moment.
        end: First moment after the hours; earlier than `start` if the hours include midnight.
    """

    start: datetime.time
    end: datetime.time

    def include(self, moment: datetime.datetime) -> bool:
        """Return True if a moment is within the hours."""
        now = moment.time()
        if self.start < self.end:
            return self.start <= now < self.end
        return now >= self.start or now < self.end

    def next_start(self, moment: datetime.datetime) -> datetime.datetime:
        """Return the next start of the hours after a moment."""
        start = datetime.datetime.combine(moment.date(), self.start)
        return start if start > moment else start + datetime.timedelta(days=1)

    def __str__(self) -> str:
        return f"{self.start:%H:%M}-{self.end:%H:%M}"


def parse_hours(text: str) -> Hours:
    """Read hours such as ``20:00-06:00``.

    Raises:
        SettingsError: If the text has another form, or both times are equal.
    """
    match = re.fullmatch(r"([01]?\d|2[0-3]):([0-5]\d)-([01]?\d|2[0-3]):([0-5]\d)", text.strip())
    numbers = [int(number) for number in match.groups()] if match else []
    if not numbers or numbers[:2] == numbers[2:]:
        raise SettingsError(
            "invalid_hours",
            f"--hours: expected two different times such as 20:00-06:00, got '{text}'.",
            option="--hours",
            value=text,
        )
    return Hours(datetime.time(numbers[0], numbers[1]), datetime.time(numbers[2], numbers[3]))


class Pace:
    """Waiting times before requests.

    Args:
        per_second: Maximum number of requests per second; None is no limit.
        hours: Hours in which requests are allowed; None allows all.
        say: Function that receives a line if the wait is for the hours.
        now: Function that returns the local time.
        clock: Function that returns the seconds of a monotonic clock.
        sleep: Function that waits a number of seconds.
    """

    def __init__(
        self,
        per_second: float | None,
        hours: Hours | None,
        say: Say,
        *,
        now: Callable[[], datetime.datetime] = datetime.datetime.now,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.hours, self.say, self.sleep = hours, say, sleep
        self._interval = 1 / per_second if per_second else 0.0
        self._now, self._clock = now, clock
        self._next_request = clock()

    def wait(self) -> None:
        """Wait until the next request is allowed."""
        while self._interval and (remaining := self._next_request - self._clock()) > 0:
            self.sleep(min(remaining, MAX_SLEEP_SECONDS))
        self._wait_for_hours()
        self._next_request = max(self._next_request, self._clock()) + self._interval

    def _wait_for_hours(self) -> None:
        """Wait until the hours start, and say until when."""
        if self.hours is None or self.hours.include(self._now()):
            return
        start = self.hours.next_start(self._now())
        self.say(f"waiting until {start:%Y-%m-%d %H:%M}, because requests are allowed in the hours {self.hours}")
        while not self.hours.include(moment := self._now()):
            remaining = (self.hours.next_start(moment) - moment).total_seconds()
            self.sleep(min(max(remaining, 0.01), MAX_SLEEP_SECONDS))
