"""Numbers of events as they can be shown: a run folder, or a server that is followed, may say anything."""

from __future__ import annotations

from typing import Any

from medfl.types import Meta

MOST = 10**8
"""Rounds and steps have numbers below it, as in messages between machines."""

LATEST = 1e11
"""Seconds since 1970 at which an event is at the latest; calendars end not long after."""

LARGEST = 1e100
"""Numbers beyond it are not shown, as if they were not finite: a picture reckons with their differences."""

MOST_COSTS = 1e21
"""Seconds or bytes of one step, at most."""


def shown_number(value: Any, low: float = -LARGEST, high: float = LARGEST) -> float | None:
    """A number from a file that can be shown, from `low` to `high`; None for anything else."""
    try:
        return float(value) if low <= value <= high else None  # nor is NaN
    except TypeError:
        return None


def round_number(value: Any) -> int:
    """The number of a round or a step, in [0, `MOST`).

    Raises:
        ValueError: If it can't be one.
    """
    if type(value) is not int or not 0 <= value < MOST:
        raise ValueError(f"expected the number of a round or a step, 0 to {MOST - 1}")
    return value


def promised(privacy: Any) -> Meta | None:
    """What a run promises of privacy, where it is an object with a budget that can be shown; else None."""
    known = isinstance(privacy, dict) and shown_number(privacy.get("epsilon")) is not None
    return dict(privacy) if known else None
