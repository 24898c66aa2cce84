"""Cell suppression in tables whose total is known, and suppression of quantiles of few cases.

A cell with 1 to ``min_count - 1`` cases is rare and is never shown. As the total is known, cells next to it in the
order of the table are suppressed with it:

* Cells form pairs; an odd last cell makes a group of three. A pair with a rare cell is suppressed as a whole.
* Starting at each such pair, the following pairs are suppressed until this sequence of pairs has at least
  ``2 * min_count`` cases. After the last pair, the sequence continues with the first.
* A table with fewer than ``2 * min_count`` cases in total is suppressed as a whole.
* An empty cell in a pair that is not suppressed is shown: it describes no patient.

The set of suppressed cells depends only on which pairs contain a rare cell, and on sums that the total reveals anyway.
So even a reader who knows this rule can't exclude any number from 1 to ``min_count - 1`` for a rare cell;
tests/medfl_flare/statistics/test_suppression.py checks all small tables.

The usual rule suppresses the smallest other cell (Hundepool et al., Statistical Disclosure Control, 2012, ch. 4). It
shows more cells but protects only against readers who don't know the rule.
"""

from __future__ import annotations

from collections.abc import Sequence

CELLS_PER_GROUP = 2
"""Number of neighbouring cells of a table that form a group; a group is shown or suppressed as a whole."""


def suppress_counts(counts: Sequence[int], min_count: int) -> list[int | None]:
    """Return the counts that may be shown beside their sum, and None for each suppressed one.

    Args:
        counts: Counts of the cells, two or more, each >= 0, in an order that does not depend on the counts.
        min_count: Minimum number of cases behind a shown count, >= 1.

    Example:
        >>> suppress_counts([400, 120, 3, 90, 0, 55], 10)
        [400, 120, None, None, 0, 55]
    """
    if min_count > 1 and sum(counts) < 2 * min_count:
        return [None] * len(counts)
    pairs = _cell_groups(len(counts))
    hidden: set[int] = set()
    for start, pair in enumerate(pairs):
        if any(0 < counts[cell] < min_count for cell in pair):
            hidden |= _cells_to_suppress(pairs[start:] + pairs[:start], counts, min_count)
    return [None if cell in hidden else count for cell, count in enumerate(counts)]


def disclosable_levels(cases: int, levels: Sequence[float], min_count: int) -> list[float]:
    """Return the levels whose quantiles may be shown: levels with `min_count` cases on each side.

    So no shown quantile is one of the `min_count` smallest or largest values. It can be the value of a single case: the
    median of an odd number of cases is the value of the middle one.

    Args:
        cases: Number of cases.
        levels: Levels of the quantiles, in (0, 1).
        min_count: As for `suppress_counts`.
    """
    return [level for level in levels if cases * min(level, 1 - level) >= min_count - 1e-9]


def _cell_groups(cells: int) -> list[range]:
    """Return the groups of cells that are shown or suppressed together."""
    starts = list(range(0, max(1, cells - cells % CELLS_PER_GROUP), CELLS_PER_GROUP)) if cells else []
    return [range(start, cells if start == starts[-1] else start + CELLS_PER_GROUP) for start in starts]


def _cells_to_suppress(pairs: Sequence[range], counts: Sequence[int], min_count: int) -> set[int]:
    """Return the cells of the first pair, and of the following pairs until enough cases are suppressed."""
    hidden: set[int] = set()
    for pair in pairs:
        hidden |= {*pair}
        if sum(counts[cell] for cell in hidden) >= 2 * min_count:
            break
    return hidden
