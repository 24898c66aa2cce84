"""Tests that `Averaging.weighting` agrees with the server's aggregation."""

import pytest
import torch

from medfl.engine.store import Store
from medfl.plugins import load_plugins
from medfl.testing.cohort import Case, make_sites, make_task

REGISTRY = load_plugins()
SIZES = {"a": 5, "b": 15}


@pytest.mark.parametrize(
    ("name", "args", "weighting"),
    [
        ("fedavg", {}, "size"),
        ("fedavg", {"weights": "uniform"}, "uniform"),
        ("fednova", {}, "size"),
        ("scaffold", {}, "uniform"),
        ("feddyn", {}, "uniform"),
        ("pfedme", {}, "uniform"),
        ("mr_mtl", {}, "uniform"),
        ("fedkper", {}, "method"),
        ("feddisco", {}, "method"),
        ("fedamp", {}, "method"),
        ("local", {}, "none"),
        ("cyclic", {}, "none"),
        ("fedcross", {}, "none"),
        ("fedproto", {}, "none"),
    ],
)
def test_each_method_says_how_it_weighs_sites(name, args, weighting):
    assert REGISTRY.make_method(name, args).weighting == weighting


@pytest.mark.parametrize("name", ["fedavg", "fednova", "scaffold", "fedbn"])
def test_the_servers_step_is_as_said(tmp_path, name):
    """After a round with equal steps at both sites, the mean of their updates with the stated weights was added."""
    sites, task = make_sites(SIZES), make_task("plain")
    case = Case(REGISTRY, name, {})
    result = case.run(tmp_path, task=task, sites=sites, rounds=1, steps=2)
    start, after = task.initial(7), result.outcome.models["global"].tensors
    replies = {site: Store(tmp_path / "state" / site).latest().tensors for site in SIZES}
    shares = {"size": {"a": 0.25, "b": 0.75}, "uniform": {"a": 0.5, "b": 0.5}}[case.make_method().weighting]
    for key, tensor in start.items():
        step = sum(share * replies[site][f"reply/model/{key}"] for site, share in shares.items())
        torch.testing.assert_close(after[key], tensor + step, atol=1e-6, rtol=1e-5)
