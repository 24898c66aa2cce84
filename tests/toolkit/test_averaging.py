"""Tests of averaging and of methods based on it against plain loops that share no code with them."""

import math
from dataclasses import replace
from typing import ClassVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some
from torch import nn

from medfl.contract import Site, State
from medfl.engine.runs.records import read_metrics
from medfl.engine.store import Store
from medfl.objectives import Multiclass
from medfl.plugins import load_plugins
from medfl.settings import Settings
from medfl.task import Task
from medfl.testing.cohort import CLASSES, Case, SmallNet, make_data, make_sites, make_task
from medfl.toolkit.aggregation import add_update, mean_update, normalised_weights, subtract
from medfl.toolkit.averaging import Averaging
from medfl.toolkit.fit import Fit
from medfl.training.loop import Batch
from medfl.utils.rng import make_generator
from medfl.utils.wire import select, tensors_equal
from medfl_methods.fedbn import FedBN
from medfl_methods.fedprox import FedProx

REGISTRY = load_plugins()

# ---- against plain loops


def plain_epoch(state, images, labels, key, network="norm"):
    """Train one epoch from a state dict: SGD with momentum, batches of 5."""
    torch.set_num_threads(1)  # as a run does
    model = SmallNet(norm=network == "norm").to(memory_format=torch.channels_last)
    model.load_state_dict(state)
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for rows in torch.randperm(len(labels), generator=make_generator(7, *key, "batches")).split(5):
        if len(rows) > 1 or network == "plain":
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[rows]), labels[rows]).backward()
            optimizer.step()
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def tensors_of(sites):
    return {name: (data.train.images, data.train.class_labels) for name, data in sorted(sites.items())}


@pytest.mark.parametrize("network", ["norm", "plain"])
def test_centralized_is_a_plain_loop_over_the_pooled_images(tmp_path, network):
    parts = tensors_of(make_sites()).values()
    images, labels = torch.cat([images for images, _ in parts]), torch.cat([labels for _, labels in parts])
    task = make_task(network)
    state = task.initial(7)
    for round_ in (1, 2, 3):
        after = plain_epoch(state, images, labels, ("pooled", round_), network)
        # what travels is the difference, as in every method
        state = {
            name: (state[name].double() + (after[name] - state[name]).double()).float() if t.is_floating_point() else t
            for name, t in after.items()
        }
    result = Case(REGISTRY, "centralized").run(tmp_path, task=task)
    assert tensors_equal(result.outcome.models["global"].tensors, state)
    assert all(tensors_equal(models["global"].tensors, state) for models in result.models.values())


def test_centralized_trains_each_architecture_on_all_images_as_if_it_were_the_only_one(tmp_path):
    networks = {"site-2": "wide", "site-3": "plain"}
    result = Case(REGISTRY, "centralized").run(tmp_path / "all", networks_by_site=networks)
    assert result.outcome.models == {}
    for site, network in ({"site-1": "norm"} | networks).items():
        alone = Case(REGISTRY, "centralized").run(tmp_path / network, task=make_task(network))
        model = result.models[site]["personal"]
        assert model.network == network
        assert tensors_equal(model.tensors, alone.outcome.models["global"].tensors)
        scores = [run.summary.scores for run in (result, alone)]
        assert (
            scores[0]["personal"]["test"]["accuracy"].sites[site]
            == (scores[1]["global"]["test"]["accuracy"].sites[site])
        )


def test_the_server_test_of_pooled_training_has_every_site(tmp_path):
    result = Case(REGISTRY, "centralized").run(
        tmp_path, cross_site_evaluation=True, networks_by_site={"site-2": "wide"}
    )
    assert result.outcome.status == "finished"
    table = read_metrics(tmp_path / "metrics.csv")
    pairs = table[table["model"].str.contains("@")][["model", "site"]].drop_duplicates()
    sites = [f"site-{number}" for number in (1, 2, 3)]
    assert sorted(map(tuple, pairs.to_numpy())) == [(f"personal@{owner}", other) for owner in sites for other in sites]


@pytest.mark.parametrize("network", ["norm", "plain"])
def test_local_is_a_plain_loop_at_each_site(tmp_path, network):
    task = make_task(network)
    result = Case(REGISTRY, "local").run(tmp_path, task=task, fraction=0.4)
    for name, (images, labels) in tensors_of(make_sites()).items():
        state = task.initial(7)
        for round_ in (1, 2, 3):
            state = plain_epoch(state, images, labels, (name, round_), network)
        assert tensors_equal(result.models[name]["personal"].tensors, state)
    assert result.outcome.models == {}


def test_local_sites_may_each_have_their_own_start(tmp_path):
    models = Case(REGISTRY, "local", {"init": "own"}).run(tmp_path, epochs=0).models
    for site, kinds in models.items():
        assert tensors_equal(kinds["personal"].tensors, make_task().initial(7, owner=site))
    assert not tensors_equal(models["site-1"]["personal"].tensors, models["site-2"]["personal"].tensors)


@pytest.mark.parametrize("weights", ["size", "uniform"])
@pytest.mark.parametrize("network", ["norm", "plain"])
def test_fedavg_is_the_mean_of_state_dicts(tmp_path, network, weights):
    task, sites = make_task(network), tensors_of(make_sites())
    shares = {name: len(labels) if weights == "size" else 1 for name, (_, labels) in sites.items()}
    state = task.initial(7)
    for round_ in (1, 2, 3):
        trained = {name: plain_epoch(state, *data, (name, round_), network) for name, data in sites.items()}
        state = {
            key: sum(shares[name] / sum(shares.values()) * trained[name][key].double() for name in trained).float()
            if tensor.is_floating_point()
            else max(trained[name][key] for name in trained)
            for key, tensor in state.items()
        }
    result = Case(REGISTRY, "fedavg", {"weights": weights}).run(tmp_path, task=task)
    for key, tensor in result.outcome.models["global"].tensors.items():
        torch.testing.assert_close(tensor, state[key], atol=1e-6, rtol=1e-6)


# ---- FedProx


def test_fedprox_adds_mu_times_the_distance_to_the_gradient():
    class W(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.tensor(2.0, dtype=torch.float64))
            self.frozen = nn.Parameter(torch.tensor(9.0), requires_grad=False)
            self.register_buffer("statistic", torch.tensor(7.0))

        def forward(self, images):
            return torch.zeros(len(images), 2) + 0 * self.w

    model = W()
    task = Task({"w": W}, "w", nn.CrossEntropyLoss(), torch.optim.SGD, Multiclass(2))
    site = Site("a", 1, State(), task, Settings(rounds=1))
    fit = Fit(site, model, {"w": torch.tensor(0.5, dtype=torch.float64), "frozen": torch.tensor(0.0)})
    batch = Batch(torch.zeros(3, 1), torch.zeros(3, dtype=torch.int64), torch.arange(3))
    loss = FedProx(mu=0.3).loss(fit, batch)
    loss.backward()
    assert loss.item() - math.log(2) == pytest.approx(0.3375, abs=1e-6)
    assert model.w.grad.item() == pytest.approx(0.45, abs=1e-12)
    assert model.frozen.grad is None


# ---- FedBN


class Block(nn.Module):
    """Network whose batch-norm layers are not named 'bn', with a group-norm layer."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3)
        self.downsample = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4))
        self.group = nn.GroupNorm(2, 4)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, images):
        return self.head(self.group(self.downsample(self.stem(images))).mean((2, 3)))


BLOCK = Task(
    {"block": Block},
    "block",
    nn.CrossEntropyLoss(),
    lambda p: torch.optim.SGD(p, lr=0.1),
    Multiclass(CLASSES),
    ("accuracy",),
)
BATCH = {f"downsample.1.{name}" for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")}
GROUP = {"group.weight", "group.bias"}


@pytest.mark.parametrize("kinds", [("batch",), ("group",), ("batch", "group")])
def test_fedbn_keeps_every_normalisation_layer_at_its_site(tmp_path, kinds):
    own = (BATCH if "batch" in kinds else set()) | (GROUP if "group" in kinds else set())
    sites = {name: data for name, data in make_sites().items() if name != "site-3"}
    result = Case(REGISTRY, "fedbn", {"norm_types": list(kinds)}).run(tmp_path, task=BLOCK, sites=sites)
    assert result.outcome.models == {}
    left, right = (result.models[name]["personal"].tensors for name in ("site-1", "site-2"))
    unlike = {name for name in left if not tensors_equal({"": left[name]}, {"": right[name]})}
    assert unlike == own
    state = Store(tmp_path / "state" / "site-1").latest()
    assert set(state.state().tensors) == own
    assert {name.removeprefix("reply/model/") for name in state.tensors if name.startswith("reply/")} == set(left) - own


# ---- what is shared of normalisation layers


@pytest.mark.parametrize(
    ("policy", "personal"),
    [
        ("all", set()),
        ("frozen", set()),
        ("none", BATCH),
        ("params", {name for name in BATCH if "running" in name or "num" in name}),
    ],
)
def test_policies_for_normalisation_layers(tmp_path, policy, personal):
    model = Block()
    assert set(model.state_dict()) - set(Averaging().shared_names(model, policy)) == personal
    assert set(model.state_dict()) - set(FedBN().shared_names(model, policy)) == BATCH
    result = Case(REGISTRY, "fedavg").run(tmp_path, task=BLOCK, norm_sync=policy)
    assert set(result.outcome.models) == (set() if personal else {"global"})
    kind = "personal" if personal else "global"
    left, right = (result.models[name][kind].tensors for name in ("site-1", "site-2"))
    assert {name for name in left if not torch.equal(left[name], right[name])} == personal
    if policy == "frozen":
        start = BLOCK.initial(7)
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            assert torch.equal(left["downsample.1." + name], start["downsample.1." + name])
        assert not torch.equal(left["downsample.1.weight"], start["downsample.1.weight"])


# ---- weights


@given(some.lists(some.floats(0, 1e6), min_size=1, max_size=9).filter(any))
def test_weights_are_a_convex_combination(values):
    weights = normalised_weights({str(index): value for index, value in enumerate(values)}, {})
    assert all(weight >= 0 for weight in weights.values())
    assert math.fsum(weights.values()) == pytest.approx(1, abs=1e-9)
    largest = max(range(len(values)), key=values.__getitem__)
    assert weights[str(largest)] == max(weights.values())


@pytest.mark.parametrize(
    "bad", [[0, 0, 0], [math.nan, 1, 1], [math.inf, 1, 1], [math.inf, -math.inf, 1], [-1, 3, 1], [1e308, 1e308, 1e308]]
)
def test_unusable_weights_fall_back_to_the_sizes(bad, caplog):
    sizes = {"a": {"size": 1}, "b": {"size": 2}, "c": {}}
    assert normalised_weights(dict(zip("abc", bad, strict=True)), sizes) == {"a": 0.25, "b": 0.5, "c": 0.25}
    assert "Aggregation weights are not usable (not finite, negative, or all zero); weighing by size." in caplog.text


@pytest.mark.parametrize("bad", [[0, 0], [5, -3], [math.nan, 1]])
def test_unusable_sizes_count_alike(bad):
    sizes = {"a": {"size": bad[0]}, "b": {"size": bad[1]}}
    assert normalised_weights({name: meta["size"] for name, meta in sizes.items()}, sizes) == {"a": 0.5, "b": 0.5}


class Replies(list):
    """Replies as (site, tensors) pairs."""


def test_the_mean_is_weighted_and_counters_take_the_largest():
    replies = Replies(
        [
            ("a", {"model/w": torch.tensor([1.0, 2.0]), "model/n": torch.tensor(7), "model/on": torch.tensor(False)}),
            ("b", {"model/w": torch.tensor([5.0, -2.0]), "model/n": torch.tensor(3), "model/on": torch.tensor(True)}),
        ]
    )
    sent = replies[0][1]["model/w"].clone()
    mean = mean_update(replies, {"a": 0.75, "b": 0.25})
    assert mean["w"].dtype == torch.float64
    assert mean["w"].tolist() == [2.0, 1.0]
    assert mean["n"] == 7
    assert mean["on"]
    assert torch.equal(replies[0][1]["model/w"], sent)  # what was received is left as it is


def test_updates_keep_each_tensors_type():
    for before, after in ((1.5, 2.25), (3, 8), (True, False), (False, True)):
        old, new = torch.tensor(before), torch.tensor(after)
        result = add_update(old, subtract(new, old))
        assert result.dtype == old.dtype
        assert result == new
    half = torch.tensor(1.0, dtype=torch.bfloat16)
    assert add_update(half, torch.tensor(0.5, dtype=torch.float64)).dtype == torch.bfloat16
    assert select({"model/a/b": half, "other/c": half}, "model/") == {"a/b": half}


def test_a_site_that_comes_late_starts_from_the_initial_personal_part(tmp_path):
    """A new site of FedBN with partial participation has the server's tensors and its initial norm layers."""
    sites = make_sites({f"site-{index}": 8 for index in range(6)})
    result = Case(REGISTRY, "fedbn").run(tmp_path, sites=sites, rounds=1, fraction=0.2)
    start = make_task().initial(7)
    still = [name for name in sites if not (tmp_path / "state" / name).exists()]
    assert len(still) == 5
    for name in still:
        tensors = result.models[name]["personal"].tensors
        assert torch.equal(tensors["body.1.running_mean"], start["body.1.running_mean"])
        assert not torch.equal(tensors["head.weight"], start["head.weight"])


def test_the_data_of_a_site_are_left_as_they_are(tmp_path):
    sites, fresh = make_sites(), make_data(21, "site-1")
    Case(REGISTRY, "fedavg").run(tmp_path, sites=sites, rounds=1)
    assert torch.equal(sites["site-1"].train.images, fresh.images)


# ---- learning rates over the rounds


class Noted(torch.optim.SGD):
    """Method that logs its learning rate."""

    rates: ClassVar[list[float]] = []

    def step(self, closure=None):
        self.rates.append(self.param_groups[0]["lr"])
        return super().step(closure)


@pytest.mark.parametrize("method", ["fedavg", "local"])
def test_the_learning_rate_decays_from_round_to_round(tmp_path, monkeypatch, method):
    monkeypatch.setattr(Noted, "rates", [])
    task = replace(make_task(), optimizer=lambda parameters: Noted(parameters, 0.1))
    Case(REGISTRY, method).run(tmp_path, task=task, rounds=3, steps=1, lr_decay=0.5)
    sites = len(Noted.rates) // 3
    assert Noted.rates == [0.1] * sites + [0.05] * sites + [0.025] * sites
    assert task.in_round(3, Settings(rounds=3)) is task
