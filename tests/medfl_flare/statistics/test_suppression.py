"""No suppressed count can be derived from the shown counts, even with the total and the rule."""

from __future__ import annotations

from collections import defaultdict
from itertools import product

import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st

from medfl_flare.statistics.suppression import disclosable_levels, suppress_counts


def tables(cells: int, total: int) -> list[tuple[int, ...]]:
    """Return all tables with that total."""
    heads = product(range(total + 1), repeat=cells - 1)
    return [(*head, total - sum(head)) for head in heads if sum(head) <= total]


@pytest.mark.parametrize(
    ("cells", "least", "most"), [(2, 2, 9), (2, 5, 25), (3, 3, 14), (4, 3, 14), (5, 2, 11), (6, 2, 9), (7, 2, 7)]
)
def test_a_rare_count_could_be_any_rare_count_of_all_tables_that_look_alike(cells: int, least: int, most: int) -> None:
    """An attacker knows the total, the shown counts, and this code."""
    for total in range(least, most + 1):
        alike: dict[tuple[int | None, ...], list[tuple[int, ...]]] = defaultdict(list)
        for table in tables(cells, total):
            alike[tuple(suppress_counts(table, least))].append(table)
        for shown, possible in alike.items():
            for cell in range(cells):
                rare = {table[cell] for table in possible if 0 < table[cell] < least}
                if shown[cell] is not None:
                    assert {table[cell] for table in possible} == {shown[cell]}
                    assert rare == set()
                else:
                    highest = min(least - 1, total)
                    assert rare in (set(), set(range(1, highest + 1)))
                    assert len({table[cell] for table in possible}) > 1, (shown, total)


@drawn(st.lists(st.integers(0, 60), min_size=2, max_size=12), st.integers(1, 15))
def test_what_is_shown_is_right_and_the_total_gives_no_single_count(counts: list[int], least: int) -> None:
    shown = suppress_counts(counts, least)
    hidden = [cell for cell, count in enumerate(shown) if count is None]
    assert all(count in (None, counts[cell]) for cell, count in enumerate(shown))
    assert {cell for cell, count in enumerate(counts) if 0 < count < least} <= set(hidden)
    if hidden and sum(counts) >= least:
        assert len(hidden) > 1
        assert sum(counts[cell] for cell in hidden) >= min(2 * least, sum(counts))
    if sum(counts) >= 2 * least and all(count == 0 or count >= least for count in counts):
        assert hidden == []


def test_examples() -> None:
    assert suppress_counts([400, 120, 3, 90, 0, 55], 10) == [400, 120, None, None, 0, 55]
    assert suppress_counts([120, 3], 10) == [None, None]
    assert suppress_counts([120, 30], 10) == [120, 30]
    assert suppress_counts([3, 0, 9, 1, 50, 60], 10) == [None] * 6, "13 cases are too few to hide the 3 among them"
    assert suppress_counts([12, 0, 0], 10) == [None] * 3, "so are these"
    assert suppress_counts([1, 2, 3], 1) == [1, 2, 3], "a site that allows single cases shows them"


def test_quantiles_need_enough_cases_on_each_side() -> None:
    levels = (0.05, 0.25, 0.5, 0.75, 0.95)
    assert disclosable_levels(200, levels, 10) == [*levels]
    assert disclosable_levels(199, levels, 10) == [0.25, 0.5, 0.75]
    assert disclosable_levels(39, levels, 10) == [0.5]
    assert disclosable_levels(19, levels, 10) == []


def test_twice_the_minimum_count_is_enough_for_a_table_and_for_a_suppressed_sum() -> None:
    """20 cases with a minimum of 10: the table is shown, and a pair of 20 cases suffices to hide a rare cell."""
    assert suppress_counts([10, 10], 10) == [10, 10]
    assert suppress_counts([10, 9], 10) == [None, None]
    assert suppress_counts([5, 15, 30, 30], 10) == [None, None, 30, 30]
    assert suppress_counts([5, 14, 30, 30], 10) == [None] * 4
