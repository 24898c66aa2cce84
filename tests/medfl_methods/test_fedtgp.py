"""FedTGP: margins, the loss of prototypes, and what the server's training makes of them."""

import math

import pytest
import torch

from medfl.engine.store import Store
from medfl.plugins import load_plugins
from medfl.testing.cohort import Case, make_site
from medfl.types import SERVER
from medfl_methods.fedtgp import contrastive_loss, margin

REGISTRY = load_plugins()
QUICK = {"server_epochs": 3}


def run(folder, args=None, **options):
    return Case(REGISTRY, "fedtgp", QUICK | (args or {})).run(folder, **options)


def states(folder, name):
    return Store(folder / "state" / name).latest().state().tensors


def test_the_margin_is_the_largest_gap_to_a_nearest_class():
    means = torch.tensor([[0.0], [5.0], [125.0]])  # gaps 5, 5, 120
    assert margin(means, 100.0) == 100.0
    assert margin(means, 200.0) == 120.0
    assert margin(means[:2], 100.0) == 5.0
    assert margin(means[:1], 100.0) == 100.0


def test_the_loss_is_the_cross_entropy_of_distances_and_margin():
    prototypes = torch.tensor([[0.0, 0.0], [3.0, 4.0]], requires_grad=True)
    rows, labels = torch.tensor([[0.0, 0.0], [3.0, 4.0]]), torch.tensor([0, 1])
    losses = [float(contrastive_loss(rows, prototypes, labels, room).detach()) for room in (0.0, 2.0, 5.0)]
    assert losses == pytest.approx([math.log1p(math.exp(room - 5)) for room in (0.0, 2.0, 5.0)])
    assert losses == sorted(losses), "a larger margin, a larger loss"


def test_prototypes_that_are_alike_give_no_nan():
    prototypes = torch.zeros(3, 40, requires_grad=True)
    loss = contrastive_loss(torch.zeros(30, 40), prototypes, torch.zeros(30, dtype=torch.int64), 1.0)
    loss.backward()
    assert bool(loss.isfinite())
    assert bool(prototypes.grad.isfinite().all())


def test_only_classes_that_a_site_has_sent_have_a_prototype(tmp_path):
    sites = {"a": make_site(6, "a", torch.zeros(6, dtype=torch.int64)), "b": make_site(5, "b", torch.full((5,), 2))}
    run(tmp_path, sites=sites, rounds=2)
    names = {name for name in states(tmp_path, SERVER) if name.startswith("kept/proto/")}
    assert names == {"kept/proto/0", "kept/proto/2"}


def test_a_training_that_diverges_is_left_out(tmp_path, caplog):
    run(tmp_path, {"server_lr": 1e30}, rounds=2)
    assert "training the prototypes diverged" in caplog.text
    assert all(bool(tensor.isfinite().all()) for tensor in states(tmp_path, SERVER).values())
    assert not any(name.startswith("kept/proto/") for name in states(tmp_path, SERVER))
