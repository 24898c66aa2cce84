"""Repeated work during a longer task takes at most its share of the time."""

from __future__ import annotations

import pytest

from medfl_studies.study import limit_time_share


@pytest.mark.parametrize(
    ("share", "calls"), [(1.0, [0, 4, 8, 12, 16, 20, 24, 28]), (0.5, [0, 6, 12, 18, 24]), (0.25, [0, 12, 24])]
)
def test_calls_that_come_too_early_do_nothing(share: float, calls: list[float]) -> None:
    """Each call takes 3 seconds, with 1 second between two attempts; a skipped call takes no time."""
    now, begun = 0.0, []

    def work(name: str) -> None:
        nonlocal now
        begun.append((name, now))
        now += 3

    call = limit_time_share(share, work, lambda: now)
    while now < 30:
        call("tables")
        now += 1
    assert begun == [("tables", time) for time in calls]


def test_a_call_that_fails_is_tried_again() -> None:
    tries = []

    def work() -> None:
        tries.append(1)
        raise OSError("disk full")

    call = limit_time_share(0.01, work)
    for _ in range(2):
        with pytest.raises(OSError, match="disk full"):
            call()
    assert len(tries) == 2
