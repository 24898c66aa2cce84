"""Routes of models: permutations with the right frequencies, and what happens to models that nobody can train."""

import math

import pytest

from medfl.methods.transfer import route
from medfl.utils.rng import make_generator

FOUR = ["a", "b", "c", "d"]


def draw(kind, hosts=FOUR, held=None, rounds=1, start=0):
    at_home = {name: name for name in hosts}
    return [
        route(hosts, at_home if held is None else held, kind, make_generator(7, "route", start + number))
        for number in range(rounds)
    ]


def test_sk_10_permutations_are_uniform():
    """10,000 rounds, four sites: 9 of the 24 permutations have no fixed point, on average there is one."""
    found = draw("random_permutation", rounds=10_000)
    assert all(list(one) == FOUR and sorted(one.values()) == FOUR for one in found)
    fixed = [sum(host == owner for host, owner in one.items()) for one in found]
    assert fixed.count(0) / 10_000 == pytest.approx(0.375, abs=0.02)
    assert sum(fixed) / 10_000 == pytest.approx(1, abs=0.04)
    for host in FOUR:  # four standard deviations
        shares = [sum(one[host] == owner for one in found) / 10_000 for owner in FOUR]
        assert shares == pytest.approx([0.25] * 4, abs=4 * math.sqrt(0.25 * 0.75 / 10_000))


def test_a_derangement_is_one_of_nine_and_each_as_often():
    found = [tuple(one.values()) for one in draw("derangement", rounds=3_000)]
    assert all(owner != host for one in found for host, owner in zip(FOUR, one, strict=True))
    counts = {one: found.count(one) for one in found}
    assert len(counts) == 9
    assert min(counts.values()) > 3_000 / 9 - 4 * math.sqrt(3_000 / 9)


def test_a_ring_hands_each_model_on():
    at = {name: name for name in FOUR}
    visited = {name: [] for name in FOUR}
    for _ in range(4):
        (found,) = draw("ring", held=at)
        at = {model: host for host, model in found.items()}
        for model, host in at.items():
            visited[model].append(host)
    assert visited["a"] == ["b", "c", "d", "a"]
    assert visited["d"] == ["a", "b", "c", "d"]


def test_identity_moves_nothing():
    assert draw("identity") == [{name: name for name in FOUR}]


@pytest.mark.parametrize("kind", ["random_permutation", "derangement", "ring", "identity"])
def test_one_host_keeps_its_model(kind):
    assert draw(kind, ["a"]) == [{"a": "a"}]


@pytest.mark.parametrize("kind", ["random_permutation", "derangement", "ring"])
def test_no_model_is_given_twice_whoever_holds_them(kind):
    """Two models at one host, one at a host that takes no part, two hosts without: every host, every model once."""
    held = {"m1": "a", "m2": "a", "m3": "elsewhere", "m4": "d"}
    seen = set()
    for found in draw(kind, held=held, rounds=200):
        assert set(found) <= set(FOUR)
        assert len(set(found.values())) == len(found)
        assert "m3" not in found.values()
        seen |= set(found.items())
        if kind != "ring":
            assert set(found.values()) == {"m1", "m2", "m4"}
        if kind == "derangement":
            assert all(held[model] != host for host, model in found.items())
    if kind == "random_permutation":
        assert len(seen) == 12, "each of three models comes to each of four hosts"
    if kind == "ring":
        assert seen == {("b", "m1"), ("a", "m4")}, "the second model of a host waits"


def test_more_models_than_hosts_wait_in_turn():
    held = {"m1": "a", "m2": "a", "m3": "a"}
    found = draw("random_permutation", ["a"], held, rounds=300)
    shares = [sum(one == {"a": model} for one in found) / 300 for model in held]
    assert shares == pytest.approx([1 / 3] * 3, abs=4 * math.sqrt(2 / 9 / 300))


def test_where_no_model_can_move_a_derangement_gives_up():
    assert draw("derangement", ["a"], {"m": "a"}) == [{"a": "m"}]
