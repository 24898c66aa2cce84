"""Forgetting between rounds: numbers by hand, invariances, and a reference that is written in another way."""

import math
from fractions import Fraction

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as some

from medfl_report.forgetting_scores import backward_transfer, consistency, recovery_intervals

MODES = ("literal", "open", "clipped")
QUICK = settings(max_examples=150, deadline=None, derandomize=True)
SERIES = some.lists(some.integers(0, 4), min_size=1, max_size=9)
"""Scores in quarters: few values, so that ties and zeros happen often."""


def values(series):
    """Consistency in each mode: literal, open, clipped."""
    return tuple(consistency(series, mode).value for mode in MODES)


def quarters(series):
    return [value / 4 for value in series]


# ---- numbers by hand


def test_two_intervals():
    # 0 to 2: |.5-.4| + |.5-.6| = .2, / .5 / 2 = .2; losses .1 / .5 / 2 = .1
    # 2 to 5: |.6-.3| + |.6-.3| + |.6-.8| = .8, / .6 / 3 = 4/9; losses .6 / .6 / 3 = 1/3
    series = [0.5, 0.4, 0.6, 0.3, 0.3, 0.8]
    literal = 1 - (0.2 + 4 / 9) / 2
    assert values(series) == pytest.approx((literal, literal, 1 - (0.1 + 1 / 3) / 2))
    for mode in MODES:
        assert consistency(series, mode).intervals == ((0, 2), (2, 5))


def test_a_closed_and_an_open_interval():
    # 0 to 2: .4 / .4 / 2 = .5 (the end equals the peak); 2 to 3 is open: |.4-.1| / .4 / 1 = .75
    series = [0.4, 0.0, 0.4, 0.1]
    assert values(series) == pytest.approx((0.5, 1 - (0.5 + 0.75) / 2, 0.5))
    assert consistency(series).intervals == consistency(series, "clipped").intervals == ((0, 2),)
    assert consistency(series, "open").intervals == ((0, 2), (2, 3))


@pytest.mark.parametrize(
    "series",
    [[0.1, 0.2, 0.7], [0.3, 0.3, 0.3], [0.2, 0.2, 0.5, 0.5, 0.9], [0.0, 0.0, 0.4], [0.0], [0.0] * 3, [0.7], [0, 1]],
)
def test_a_series_that_never_falls_forgets_nothing(series):
    for mode in MODES:
        assert consistency(series, mode).value == 1
        assert consistency(series, mode).intervals == ()


def test_a_collapse_after_the_best_round_shows_in_the_open_reading_only():
    # open, 1 to 3: (|.8-.2| + |.8-.4|) / .8 / 2 = 1 / 1.6 = .625
    series = [0.5, 0.8, 0.2, 0.4]
    assert values(series) == pytest.approx((1, 0.375, 1))
    assert consistency(series).intervals == ()
    assert consistency(series, "open").intervals == ((1, 3),)


def test_one_step_down_at_the_end_is_an_open_interval():
    # open, 0 to 1: |.8-.4| / .8 / 1 = .5
    assert values([0.8, 0.4]) == pytest.approx((1, 0.5, 1))


def test_what_is_gained_above_the_old_peak_counts_as_forgotten_but_for_clipped():
    # literal: (.1 + |.5-.9|) / .5 / 2 = .5; clipped: .1 / .5 / 2 = .1
    series = [0.5, 0.4, 0.9]
    assert values(series) == pytest.approx((0.5, 0.5, 0.9))
    # the same dip with a recovery to just the peak: both .1
    assert values([0.5, 0.4, 0.5]) == pytest.approx((0.9, 0.9, 0.9))


def test_a_large_gain_after_a_dip_takes_it_below_zero():
    # literal: (|.1-0| + |.1-1|) / .1 / 2 = 5; clipped: .1 / .1 / 2 = .5
    assert values([0.1, 0.0, 1.0]) == pytest.approx((-4, -4, 0.5))


def test_the_first_peak_is_the_first_score_above_zero():
    # from place 2 on: (.1 + 0) / .2 / 2 = .25
    series = [0.0, 0.0, 0.2, 0.1, 0.2]
    assert values(series) == pytest.approx((0.75, 0.75, 0.75))
    assert consistency(series).intervals == ((2, 4),)
    # a zero behind the first peak is a score like any other: (.2 + .2 + 0) / .2 / 3 = 2/3
    assert values([0.2, 0.0, 0.0, 0.2]) == pytest.approx((1 / 3, 1 / 3, 1 / 3))


def test_ties_end_an_interval_and_start_the_next():
    # plateau 0, 1, 2: intervals of length 1, not counted; 2 to 4: (.2 + 0) / .4 / 2 = .25; 4 to 5 again of length 1
    series = [0.4, 0.4, 0.4, 0.2, 0.4, 0.4]
    assert values(series) == pytest.approx((0.75, 0.75, 0.75))
    assert consistency(series).intervals == ((2, 4),)
    # a plateau of two inside: 0 to 2 and 2 to 4 are two intervals, not one of 0 to 4
    assert recovery_intervals([0.4, 0.2, 0.4, 0.2, 0.4]) == ((0, 2), (2, 4))


def test_means_that_differ_by_rounding_only_are_a_tie():
    low, high = (0.7 + 0.1) / 2, (0.4 + 0.4) / 2
    assert low < high  # in floating point
    # (.2 + 0) / .4 / 2 = .25
    assert values([high, 0.2, low]) == pytest.approx((0.75, 0.75, 0.75))
    assert consistency([high, low], "open").value == 1
    # a real difference is none, however small: 1e-6 below the peak is not recovered
    assert recovery_intervals([0.4, 0.2, 0.4 - 1e-6]) == ()


# ---- what is refused


@pytest.mark.parametrize("mode", MODES)
def test_no_score_is_refused(mode):
    with pytest.raises(ValueError, match="expected at least one score, got none"):
        consistency([], mode)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, -0.1])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_scores_that_are_no_scores_are_refused(bad, place):
    series = [0.5, 0.4, 0.6]
    series[place] = bad
    with pytest.raises(ValueError, match="expected finite scores >= 0, got"):
        consistency(series)
    with pytest.raises(ValueError, match="expected finite scores >= 0, got"):
        recovery_intervals(series)


@pytest.mark.parametrize("mode", ["Literal", "", "closed"])
def test_an_unknown_mode_is_refused(mode):
    with pytest.raises(ValueError, match=f"'literal', 'open' or 'clipped', got '{mode}'"):
        consistency([0.5, 0.4, 0.6], mode)


# ---- against a reference, in exact fractions


def reference(series, mode):
    """Value and intervals: peaks are the scores above 0 that no earlier one exceeds."""
    scores = [Fraction(value) for value in series]
    peaks = [t for t, score in enumerate(scores) if score > 0 and score == max(scores[: t + 1])]
    pairs = [(i, j) for i, j in zip(peaks, peaks[1:]) if j > i + 1]
    if mode == "open" and peaks and peaks[-1] + 1 < len(scores):
        pairs.append((peaks[-1], len(scores) - 1))
    losses = []
    for i, j in pairs:
        shares = [1 - scores[s] / scores[i] for s in range(i, j + 1)]
        losses.append(sum(share if share > 0 else 0 if mode == "clipped" else -share for share in shares) / (j - i))
    return 1 - sum(losses) / len(losses) if losses else Fraction(1), tuple(pairs)


@QUICK
@given(SERIES, some.sampled_from(MODES))
def test_as_the_reference(series, mode):
    result, (value, intervals) = consistency(quarters(series), mode), reference(series, mode)
    assert result.intervals == intervals
    assert result.value == pytest.approx(float(value), abs=1e-12)


# ---- invariances


@QUICK
@given(SERIES, some.floats(1e-3, 1e3))
def test_the_scale_does_not_matter(series, factor):
    for mode in MODES:
        first, other = consistency(quarters(series), mode), consistency([factor * value for value in series], mode)
        assert first.intervals == other.intervals
        assert first.value == pytest.approx(other.value, abs=1e-9)


@QUICK
@given(SERIES)
def test_bounds(series):
    literal, opened, clipped = values(quarters(series))
    assert max(literal, opened, clipped) <= 1
    assert literal <= clipped + 1e-12
    assert clipped >= 0


@QUICK
@given(SERIES, some.integers(0, 3))
def test_leading_zeros_move_the_intervals_and_nothing_else(series, zeros):
    for mode in MODES:
        first, other = consistency(series, mode), consistency([0] * zeros + series, mode)
        assert first.value == other.value
        assert tuple((i + zeros, j + zeros) for i, j in first.intervals) == other.intervals


@QUICK
@given(SERIES)
def test_a_new_best_score_ends_the_open_interval(series):
    ended, also_open = consistency(series).intervals, consistency(series, "open").intervals
    assume(len(also_open) > len(ended))
    peak, _ = also_open[-1]
    after = [*series, max(series) + 1]
    assert consistency(after).intervals == (*ended, (peak, len(series)))
    assert consistency(after, "open") == consistency(after)  # nothing is open any more


def test_a_recovery_closes_what_was_open():
    # open, 0 to 2: (.4 + .2) / .8 / 2 = .375; closed, 0 to 3: (.4 + .2 + .1) / .8 / 3 = .7 / 2.4
    assert consistency([0.8, 0.4, 0.6], "open").intervals == ((0, 2),)
    assert values([0.8, 0.4, 0.6]) == pytest.approx((1, 0.625, 1))
    assert consistency([0.8, 0.4, 0.6, 0.9]).intervals == ((0, 3),)
    literal = 1 - 0.7 / 2.4
    assert values([0.8, 0.4, 0.6, 0.9]) == pytest.approx((literal, literal, 1 - 0.6 / 2.4))


# ---- backward transfer

SCORES = {
    1: {"a": 0.50, "b": 0.40, "c": 0.30},
    2: {"a": 0.60, "b": 0.10, "c": 0.20},
    3: {"a": 0.20, "b": 0.50, "c": 0.60},
    4: {"a": 0.45, "b": 0.30, "c": 0.90},
}
TOOK_PART = {1: ["a", "b"], 2: ["a"], 3: ["c"], 4: ["a", "c"]}


def test_backward_transfer_by_hand():
    # after 2: a .6 - .5 (last took part in 1, its part in 2 does not count), b .1 - .4: (.1 - .3) / 2
    assert backward_transfer(SCORES, TOOK_PART, 2) == pytest.approx(-0.1)
    # after 3: a .2 - .6 (last in 2, not in 1), b .5 - .4; c takes part for the first time: (-.4 + .1) / 2
    assert backward_transfer(SCORES, TOOK_PART, 3) == pytest.approx(-0.15)
    # after 4: a .45 - .6 (in 2), b .3 - .4 (in 1), c .9 - .6 (in 3): (-.15 - .1 + .3) / 3
    assert backward_transfer(SCORES, TOOK_PART, 4) == pytest.approx(0.05 / 3)


def test_without_an_earlier_site_there_is_nothing_to_transfer():
    assert backward_transfer(SCORES, TOOK_PART, 1) == 0
    assert backward_transfer(SCORES, {4: ["a", "b", "c"]}, 4) == 0
    assert backward_transfer(SCORES, {}, 4) == 0


def test_the_order_of_the_rounds_in_the_mapping_does_not_matter():
    backwards = dict(reversed(TOOK_PART.items()))
    for at in TOOK_PART:
        assert backward_transfer(SCORES, backwards, at) == backward_transfer(SCORES, TOOK_PART, at)


def test_sites_without_a_score_are_left_out():
    without = {at: {site: value for site, value in row.items() if site != "b"} for at, row in SCORES.items()}
    assert backward_transfer(without, TOOK_PART, 4) == pytest.approx((-0.15 + 0.3) / 2)
    assert backward_transfer(without, {1: ["b"], 2: ["b"]}, 4) == 0
    once = SCORES | {2: {"b": 0.1, "c": 0.2}}  # a has no score after the round in which it took part last
    assert backward_transfer(once, TOOK_PART, 4) == pytest.approx((-0.1 + 0.3) / 2)
    now = SCORES | {4: {"a": 0.45, "c": 0.9}}  # b has none now
    assert backward_transfer(now, TOOK_PART, 4) == pytest.approx((-0.15 + 0.3) / 2)


@pytest.mark.parametrize("lost", [1, 2, 4])
def test_a_round_without_scores_is_an_error(lost):
    scores = {at: row for at, row in SCORES.items() if at != lost}
    with pytest.raises(KeyError, match=str(lost)):
        backward_transfer(scores, TOOK_PART, 4)


ROUNDS = some.lists(some.sets(some.sampled_from("abcd")), min_size=1, max_size=5)
"""Sites that take part in the rounds 1, 2, ..."""


@QUICK
@given(ROUNDS, some.lists(some.floats(0, 1), min_size=4, max_size=4))
def test_a_model_that_stays_as_it_is_transfers_nothing(rounds, row):
    took_part = dict(enumerate(rounds, 1))
    scores = dict.fromkeys(took_part, dict(zip("abcd", row)))
    assert all(backward_transfer(scores, took_part, at) == 0 for at in took_part)


@QUICK
@given(ROUNDS.filter(any), some.lists(some.floats(0, 0.5), min_size=4, max_size=4), some.floats(-0.5, 0.5))
def test_a_shift_of_all_later_scores_is_the_transfer(rounds, row, shift):
    took_part = dict(enumerate(rounds, 1))
    at = len(rounds) + 1
    scores = dict.fromkeys(took_part, dict(zip("abcd", row)))
    scores[at] = {site: value + shift for site, value in scores[1].items()}
    assert backward_transfer(scores, took_part, at) == pytest.approx(shift)
