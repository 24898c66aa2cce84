"""Consistency and backward transfer, from scores after each round.

Scores are in [0, 1], and larger is better, as for accuracy. Source: Fowler and AlRegib, ICIP 2026, section 3. Cases
that the paper does not define are defined below.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Mode = Literal["literal", "open", "clipped"]
"""How `consistency` treats an interval without recovery, and gains: see the function's argument `mode`."""

ROUNDING = 1e-12
"""Relative tolerance for reaching a peak again; it allows for rounding errors in means."""


@dataclass(frozen=True)
class Consistency:
    """Consistency of a series of scores.

    Attributes:
        value: 1 minus the mean forgetting over the recovery intervals, at most 1; 1 without an interval. If only losses
            count it is at least 0; if gains above the peak count as well it has no lower bound: (0.1, 0, 1) gives -4.
        intervals: Pairs (index of the peak, index of the end) of each recovery interval.
    """

    value: float
    intervals: tuple[tuple[int, int], ...]


def recovery_intervals(series: Sequence[float], last: bool = False) -> tuple[tuple[int, int], ...]:
    """Return the recovery intervals of a series: from a peak to the first later score that reaches the peak again.

    The first peak is the first score above 0. An interval ends at the first later score that is not below its peak;
    this score is the next peak. Intervals of a single step do not count. Scores within `ROUNDING` of the peak are not
    below it. A series that never falls has no interval.

    Args:
        series: Scores in order, each finite and >= 0.
        last: True to include a last interval without recovery, up to the last score, of any length.

    Returns:
        Pairs (index of the peak, index of the end).

    Raises:
        ValueError: If a score is negative or not finite.
    """
    if not all(math.isfinite(value) and value >= 0 for value in series):
        raise ValueError(f"expected finite scores >= 0, got {list(series)}")
    peak = next((place for place, value in enumerate(series) if value > 0), len(series))
    intervals = []
    for place in range(peak + 1, len(series)):
        if series[place] >= series[peak] * (1 - ROUNDING):
            if place - peak >= 2:
                intervals.append((peak, place))
            peak = place
    if last and peak < len(series) - 1:
        intervals.append((peak, len(series) - 1))
    return tuple(intervals)


def consistency(series: Sequence[float], mode: Mode = "literal") -> Consistency:
    """Compute the consistency of a series of scores A_0, A_1, ...

    The consistency is 1 minus the mean forgetting over the recovery intervals. The forgetting of an interval from peak
    i to end j is the sum over s = i..j of |A_i - A_s| / A_i / (j - i).

    Args:
        series: Scores in order, at least one, each finite and >= 0.
        mode: ``literal`` ignores an interval without recovery, so that a run that collapses after its best round can
            have consistency 1, and counts a gain of the last score above the peak as forgetting. ``open`` also includes
            an interval without recovery. ``clipped`` counts losses only, max(0, A_i - A_s).

    Raises:
        ValueError: If there is no score, or one is negative or not finite, or the mode is unknown.
    """
    if not len(series):
        raise ValueError("expected at least one score, got none")
    if mode not in ("literal", "open", "clipped"):
        raise ValueError(f"expected the mode 'literal', 'open' or 'clipped', got {mode!r}")
    intervals = recovery_intervals(series, last=mode == "open")
    forgotten = [_forgotten(series[i : j + 1], mode == "clipped") for i, j in intervals]
    return Consistency(1 - math.fsum(forgotten) / len(forgotten) if forgotten else 1.0, intervals)


def _forgotten(scores: Sequence[float], losses_only: bool) -> float:
    """Return the forgetting of one interval, given its scores from the peak on."""
    peak = scores[0]
    gaps = [max(0.0, peak - score) if losses_only else abs(peak - score) for score in scores]
    return math.fsum(gaps) / peak / (len(scores) - 1)


def backward_transfer(
    scores: Mapping[int, Mapping[str, float]], participants: Mapping[int, Collection[str]], at: int
) -> float:
    """Return the backward transfer at a round (equation 10): negative for a loss since the sites last participated.

    It is the mean, over the sites that participated in a round before `at`, of the score after `at` minus the score
    after the last such round.

    Args:
        scores: Maps each round and site to the score of the site's model after the round, on its own test images. Sites
            without one of the two scores are left out.
        participants: Maps each round to the sites that trained in it.
        at: Round number, from 1.

    Returns:
        A value in [-1, 1]; 0 if no site participated before.

    Raises:
        KeyError: If the scores lack a round that is needed.
    """
    last = {site: round_ for round_ in sorted(participants) if round_ < at for site in participants[round_]}
    now = scores[at]
    changes = [now[site] - scores[then][site] for site, then in last.items() if site in now and site in scores[then]]
    return math.fsum(changes) / len(changes) if changes else 0.0
