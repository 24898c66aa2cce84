"""What a federation forgets between rounds, from scores after each round.

The scores are in [0, 1] and larger is better, such as accuracy. Source: Fowler and AlRegib, ICIP 2026, section 3, with
the cases that the paper leaves open settled below.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Mode = Literal["literal", "open", "clipped"]
"""How `consistency` reads the paper's definition."""

ROUNDING = 1e-12
"""Scores that are lower than a peak by no more than this share of it reach it: so do equal means of unequal scores."""


@dataclass(frozen=True)
class Consistency:
    """How well a series keeps what it has reached.

    Attributes:
        value: 1 minus the mean forgetting over the intervals; 1 without any. At most 1. Losses alone leave it at 0 or
            above; where gains count as well it has no lower bound: (0.1, 0, 1) gives -4.
        intervals: Positions in the series of each interval's peak and of its end.
    """

    value: float
    intervals: tuple[tuple[int, int], ...]


def recovery_intervals(series: Sequence[float], last: bool = False) -> tuple[tuple[int, int], ...]:
    """Stretches between a peak and the first later score that reaches it.

    The first peak is the first score above 0. An interval ends at the first later score that is not below its peak,
    which is the next peak; it counts if that takes two steps or more. A series that never falls has none. Scores
    within `ROUNDING` of the peak are not below it.

    Args:
        series: Scores in order, each finite and >= 0.
        last: Whether an interval that never ends counts as well, up to the last score, however short it is.

    Returns:
        Positions of the peak and of the end of each.

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
    """1 minus the mean, over intervals from peak i to end j, of sum over s = i..j of |A_i - A_s| / A_i / (j - i).

    The literal reading drops an interval that never ends, so a run that collapses after its best round may score 1;
    and it counts what the last score gains above the peak as forgotten.

    Args:
        series: Scores in order, at least one, each finite and >= 0.
        mode: ``literal``; ``open`` also counts an interval that never ends; ``clipped`` counts losses only, by
            max(0, A_i - A_s).

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
    """Forgetting of one interval, which begins at its peak."""
    peak = scores[0]
    gaps = [max(0.0, peak - score) if losses_only else abs(peak - score) for score in scores]
    return math.fsum(gaps) / peak / (len(scores) - 1)


def backward_transfer(
    scores: Mapping[int, Mapping[str, float]], participants: Mapping[int, Collection[str]], at: int
) -> float:
    """What sites have lost since they last took part, below 0, or gained (equation 10).

    It is the mean, over the sites that took part in a round before `at`, of the score after `at` minus the score after
    the last such round.

    Args:
        scores: Round to site to the score of the model that the site has after that round, on its own test images.
            Sites without one of the two scores are left out.
        participants: Round to the sites that trained in it.
        at: The round, from 1.

    Returns:
        In [-1, 1]; 0 if no site took part before.

    Raises:
        KeyError: If the scores lack a round that is needed.
    """
    last = {site: round_ for round_ in sorted(participants) if round_ < at for site in participants[round_]}
    now = scores[at]
    changes = [now[site] - scores[then][site] for site, then in last.items() if site in now and site in scores[then]]
    return math.fsum(changes) / len(changes) if changes else 0.0
