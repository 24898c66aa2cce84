"""Exact Shapley values (O-PF-10): games with known solutions, the axioms, and the mean over all orders of joining."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as some

from medfl_methods.pfedcdp.refinement import MAX_PLAYERS, normalise_values, shapley_values

NUMBERS = some.floats(-100, 100)


def game(worths, players):
    """Return a game from a list of 2^players values; the bits of an index name the members of a coalition."""
    return lambda who: worths[sum(1 << player for player in who)] if players else worths[0]


def games(players):
    return some.lists(NUMBERS, min_size=2**players, max_size=2**players)


def by_orders(worth, players):
    """Return the mean of each player's added value over all orders of joining."""
    sums = [0.0] * players
    for order in itertools.permutations(range(players)):
        for place, player in enumerate(order):
            sums[player] += worth(frozenset(order[: place + 1])) - worth(frozenset(order[:place]))
    return [total / math.factorial(players) for total in sums]


def test_the_glove_game():
    """One left glove and two right ones; a pair has the value 1."""
    values = shapley_values(lambda who: float(0 in who and bool(who & {1, 2})), 3)
    assert values == pytest.approx([2 / 3, 1 / 6, 1 / 6], abs=1e-15)


def test_the_airport_game():
    """Costs are 1, 2 and 4; each section of the runway is shared by the players that need it."""
    costs = [1.0, 2.0, 4.0]
    values = shapley_values(lambda who: max((costs[player] for player in who), default=0.0), 3)
    assert values == pytest.approx([1 / 3, 1 / 3 + 1 / 2, 1 / 3 + 1 / 2 + 2], abs=1e-15)


def test_a_vote_with_weights():
    """A majority needs 50 of [49, 48, 3]: any two players decide, so all three have the same power."""
    weights = [49, 48, 3]
    values = shapley_values(lambda who: float(sum(weights[player] for player in who) >= 50), 3)
    assert values == pytest.approx([1 / 3] * 3, abs=1e-15)


@pytest.mark.parametrize("team", [{0}, {1, 3}, {0, 1, 2, 3, 4}])
def test_unanimity(team):
    values = shapley_values(lambda who: float(who >= team), 5)
    assert values == pytest.approx([1 / len(team) if player in team else 0 for player in range(5)], abs=1e-15)


def test_three_teachers():
    """v() = 1/2, single .7 .6 .5, pairs (01) .8 (02) .7 (12) .6, all .8: the added values are always .2, .1 and 0."""
    worth = {(): 0.5, (0,): 0.7, (1,): 0.6, (2,): 0.5, (0, 1): 0.8, (0, 2): 0.7, (1, 2): 0.6, (0, 1, 2): 0.8}
    values = shapley_values(lambda who: worth[tuple(sorted(who))], 3)
    assert values == pytest.approx([0.2, 0.1, 0.0], abs=1e-15)
    assert normalise_values(values) == pytest.approx([2 / 3, 1 / 3, 0], abs=1e-15)


@given(games(4))
def test_it_is_the_mean_over_all_orders(worths):
    assert shapley_values(game(worths, 4), 4) == pytest.approx(by_orders(game(worths, 4), 4), abs=1e-10)


@given(games(5))
def test_efficiency(worths):
    assert sum(shapley_values(game(worths, 5), 5)) == pytest.approx(worths[-1] - worths[0], abs=1e-9)


@given(games(3), some.permutations(range(3)))
def test_renamed_players_take_their_values_along(worths, names):
    worth = game(worths, 3)
    values = shapley_values(worth, 3)
    renamed = shapley_values(lambda who: worth(frozenset(names[player] for player in who)), 3)
    assert renamed == pytest.approx([values[name] for name in names], abs=1e-10)


@given(games(3), NUMBERS)
def test_a_player_that_adds_the_same_to_all_gets_that_and_changes_no_other(worths, own):
    worth = game(worths, 3)
    values = shapley_values(lambda who: worth(who - {3}) + own * (3 in who), 4)
    assert values == pytest.approx([*shapley_values(worth, 3), own], abs=1e-9)


@given(games(3), games(3), NUMBERS)
def test_values_are_linear_in_the_game(first, other, factor):
    both = [left + factor * right for left, right in zip(first, other, strict=True)]
    parts = zip(shapley_values(game(first, 3), 3), shapley_values(game(other, 3), 3), strict=True)
    assert shapley_values(game(both, 3), 3) == pytest.approx([a + factor * b for a, b in parts], abs=1e-7)


@pytest.mark.parametrize("players", [0, 1, 2, 6])
def test_each_coalition_is_asked_once(players):
    coalitions = []

    def worth(who):
        coalitions.append(who)
        return float(len(who) ** 2)

    values = shapley_values(worth, players)
    assert len(coalitions) == len(set(coalitions)) == 2**players
    assert values == pytest.approx([players] * players)


@pytest.mark.parametrize("players", [-1, MAX_PLAYERS + 1])
def test_too_many_players(players):
    with pytest.raises(
        ValueError, match=f"expected 0 to {MAX_PLAYERS} players, since all their coalitions are computed, got"
    ):
        shapley_values(lambda who: 0.0, players)


@pytest.mark.parametrize(
    ("values", "weights"),
    [
        ([0.3, 0.1], [0.75, 0.25]),
        ([0.3, -0.1, 0.1], [0.75, 0, 0.25]),
        ([-0.2, -0.1], [0.5, 0.5]),
        ([0.0, 0.0, 0.0, 0.0], [0.25] * 4),
        ([5.0], [1.0]),
        ([math.nan, math.nan], [0.5, 0.5]),
    ],
)
def test_weights(values, weights):
    assert normalise_values(values) == pytest.approx(weights, abs=1e-15)


@given(some.lists(NUMBERS, min_size=1, max_size=8))
def test_weights_are_none_below_zero_and_sum_to_one(values):
    weights = normalise_values(values)
    assert min(weights) >= 0
    assert math.fsum(weights) == pytest.approx(1)
