"""Tests of partial participation: the number of sites and the random draw."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some

from medfl.contract import Server, State
from medfl.settings import Settings
from medfl.testing.cohort import make_task
from medfl.toolkit.aggregation import sample_sites
from medfl_methods.fedavg import FedAvg
from medfl_methods.scaffold import Scaffold


def chosen(k, fraction, seed=0):
    return sample_sites([f"{index:03}" for index in range(k)], fraction, torch.Generator().manual_seed(seed))


@given(k=some.integers(1, 60), percent=some.integers(1, 100), seed=some.integers(0, 9))
def test_the_count_is_the_floor_of_the_share_and_at_least_one(k, percent, seed):
    names = chosen(k, percent / 100, seed)
    assert len(names) == max(1, k * percent // 100)  # in integers: no rounding
    assert names == sorted(set(names))
    assert set(names) <= {f"{index:03}" for index in range(k)}


@pytest.mark.parametrize(
    ("k", "fraction", "count"), [(100, 0.29, 29), (50, 0.58, 29), (30, 0.1, 3), (7, 1.0, 7), (9, 1e-9, 1)]
)
def test_shares_that_floating_point_gets_wrong(k, fraction, count):
    assert len(chosen(k, fraction)) == count


def test_no_site_is_chosen_from_none():
    assert sample_sites([], 0.5, torch.Generator()) == []


def test_a_round_is_decided_by_seed_and_round():
    assert chosen(40, 0.25, 1) == chosen(40, 0.25, 1) != chosen(40, 0.25, 2)


def test_another_seed_is_another_schedule_for_all_methods():
    sites = [f"{index:03}" for index in range(40)]

    def asked_by(method, seed):
        settings = Settings(rounds=3, fraction=0.25, seed=seed)
        server = Server("server", 1, State(), make_task(), settings, sites=sites)
        method.setup(server)
        return [request.to for request in method.plan(server).requests]

    assert asked_by(FedAvg(), 1) == asked_by(Scaffold(), 1) != asked_by(FedAvg(), 2)


def test_a_site_without_training_data_is_never_asked():
    facts = {"a": {"trainable": True}, "b": {"trainable": False}, "c": {"trainable": True}}
    server = Server(
        "server", 0, State(), make_task(), Settings(rounds=9, fraction=0.5), sites=list("abc"), site_info=facts
    )
    method = FedAvg()
    method.setup(server)
    names = set()
    for server.round in range(1, 10):
        requests = method.plan(server).requests
        assert len(requests) == 1  # half of the two that can train
        names.add(requests[0].to)
    assert names == {"a", "c"}
