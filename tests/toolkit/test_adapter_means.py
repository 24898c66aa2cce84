"""Tests of the aggregation of low-rank adapters: exact means, the naive mean's error, refusals, and costs."""

from __future__ import annotations

import csv

import pytest
import torch
from refusals import refused
from torch import nn

from medfl.engine.evaluation import add_frozen_tensors, build_predictor
from medfl.engine.store import Store
from medfl.errors import RefusedError, SettingsError
from medfl.hooks import Capability
from medfl.networks.transfer.adapters.layers import AdapterOptions, add_adapters
from medfl.networks.transfer.adapters.tensors import FACTOR_A, FACTOR_B, is_residual, merge_adapters
from medfl.plugins import load_plugins
from medfl.settings import Lora, Settings, read_settings
from medfl.testing.cohort import Case, SmallNet, bits, make_data, make_sites, make_task
from medfl.toolkit.aggregation import MAX_FACTOR, add_update, check_factors, check_updates, mean_residuals, mean_updates
from medfl.toolkit.averaging import Averaging
from medfl.utils.wire import prefixed, select, tensors_equal

REGISTRY = load_plugins()
EXACT_METHODS = sorted(
    record.name for record in REGISTRY.methods.values() if Capability.EXACT_ADAPTERS in record.supports
)
LAYERS = {"linear": nn.Linear(6, 5), "2-D": nn.Conv2d(3, 4, 3), "3-D": nn.Conv3d(4, 6, 3, groups=2)}


def test_the_methods_with_the_promise_are_known():
    assert EXACT_METHODS == ["ditto", "fedavg", "fedbn", "feddisco", "fedkper", "fedntd", "fedprox", "moon"]


def case(aggregation="frozen_a", method="fedavg", args=None, rank=2, **settings):
    lora = {"rank": rank, "alpha": 2.0 * rank, "aggregation": aggregation}
    return Case(REGISTRY, method, args or {}, {"rounds": 2, "train_part": "lora", "lora": lora} | settings)


def costs(folder, metric):
    with open(folder / "metrics.csv") as file:
        return {float(row["value"]) for row in csv.DictReader(file) if row["metric"] == metric}


def adapted(layer, aggregation):
    """Return a network of one layer with an adapter of rank 2 and scale 3, and its state dict without the weight."""
    torch.manual_seed(0)
    model = nn.Sequential(type(layer)(**arguments(layer)))
    add_adapters(model, AdapterOptions(2, 6.0, "all", aggregation), "net")
    state = model.state_dict()
    return model, {name: tensor for name, tensor in state.items() if "lora" in name}


def arguments(layer):
    if isinstance(layer, nn.Linear):
        return {"in_features": layer.in_features, "out_features": layer.out_features}
    names = ("in_channels", "out_channels", "kernel_size", "groups")
    return {name: getattr(layer, name) for name in names}


class StoredReplies:
    """Replies from a dictionary of tensors by site."""

    def __init__(self, updates):
        self.updates, self.meta, self.missing = updates, dict.fromkeys(updates, {}), []

    def __iter__(self):
        return iter(sorted(self.updates.items()))

    def __len__(self):
        return len(self.updates)


def random_updates(model, shared, sites=3, frozen=()):
    """Return updates of the factors for each site; those in `frozen` don't change."""
    generator = torch.Generator().manual_seed(5)
    names = [name for name in shared if not is_residual(name) and not any(part in name for part in frozen)]
    return {
        f"site-{k}": {name: 0.3 * torch.randn(shared[name].shape, generator=generator) for name in names}
        for k in range(sites)
    }


def aggregate(old, updates, weights):
    """Average the updates as the server does, and return the new shared tensors."""
    replies = StoredReplies({site: prefixed(tensors, "model/") for site, tensors in updates.items()})
    means = mean_updates(replies, {"model/": weights})["model/"]
    new = {name: add_update(tensor, means[name]) if name in means else tensor for name, tensor in old.items()}
    return new | mean_residuals(old, new, replies, weights)


def merged_weight(model, shared):
    return merge_adapters({"0.weight": model[0].weight.detach()} | shared, 3.0)["0.weight"].double()


@pytest.mark.parametrize("kind", sorted(LAYERS))
@pytest.mark.parametrize("aggregation", ["exact", "frozen_a"])
def test_exact_and_frozen_a_are_the_mean_of_the_merged_weights(kind, aggregation):
    model, old = adapted(LAYERS[kind], aggregation)
    weights = {"site-0": 0.5, "site-1": 0.2, "site-2": 0.3}
    for _ in range(3):  # the residual is carried from round to round
        updates = random_updates(model, old, frozen=["lora_a"] if aggregation == "frozen_a" else [])
        wanted = sum(
            weights[site] * merged_weight(model, old | {n: old[n] + u for n, u in update.items()})
            for site, update in updates.items()
        )
        old = aggregate(old, updates, weights)
        torch.testing.assert_close(merged_weight(model, old), wanted, rtol=0, atol=1e-6)


def test_the_naive_mean_differs_by_a_number_computed_by_hand():
    """Two sites with factors (A, B) = (1, 1) and (3, 5): the mean of B A is 8, the product of the means is 6."""
    shared = {"0." + FACTOR_A: torch.zeros(1, 1), "0." + FACTOR_B: torch.zeros(1, 1)}
    updates = {
        "a": {"0." + FACTOR_A: torch.tensor([[1.0]]), "0." + FACTOR_B: torch.tensor([[1.0]])},
        "b": {"0." + FACTOR_A: torch.tensor([[3.0]]), "0." + FACTOR_B: torch.tensor([[5.0]])},
    }
    half = {"a": 0.5, "b": 0.5}
    plain = {"0.weight": torch.tensor([[10.0]])}
    assert merge_adapters(plain | aggregate(shared, updates, half), 1.0)["0.weight"].item() == 16.0
    residual = {"0.lora_residual": torch.tensor([[100.0]])}
    exact = aggregate(shared | residual, updates, half)
    assert exact["0.lora_residual"].item() == 102.0
    assert merge_adapters(plain | exact, 1.0)["0.weight"].item() == 118.0
    alone = aggregate(shared | residual, {"b": updates["b"]}, {"b": 1.0})
    assert alone["0.lora_residual"].item() == 100.0
    silent = aggregate(shared | residual, updates | {"c": {}}, {"a": 0.25, "b": 0.25, "c": 0.5})
    assert silent["0.lora_residual"].item() == 100 + 0.25 + 0.25 * 15 - 1.0 * 1.5


@pytest.mark.parametrize("method", EXACT_METHODS)
def test_methods_keep_the_promise_of_exact_means(method, tmp_path, monkeypatch):
    """After each round, the merged shared model is the weighted mean of the merged models that sites trained."""
    checked, average = [], Averaging.average

    def observe(self, server, replies, further=()):
        old = dict(server.state.tensors)
        sites = {site: select(tensors, "model/") for site, tensors in replies}
        weights = self.weights_of(server, replies.meta)
        average(self, server, replies, further)
        task = server.task
        frozen, total = task.frozen(), sum(weights.values())
        for layer in [name.removesuffix(FACTOR_B) for name in old if name.endswith(FACTOR_B)]:

            def weight(tensors, layer=layer):
                return merge_adapters({**frozen, **tensors}, 2.0)[layer + "weight"].double()

            trained = {
                site: old | {name: old[name] + u for name, u in update.items()} for site, update in sites.items()
            }
            wanted = sum(weights[site] / total * weight(tensors) for site, tensors in trained.items())
            torch.testing.assert_close(weight(server.state.tensors), wanted, rtol=0, atol=1e-6)
            assert not any(map(is_residual, sites["site-1"]))
            checked.append(server.state.tensors[layer + "lora_residual"].abs().max().item())

    monkeypatch.setattr(Averaging, "average", observe)
    result = case("exact", method).run(tmp_path)
    assert result.outcome.status == "finished"
    assert len(checked) == 2
    assert max(checked) > 1e-9


def test_methods_without_the_promise_and_settings_without_single_factors_are_refused(tmp_path):
    for method in ("fedavgm", "scaffold", "fednova", "fedamp", "cyclic"):
        with refused(SettingsError, "method_not_supported", feature="exact_adapters", method=method):
            case("exact", method).run(tmp_path / method)
    for setting, value in (("robust", {"rule": "median"}), ("secure_aggregation", {})):
        with refused(SettingsError, "incompatible_settings", settings=["lora.aggregation", setting]):
            case("exact", **{setting: value}).run(tmp_path / setting)
    for aggregation in ("exact", "naive"):
        with refused(SettingsError, "incompatible_settings", settings=["lora.aggregation", "optimization.ema"]):
            case(aggregation, optimization={"ema": 0.9}).run(tmp_path / aggregation)
    assert case("frozen_a", optimization={"ema": 0.9}).run(tmp_path / "ema").outcome.status == "finished"
    assert case("naive", "fedavgm").run(tmp_path / "naive").outcome.status == "finished"


def test_options_of_adapters_without_adapters_are_refused():
    with refused(SettingsError, "invalid_setting"):
        read_settings(Settings, {"rounds": 1, "lora": {"rank": 4}}, "the run")
    assert Settings(rounds=1, train_part="lora").lora == Lora()
    for lora in ({"rank": 0}, {"alpha": 0.0}, {"alpha": float("inf")}, {"targets": "(a+)+"}, {"aggregation": "mean"}):
        with pytest.raises(SettingsError):
            read_settings(Settings, {"rounds": 1, "train_part": "lora", "lora": lora}, "the run")


def test_residuals_in_replies_and_huge_factors_are_refused():
    model, shared = adapted(LAYERS["2-D"], "exact")
    request = prefixed(shared, "model/")
    update = {name: torch.zeros_like(tensor) for name, tensor in request.items()}
    kinds = {"model/": "update"}
    with refused(RefusedError, "wrong_tensor", expected="no such name"):
        check_updates(update, request, kinds)
    del update["model/0.lora_residual"]
    check_updates(update, request, kinds)
    check_factors(update, request)
    update["model/0.lora_a.weight"][0, 0, 0, 0] = 10 * MAX_FACTOR
    with refused(RefusedError, "factor_too_large", maximum=MAX_FACTOR):
        check_factors(update, request)
    del request["model/0.lora_residual"]
    check_factors(update, request)
    del update["model/0.lora_b.weight"]
    with refused(RefusedError, "missing_tensor"):
        check_updates(update, request, kinds)


HEAD = 24 * 3 + 3
A, B, WEIGHT = 2 * 9, 6 * 2, 6 * 9
"""Numbers of elements of the tiny network's head, of the factors of its convolution, and of its weight."""


def test_factors_of_other_tensors_than_the_requests_are_not_checked():
    originals = {"model/x.lora_b.weight": torch.zeros(2), "model/x.lora_residual": torch.zeros(2)}
    check_factors({"drift/x.lora_b.weight": torch.full((2,), 2 * MAX_FACTOR)}, originals)


@pytest.mark.parametrize(
    ("aggregation", "up", "down"),
    [
        ("frozen_a", HEAD + B, HEAD + B),
        ("naive", HEAD + A + B, HEAD + A + B),
        ("exact", HEAD + A + B, HEAD + A + B + WEIGHT),
    ],
)
def test_bytes_are_those_of_the_factors_and_the_head(aggregation, up, down, tmp_path):
    case(aggregation).run(tmp_path)
    assert costs(tmp_path, "bytes_up") == {4 * up}
    assert costs(tmp_path, "bytes_down") == {4 * down}


@pytest.mark.parametrize("aggregation", ["frozen_a", "exact", "naive"])
def test_exported_models_are_plain_and_predict_as_the_adapters(aggregation, tmp_path):
    run, task = case(aggregation), make_task()
    result = run.run(tmp_path)
    trained = task.with_training_of("lora", run.settings_of().lora)
    method, model = run.make_method(), result.outcome.models["global"]
    merged = add_frozen_tensors(method, trained, {"global": model})["global"]
    assert merged.tensors.keys() == SmallNet().state_dict().keys()
    plain, images = SmallNet(), make_data(9, "test").images
    plain.load_state_dict(merged.tensors)
    assert not torch.equal(plain.body[0].weight, trained.build().body[0].weight)
    with torch.no_grad():
        outputs = build_predictor(method, trained, model)(images)
        torch.testing.assert_close(plain.eval()(images), outputs, rtol=0, atol=1e-6)
        torch.testing.assert_close(build_predictor(method, trained, merged)(images), outputs, rtol=0, atol=1e-6)


def test_one_site_gives_the_same_model_with_exact_and_naive_aggregation(tmp_path):
    sites = make_sites({"site-1": 12})
    exact = bits(case("exact").run(tmp_path / "exact", sites=sites))
    naive = bits(case("naive").run(tmp_path / "naive", sites=sites))
    for name, tensor in naive["server/global"].items():
        torch.testing.assert_close(exact["server/global"][name], tensor, rtol=0, atol=1e-6)


def test_the_first_evaluated_model_is_the_base_network(tmp_path):
    result = case("exact", epochs=0, rounds=1).run(tmp_path)
    task = make_task().with_training_of("lora", case("exact").settings_of().lora)
    model = add_frozen_tensors(case().make_method(), task, result.outcome.models)["global"]
    base = {name: tensor for name, tensor in task.frozen().items() if name in SmallNet().state_dict()}
    assert tensors_equal({name: model.tensors[name] for name in base}, base)


def test_frozen_factors_are_the_same_for_all_seeds_and_sites_and_trained_ones_follow_the_seed():
    task = make_task()
    frozen = task.with_training_of("lora", Lora())
    assert torch.equal(frozen.build().body[0].lora_a.weight, frozen.frozen()["body.0.lora_a.weight"])
    assert "body.0.lora_a.weight" not in frozen.names()
    both = task.with_training_of("lora", Lora(aggregation="naive"))
    first, again, other = both.initial(1), both.initial(1), both.initial(2)
    assert torch.equal(first["body.0.lora_a.weight"], again["body.0.lora_a.weight"])
    assert not torch.equal(first["body.0.lora_a.weight"], other["body.0.lora_a.weight"])
    assert torch.equal(task.initial(1)["head.weight"], frozen.initial(1)["head.weight"])


@pytest.mark.parametrize("aggregation", ["frozen_a", "exact", "naive"])
def test_a_continued_run_has_the_bits_of_an_uninterrupted_one(aggregation, tmp_path):
    run = case(aggregation, rounds=3)
    whole = bits(run.run(tmp_path / "whole"))
    run.run(tmp_path / "parts", rounds=1)
    parts = bits(run.run(tmp_path / "parts"))
    for key, tensors in whole.items():
        assert tensors_equal(tensors, parts[key])


@pytest.mark.parametrize("unit", ["site", "sample"])
@pytest.mark.parametrize("aggregation", ["frozen_a", "exact"])
def test_privacy_clips_and_noises_the_factors_and_the_head_alone(aggregation, unit, tmp_path):
    run = case(aggregation, privacy={"epsilon": 8.0, "clip": 0.5, "unit": unit}, rounds=1)
    result = run.run(tmp_path)
    assert result.outcome.status == "finished"
    sent = {"head.weight", "head.bias", "body.0.lora_b.weight"}
    sent |= {"body.0.lora_a.weight"} if aggregation == "exact" else set()
    assert Store(tmp_path / "state" / "site-1").read(1, "reply/").keys() == {f"model/{name}" for name in sent}


@pytest.mark.parametrize(
    "settings", [{"compression": {"bits": 8}}, {"secure_aggregation": {}}, {"robust": {"rule": "median"}}]
)
def test_frozen_a_works_with_compression_secure_sums_and_robust_rules(settings, tmp_path):
    assert case("frozen_a", rounds=1, **settings).run(tmp_path).outcome.status == "finished"
