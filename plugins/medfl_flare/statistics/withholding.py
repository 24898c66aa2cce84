"""What of a table of counts may be shown where its total is known, and which quantiles of a few cases.

A cell of 1 to ``least - 1`` cases is rare and never shown. As the total is known, its neighbours in the order of the
table are withheld with it: cells stand in pairs (an odd last one makes three), a pair with a rare cell is withheld as a
whole, and as long as fewer than ``2 * least`` cases are withheld so, the next pair goes with it. A table of fewer cases
in all is withheld as a whole. Other empty cells are shown: they are about nobody. Neither which cell is withheld nor
when that ends depends on anything but which pairs hold a rare cell and on sums that the total tells anyway; so even who
knows this rule can't exclude any number from 1 to ``least - 1`` for a rare cell
(tests/medfl_flare/statistics/test_withholding.py goes through all small tables).

The usual rule, to withhold the smallest other cell (Hundepool et al., Statistical Disclosure Control, 2012, ch. 4),
gives more cells and keeps this from readers who don't know it only.
"""

from __future__ import annotations

from collections.abc import Sequence

PAIR = 2
"""Cells that are shown or withheld together."""


def shown_counts(counts: Sequence[int], least: int) -> list[int | None]:
    """The cells that may be shown beside their sum; None for one that is withheld.

    Args:
        counts: The cells, two or more, each >= 0, in an order that does not depend on them.
        least: Fewest cases of which a number may be shown, >= 1.

    Example:
        >>> shown_counts([400, 120, 3, 90, 0, 55], 10)
        [400, 120, None, None, 0, 55]
    """
    if least > 1 and sum(counts) < 2 * least:
        return [None] * len(counts)
    pairs = _pairs(len(counts))
    hidden: set[int] = set()
    for start, pair in enumerate(pairs):
        if any(0 < counts[cell] < least for cell in pair):
            hidden |= _together(pairs[start:] + pairs[:start], counts, least)
    return [None if cell in hidden else count for cell, count in enumerate(counts)]


def shown_levels(cases: int, levels: Sequence[float], least: int) -> list[float]:
    """The levels whose quantiles may be shown: those with `least` cases on each side, so that no case is one.

    Args:
        cases: How many there are.
        levels: In (0, 1).
        least: As in `shown_counts`.
    """
    return [level for level in levels if cases * min(level, 1 - level) >= least - 1e-9]


def _pairs(cells: int) -> list[range]:
    starts = list(range(0, max(1, cells - cells % PAIR), PAIR)) if cells else []
    return [range(start, cells if start == starts[-1] else start + PAIR) for start in starts]


def _together(pairs: Sequence[range], counts: Sequence[int], least: int) -> set[int]:
    """The first pair, and those that follow it until enough cases are withheld."""
    hidden: set[int] = set()
    for pair in pairs:
        hidden |= {*pair}
        if sum(counts[cell] for cell in hidden) >= 2 * least:
            break
    return hidden
