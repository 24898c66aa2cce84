"""Tests of DBE: running means, the mean features of all sites, and the personal offsets."""

import dataclasses

import pytest
import torch
from torch import nn

from medfl.contract import Site, State
from medfl.data.pooled import TensorData
from medfl.engine.store import Store
from medfl.networks.heads import TwoLayerHead
from medfl.plugins import load_plugins
from medfl.settings import Settings
from medfl.testing.cohort import CLASSES, Case, make_site, make_sites, make_task, states
from medfl.toolkit.fit import Fit
from medfl.training.loop import Batch
from medfl.types import SERVER
from medfl.utils.wire import select, tensors_equal
from medfl_methods.dbe import DBE, bias_correction, running_mean, with_shifted_head

REGISTRY = load_plugins()


def run(folder, args=None, **options):
    return Case(REGISTRY, "dbe", args or {}).run(folder, **({"rounds": 2} | options))


class Plain(nn.Module):
    """Network whose features are the two numbers of an image."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Flatten(), nn.Linear(2, 2)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, images):
        return self.head(self.body(images))


def fit_of(z):
    task = dataclasses.replace(make_task(), networks={"plain": Plain}, network="plain")
    site = Site(
        "a", 1, State(), task, Settings(rounds=1), train=TensorData(torch.zeros(1, 1, 1, 2), torch.zeros(1).long())
    )
    return Fit(site, with_shifted_head(Plain()), {}, sent={"mean/features": torch.tensor(z)})


def batch_of(*rows):
    images = torch.tensor(rows)[:, None, None].requires_grad_()
    return Batch(images, torch.zeros(len(rows), dtype=torch.int64), torch.arange(len(rows)))


# ---- closed forms


def test_running_mean_and_bias_correction_equal_the_formulas():
    mean = running_mean(running_mean(None, torch.tensor([[1.0], [1.0]]), 0.1), torch.tensor([[1.0], [3.0]]), 0.1)
    assert mean.item() == pytest.approx(0.29)
    assert (mean * bias_correction(0.1, 2)).item() == pytest.approx(1.5263157895)
    assert bias_correction(1.0, 1) == 1


def test_distance_to_the_global_mean_equals_the_formula():
    batch, plain = batch_of([0.09, 0.3], [0.49, 0.7]), torch.tensor(2.0).log().item()
    for kappa in (1.0, 3.0):
        loss = DBE(kappa=kappa, mu=1.0).loss(fit_of([0.2, 0.1]), batch)
        assert loss.item() - plain == pytest.approx(kappa * 0.042025, abs=1e-6)
    assert DBE(kappa=0.0).loss(fit_of([0.2, 0.1]), batch).item() == pytest.approx(plain)


@pytest.mark.parametrize("correct", [False, True])
def test_gradient_flows_through_the_last_batch_only(correct):
    method, fit = DBE(kappa=1.0, mu=0.1, correct=correct), fit_of([0.0, 0.0])
    first, second = batch_of([1.0, 0.0]), batch_of([2.0, 1.0], [2.0, 3.0])
    method.loss(fit, first)
    fit.count_step()
    method.loss(fit, second).backward()
    scale = 1 / 0.19 if correct else 1.0
    mean = scale * torch.tensor([0.29, 0.2])
    assert first.images.grad is None
    torch.testing.assert_close(second.images.grad[:, 0, 0], (mean * scale * 0.1 / 2 / 2).expand(2, 2))


# ---- the mean features of all sites


def test_measuring_discards_the_models_and_keeps_the_mean(tmp_path):
    seen = []

    class Watched(DBE):
        def requests(self, server):
            seen.append({name: tensor.clone() for name, tensor in super().requests(server)[0].tensors.items()})
            return super().requests(server)

    run(tmp_path, make_method=Watched)
    first = DBE().task_of(make_task()).initial(7)
    begun = select(seen[0], "model/")
    assert begun.keys() == first.keys() - {"head.offset"}
    assert all(torch.equal(first[name], tensor) for name, tensor in begun.items())
    assert torch.equal(seen[0]["mean/features"], seen[1]["mean/features"])
    assert not tensors_equal(begun, select(seen[1], "model/"))


def test_site_without_a_step_sends_no_mean_features(tmp_path):
    """Batch norm skips a batch of one image, so the site sends no mean features."""
    run(tmp_path, sites=make_sites({"a": 9, "single": 1}), rounds=1)
    sent = select(Store(tmp_path / "state" / "a").load(1).tensors, "reply/")
    assert sent.keys() == {"mean/features"}
    torch.testing.assert_close(states(tmp_path)[SERVER]["kept/mean/features"], sent["mean/features"])


def test_without_kappa_no_features_are_measured_and_offsets_remain(tmp_path):
    result = run(tmp_path, {"kappa": 0.0})
    assert Store(tmp_path / "state" / "site-1").steps()[-1] == 2
    assert "kept/mean/features" not in states(tmp_path)[SERVER]
    offsets = [result.models[site]["personal"].tensors["head.offset"] for site in make_sites()]
    assert not torch.equal(offsets[0], offsets[1])


# ---- the vector of a site


def test_any_head_can_have_an_offset():
    network = make_task("plain").build()
    network.head = TwoLayerHead(24, 5, CLASSES, dropout=0.0)
    images, _ = make_site(4, "x").train.batch(torch.arange(4))
    head, shifted_one = network.head, with_shifted_head(network)
    with torch.no_grad():
        shifted_one.head.offset.fill_(0.5)
        torch.testing.assert_close(shifted_one(images), head(network.body(images) + 0.5))
