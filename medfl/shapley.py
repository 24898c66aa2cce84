"""Exact Shapley values of a few players."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import combinations

MOST = 12
"""Players for which all coalitions are asked: 2 to the power of this."""


def shapley_values(worth: Callable[[frozenset[int]], float], players: int) -> list[float]:
    """Each player's share of what all are worth together: the mean of what it adds, over all orders of coming.

    Args:
        worth: Of a coalition, given as player numbers from 0; asked once for each of the 2^players coalitions.
        players: 0 to `MOST`.

    Returns:
        One value for each player; they sum to worth(all) - worth(nobody).

    Raises:
        ValueError: If there are too many players.

    Source: Shapley, A value for n-person games, 1953.

    Example:
        >>> shapley_values(lambda who: float(len(who) == 2), 2)
        [0.5, 0.5]
    """
    if not 0 <= players <= MOST:
        raise ValueError(f"expected 0 to {MOST} players, whose coalitions can all be asked, got {players}")
    everyone = range(players)
    known = {who: worth(who) for size in range(players + 1) for who in map(frozenset, combinations(everyone, size))}
    values = []
    for one in everyone:
        terms = (
            (known[who | {one}] - known[who])
            * math.factorial(len(who))
            * math.factorial(players - len(who) - 1)
            / math.factorial(players)
            for who in known
            if one not in who
        )
        values.append(math.fsum(terms))
    return values


def as_weights(values: list[float]) -> list[float]:
    """Weights that sum to 1: negative values count as 0; all alike where no value is above 0."""
    gains = [max(value, 0.0) for value in values]
    total = math.fsum(gains)
    return [gain / total for gain in gains] if total > 0 else [1 / len(gains)] * len(gains)
