"""Tests of routes: permutations with the right frequencies, and models that no site can train."""

import math

import pytest
import torch

from medfl.contract import Site, State
from medfl.settings import Settings
from medfl.testing.cohort import make_task
from medfl.toolkit.model_transfer import ModelInTransit, draw_route, pack_model, receive_model
from medfl.utils.rng import make_generator

FOUR = ["a", "b", "c", "d"]


def draw(kind, hosts=FOUR, held=None, rounds=1, start=0):
    at_home = {name: name for name in hosts}
    return [
        draw_route(hosts, at_home if held is None else held, kind, make_generator(7, "route", start + number))
        for number in range(rounds)
    ]


def test_sk_10_permutations_are_uniform():
    """Draw 10,000 rounds with four sites: 9 of the 24 permutations have no fixed point, and the mean number is one."""
    assignments = draw("random_permutation", rounds=10_000)
    assert all(list(assignment) == FOUR and sorted(assignment.values()) == FOUR for assignment in assignments)
    fixed = [sum(host == owner for host, owner in assignment.items()) for assignment in assignments]
    assert fixed.count(0) / 10_000 == pytest.approx(0.375, abs=0.02)
    assert sum(fixed) / 10_000 == pytest.approx(1, abs=0.04)
    for host in FOUR:  # four standard deviations
        shares = [sum(assignment[host] == owner for assignment in assignments) / 10_000 for owner in FOUR]
        assert shares == pytest.approx([0.25] * 4, abs=4 * math.sqrt(0.25 * 0.75 / 10_000))


def test_a_derangement_is_one_of_nine_and_each_as_often():
    assignments = [tuple(assignment.values()) for assignment in draw("derangement", rounds=3_000)]
    assert all(owner != host for assignment in assignments for host, owner in zip(FOUR, assignment, strict=True))
    counts = {assignment: assignments.count(assignment) for assignment in assignments}
    assert len(counts) == 9
    assert min(counts.values()) > 3_000 / 9 - 4 * math.sqrt(3_000 / 9)


def test_a_ring_hands_each_model_on():
    at = {name: name for name in FOUR}
    visited = {name: [] for name in FOUR}
    for _ in range(4):
        (hosts,) = draw("ring", held=at)
        at = {model: host for host, model in hosts.items()}
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
    """Two models are at one host, one at a site that is not drawn, and two hosts have none."""
    held = {"m1": "a", "m2": "a", "m3": "elsewhere", "m4": "d"}
    seen = set()
    for models in draw(kind, held=held, rounds=200):
        assert set(models) <= set(FOUR)
        assert len(set(models.values())) == len(models)
        assert "m3" not in models.values()
        seen |= set(models.items())
        if kind != "ring":
            assert set(models.values()) == {"m1", "m2", "m4"}
        if kind == "derangement":
            assert all(held[model] != host for host, model in models.items())
    if kind == "random_permutation":
        assert len(seen) == 12, "each of three models comes to each of four hosts"
    if kind == "ring":
        assert seen == {("b", "m1"), ("a", "m4")}, "the second model of a host waits"


def test_more_models_than_hosts_wait_in_turn():
    held = {"m1": "a", "m2": "a", "m3": "a"}
    assignments = draw("random_permutation", ["a"], held, rounds=300)
    shares = [sum(assignment == {"a": model} for assignment in assignments) / 300 for model in held]
    assert shares == pytest.approx([1 / 3] * 3, abs=4 * math.sqrt(2 / 9 / 300))


def test_where_no_model_can_move_a_derangement_gives_up():
    assert draw("derangement", ["a"], {"m": "a"}) == [{"a": "m"}]


def test_only_the_peer_message_of_this_turn_has_arrived():
    """A late message with another stamp, and another owner's model, are ignored."""
    site = Site("b", 2, State(), make_task(), Settings(rounds=3))
    kept = {"w": torch.ones(1), "optimizer/w/step": torch.tensor(3.0)}
    late, wrong, right = (
        pack_model("b", ModelInTransit(owner, "norm", {name: value * tensor for name, tensor in kept.items()}), stamp)
        for owner, stamp, value in (("a", [1, 0], 5), ("c", [2, 0], 6), ("a", [2, 0], 7))
    )
    site.inbox = [late, wrong]
    assert receive_model(site, "a", [2, 0]) is None
    site.inbox = [late, wrong, right]
    message = receive_model(site, "a", [2, 0])
    assert message is not None
    assert {name: float(tensor) for name, tensor in message.kept.items()} == {"w": 7, "optimizer/w/step": 21}
