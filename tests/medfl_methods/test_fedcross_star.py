"""Tests of FedCross* and the single-model FedCross against plain loops, with failing sites, and of the traffic."""

import pandas as pd
import pytest
import torch
from peer_toys import (
    NAMES,
    adam,
    owners,
    run,
    states,
)
from torch.nn import functional as F

from medfl.testing.cohort import bits, make_sites, make_task
from medfl.utils.rng import make_generator
from medfl.utils.wire import payload_bytes, tensors_equal


def visit(model, optimizer, site, round_, epochs=1):
    """Train a model at a site by a plain loop over its batches."""
    data = make_sites()[site].train
    generator = make_generator(7, site, round_, "batches")
    smallest = 2 if any(isinstance(module, torch.nn.BatchNorm2d) for module in model.train().modules()) else 1
    for _ in range(epochs):
        for rows in torch.randperm(len(data), generator=generator).split(5):
            if len(rows) >= smallest:
                optimizer.zero_grad()
                F.cross_entropy(model(data.images[rows]), data.class_labels[rows]).backward()
                optimizer.step()


def plain_models(task, networks):
    torch.set_num_threads(1)  # as a run does
    models = {}
    for name, network in networks.items():
        models[name] = task.load(task.initial(7, network), network)
    return models


def assert_models(tensors, models):
    for name, model in models.items():
        for key, tensor in model.state_dict().items():
            torch.testing.assert_close(
                tensors[name][key], tensor, atol=1e-6, rtol=1e-5, msg=lambda m, k=key: f"{k}: {m}"
            )


@pytest.mark.parametrize("state", ["travel", "reset"])
def test_fedcross_star_equals_a_plain_loop_over_different_networks(tmp_path, state):
    """Model O_i is trained on the data of i for three times the epochs, because there are three sites."""
    task, networks = adam(make_task()), {"site-1": "wide", "site-2": "norm", "site-3": "plain"}
    models = plain_models(task, networks)
    optimizers = {name: task.optimizer(model.parameters()) for name, model in models.items()}
    for round_ in (1, 2, 3):
        for host, owner in zip(NAMES, owners(round_), strict=True):
            if state == "reset":
                optimizers[owner] = task.optimizer(models[owner].parameters())
            visit(models[owner], optimizers[owner], host, round_, epochs=3)
    assert any(owner != host for round_ in (1, 2, 3) for host, owner in zip(NAMES, owners(round_), strict=True))
    result = run(tmp_path, "fedcross_star", {"optimizer_state": state}, task=task, networks_by_site=networks)
    assert {name: kinds["personal"].network for name, kinds in result.models.items()} == networks
    assert_models({name: kinds["personal"].tensors for name, kinds in result.models.items()}, models)


@pytest.mark.parametrize("state", ["travel", "reset"])
def test_one_model_visits_the_sites_in_turn(tmp_path, state):
    task = adam(make_task())
    (model,) = plain_models(task, {"one": "norm"}).values()
    optimizer, orders = task.optimizer(model.parameters()), []
    for round_ in (1, 2, 3):
        orders.append(owners(round_))
        for host in orders[-1]:
            if state == "reset":
                optimizer = task.optimizer(model.parameters())
            visit(model, optimizer, host, round_)
    assert orders[0] != orders[1]
    result = run(tmp_path, "fedcross", {"circulating": "one", "optimizer_state": state}, task=task)
    assert {frozenset(kinds) for kinds in result.models.values()} == {frozenset({"global"})}
    assert_models({name: kinds["global"].tensors for name, kinds in result.models.items()}, dict.fromkeys(NAMES, model))


def test_optimiser_state_returns_with_the_model(tmp_path):
    run(tmp_path, "fedcross_star", task=adam(make_task()))
    for name in NAMES:
        steps = states(tmp_path)[name].tensors["optimizer/head.weight/step"]
        visits = [NAMES[owners(round_).index(name)] for round_ in (1, 2, 3)]
        assert steps == sum(3 * {"site-1": 4, "site-2": 3, "site-3": 2}[host] for host in visits)  # 21 = 4 * 5 + 1
    run(tmp_path / "reset", "fedcross_star", {"optimizer_state": "reset"})
    assert not any(key.startswith("optimizer/") for name in NAMES for key in states(tmp_path / "reset")[name].tensors)


def test_bytes_between_sites_are_those_of_the_models(tmp_path):
    run(tmp_path, "fedcross_star", {"optimizer_state": "reset"}, networks_by_site={"site-1": "wide"}, rounds=2)
    sizes = {name: payload_bytes(make_task().initial(7, "wide" if name == "site-1" else "norm")) for name in NAMES}
    expected = dict.fromkeys(NAMES, 0)
    for round_ in (1, 2):
        for host, owner in zip(NAMES, owners(round_), strict=True):
            if host != owner:
                expected[owner] += sizes[owner]  # there
                expected[host] += sizes[owner]  # and back
    table = pd.read_csv(tmp_path / "metrics.csv")
    spent = table[table["metric"] == "bytes_to_peers"].groupby("site")["value"].sum()
    assert spent.to_dict() == expected
    assert set(table[table["metric"] == "bytes_up"]["value"]) == {0}


def test_steps_are_scaled_like_epochs(tmp_path):
    run(
        tmp_path,
        "fedcross_star",
        {"route": "identity", "p2p_scale": 2},
        task=adam(make_task("plain")),
        steps=3,
        rounds=1,
    )
    assert {states(tmp_path)[name].tensors["optimizer/head.weight/step"].item() for name in NAMES} == {6}


def test_unavailable_owner_receives_its_model_later(tmp_path):
    """The owner misses the return of its model in round 1, and still sends the trained model in round 2."""
    assert owners(1)[1] == "site-3"
    result = run(tmp_path / "whole", "fedcross_star", rounds=3)
    late = run(
        tmp_path / "late", "fedcross_star", rounds=3, unavailable=lambda site, step: (site, step) == ("site-3", 3)
    )
    assert bits(late).keys() == bits(result).keys()
    assert all(tensors_equal(tensors, bits(result)[key]) for key, tensors in bits(late).items())


def test_unavailable_host_leaves_the_model_unchanged(tmp_path):
    """site-2 is never available; the model that the route assigns to it stays untrained in that round."""
    result = run(tmp_path, "fedcross_star", rounds=1, unavailable=lambda site, step: site == "site-2")
    start = make_task().initial(7)
    owner = owners(1)[1]
    assert tensors_equal(result.models[owner]["personal"].tensors, start)
    others = [n for n in NAMES if n not in (owner, "site-2")]
    assert not any(tensors_equal(result.models[name]["personal"].tensors, start) for name in others)
