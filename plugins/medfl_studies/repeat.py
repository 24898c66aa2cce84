"""Work that is done again and again while something longer goes on."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import ParamSpec

P = ParamSpec("P")


def at_most(share: float, work: Callable[P, None], clock: Callable[[], float] = time.monotonic) -> Callable[P, None]:
    """Wrap a function so that it takes at most a share of the time, whatever one call costs.

    A call that comes too early does nothing: after a call that took t seconds, the next one that does anything comes
    t * (1 / share - 1) seconds later. The first call is never too early.

    Args:
        share: Of the time, in (0, 1]; with 1 every call counts.
        work: The function.
        clock: Returns the time in seconds.
    """
    due = -math.inf

    def call(*args: P.args, **kwargs: P.kwargs) -> None:
        nonlocal due
        begun = clock()
        if begun < due:
            return
        work(*args, **kwargs)
        ended = clock()
        due = ended + (ended - begun) * (1 / share - 1)

    return call
