"""Tests of methods with personal models: closed forms on quadratics, and the ownership of models and buffers."""

import dataclasses
import logging
import math

import pytest
import torch
from quadratic_toys import (
    CURVED,
    CURVED_TASK,
    QUADRATIC,
    one_image,
    quadratic,
    quadratic_sites,
    run_curved,
    run_quadratic,
)

from medfl.contract import Request, Site, State
from medfl.engine.store import Store
from medfl.plugins import load_plugins
from medfl.settings import Settings
from medfl.testing.cohort import Case, make_sites, states
from medfl.toolkit.aggregation import normalised_weights
from medfl.toolkit.participant_state import auxiliary_state, set_auxiliary_state
from medfl.types import SERVER
from medfl_methods.apfl import APFL, MIXTURE_PREFIX, PERSONAL_PREFIX
from medfl_methods.fedamp import attention, mix_models
from medfl_methods.fedas import FedAS, alignment_loss
from medfl_methods.per_fedavg import PerFedAvg

REGISTRY = load_plugins()


# ---- APFL


def scalar_apfl(w, v, epochs, **args):
    """Return a site whose images have the value 4, after a training."""
    site = Site("c", 1, State(), QUADRATIC, Settings(rounds=1, epochs=epochs))
    site.train = quadratic_sites()["c"].train
    set_auxiliary_state(site, PERSONAL_PREFIX, {"w": torch.tensor(v, dtype=torch.float64)})
    reply = APFL(**args).train(site, Request("c", "fit", {"model/w": torch.tensor(w, dtype=torch.float64)}))
    return site, w + reply.tensors["model/w"].item()


def test_apfl_five_steps_equal_the_formulas():
    site, w = scalar_apfl(0.0, 0.0, 5, alpha=0.5, adaptive=False)
    assert w == pytest.approx(1.63804, abs=1e-9)
    assert auxiliary_state(site, PERSONAL_PREFIX)["w"].item() == pytest.approx(0.8630914844, abs=1e-9)
    assert auxiliary_state(site, MIXTURE_PREFIX)["w"].item() == pytest.approx(1.2505657422, abs=1e-9)


def test_apfl_alpha_takes_one_step_per_round():
    for epochs in (1, 3):
        site, _ = scalar_apfl(1.0, 3.0, epochs, alpha=0.5)
        assert site.state.meta["alpha"] == pytest.approx(0.9)  # 0.5 - 0.1 <3 - 1, 2 - 4>
    assert scalar_apfl(1.0, 3.0, 1, alpha=0.5, adaptive=False)[0].state.meta["alpha"] == 0.5
    assert scalar_apfl(1.0, -30.0, 1, alpha=0.5)[0].state.meta["alpha"] == 0.0


def test_ditto_personal_models_of_quadratics_equal_the_formulas(tmp_path):
    expected = [(0, 0.33616, 1.34464), (0.30973698, 0.75604989, 2.09498862)]
    for rounds, values in enumerate(expected, 1):  # each run continues the previous one
        w = quadratic(tmp_path, lambda: REGISTRY.make_method("ditto", {"lam": 1.0}), rounds)
        own = [states(tmp_path)[site]["kept/own/w"].item() for site in sorted(quadratic_sites())]
        assert own == pytest.approx(values, abs=1e-7)
        assert w == pytest.approx([0.9213975, 1.4654735098][rounds - 1], abs=1e-9)
    assert QUADRATIC.objective.classes == 2


# ---- MR-MTL


def run_mr_mtl(folder, args=None, name="mr_mtl", **options):
    return Case(REGISTRY, name, args or {}).run(folder, **({"rounds": 2} | options))


def quadratic_mr_mtl(folder, rounds, lam):
    run_quadratic(folder, lambda: REGISTRY.make_method("mr_mtl", {"lam": lam}), rounds)
    held = states(folder)
    return [held[site]["kept/own/w"].item() for site in "abc"], held[SERVER]["w"].item()


def test_mr_mtl_two_rounds_equal_the_formulas(tmp_path):
    expected = [
        ((0, 0.33616, 1.34464), 0.5602666667),
        ((0.1883392427, 0.6346521515, 1.9735908779), 0.9321940907),
    ]
    for rounds, (own, mean) in enumerate(expected, 1):  # the second continues the first
        v, w = quadratic_mr_mtl(tmp_path, rounds, 1.0)
        assert v == pytest.approx(own, abs=1e-9)
        assert w == pytest.approx(mean, abs=1e-9)


def test_mr_mtl_personal_models_end_half_way_to_the_mean(tmp_path):
    v, w = quadratic_mr_mtl(tmp_path, 60, 1.0)
    assert v == pytest.approx([(m + 5 / 3) / 2 for m in (0, 1, 4)], abs=1e-6)
    assert w == pytest.approx(5 / 3, abs=1e-6)


def test_mr_mtl_a_site_without_images_has_the_mean(tmp_path):
    result = run_mr_mtl(tmp_path, sites=make_sites({"a": 9, "b": 7, "empty": 0}), rounds=1)
    mean = states(tmp_path)[SERVER]
    empty = result.models["empty"]["personal"].tensors
    assert all(torch.equal(empty[name], tensor) for name, tensor in mean.items())


# ---- pFedMe

EXACT_INNER_STEP = {"lam": 15.0, "inner_steps": 1, "inner_lr": 1 / 16}
"""Settings with which one inner step solves the inner problem exactly, on a quadratic of curvature 1."""


def quadratic_pfedme(folder, args):
    slow = dataclasses.replace(QUADRATIC, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01))
    run_quadratic(folder, lambda: REGISTRY.make_method("pfedme", args), 1, slow)
    return states(folder)


@pytest.mark.parametrize("start", ["warm", "w"])
def test_pfedme_exact_inner_solution_equals_the_formulas(tmp_path, start):
    """The result does not depend on the start of the inner steps."""
    held = quadratic_pfedme(tmp_path, EXACT_INNER_STEP | {"inner_start": start})
    sent = [Store(tmp_path / "state" / site).latest().tensors["reply/model/w"].item() for site in "abc"]
    assert sent == pytest.approx([0, 0.04600429, 0.18401718], abs=1e-8)
    assert held[SERVER]["w"].item() == pytest.approx(0.07667382, abs=1e-8)


@pytest.mark.parametrize(("weights", "beta", "factor"), [("size", 1.0, 1.0), ("uniform", 2.0, 2.0)])
def test_pfedme_the_server_steps_by_beta_times_the_mean(tmp_path, weights, beta, factor):
    held = quadratic_pfedme(tmp_path, EXACT_INNER_STEP | {"weights": weights, "beta": beta})
    shares = {"size": (1 / 4, 1 / 4, 1 / 2), "uniform": (1 / 3,) * 3}[weights]
    mean = sum(share * w for share, w in zip(shares, (0, 0.04600429, 0.18401718), strict=True))
    assert held[SERVER]["w"].item() == pytest.approx(factor * mean, abs=1e-7)


# ---- Per-FedAvg


@pytest.mark.parametrize(("order", "expected"), [("fo", 0.08), ("hf", 0.064)])
def test_per_fedavg_step_equals_the_formula(order, expected):
    site = Site("a", 1, State(), CURVED_TASK, Settings(rounds=1, epochs=1), train=one_image(1.0, 2.0))
    received = {"model/w": torch.zeros((), dtype=torch.float64)}
    reply = PerFedAvg(alpha=0.1, beta=0.05, order=order).train(site, Request("a", "fit", received))
    assert reply.tensors["model/w"].item() == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize(
    ("order", "expected"),
    [("fo", (0.4819080288, 0.7752711607, 0.9538569529)), ("hf", (0.4401554526, 0.7267733817, 0.9134116178))],
)
def test_per_fedavg_three_rounds_equal_the_formulas(tmp_path, order, expected):
    make_method = lambda: REGISTRY.make_method("per_fedavg", {"alpha": 0.1, "beta": 0.1, "order": order})  # noqa: E731
    for rounds, value in enumerate(expected, 1):  # each run continues the previous one
        result = run_curved(tmp_path, make_method, rounds)
        w = result.outcome.models["global"].tensors["w"].item()
        assert w == pytest.approx(value, abs=1e-9)
    for name, (m, a) in CURVED.items():
        own = result.models[name]["personal"].tensors["w"].item()
        assert own == pytest.approx(w - 0.1 * a * (w - m), abs=1e-9)


@pytest.mark.parametrize("order", ["fo", "hf"])
def test_per_fedavg_only_second_batches_change_running_statistics(tmp_path, order):
    """The statistics change once per group of batches, independent of all other passes."""
    args, groups = {"order": order}, {"fo": 2, "hf": 2}
    result = Case(REGISTRY, "per_fedavg", args).run(tmp_path, rounds=1, sites=make_sites({"a": 20}))
    tensors = result.outcome.models["global"].tensors
    assert tensors["body.1.num_batches_tracked"].item() == groups[order]
    personal = result.models["a"]["personal"].tensors
    for name in ("body.1.running_mean", "body.1.num_batches_tracked"):
        assert torch.equal(personal[name], tensors[name])


# ---- FedAMP

CENTRES = {"a": 0.0, "b": 1.0, "c": 4.0}


def run_fedamp(folder, args=None, **options):
    return Case(REGISTRY, "fedamp", args or {}).run(folder, **({"rounds": 2} | options))


def quadratic_fedamp(folder, args, rounds, **options):
    run_quadratic(folder, lambda: REGISTRY.make_method("fedamp", args), rounds, **options)
    return states(folder)


def mixture_fedamp(own, others, alpha, sigma):
    weights = [alpha / sigma * math.exp(-((own - other) ** 2) / sigma) for other in others]
    return (1 - sum(weights)) * own + sum(xi * other for xi, other in zip(weights, others, strict=True))


def five_steps_fedamp(v, u, centre, pull):
    for _ in range(5):
        v -= 0.1 * ((v - centre) + pull * (v - u))
    return v


def test_fedamp_mixtures_equal_the_formula():
    models = [{"w": torch.tensor([value], dtype=torch.float64)} for value in CENTRES.values()]
    u = mix_models(models, attention(models, 1.0, 2.0), [0, 1, 2])
    assert [model["w"].item() for model in u] == pytest.approx([0.3039362551, 0.7133981650, 3.9826655799], abs=1e-9)
    assert mix_models(models, attention(models, 1.0, 2.0)[[2]], [2])[0]["w"].item() == pytest.approx(
        3.9826655799, abs=1e-9
    )
    alike = [models[2]] * 3
    assert all(
        model["w"].item() == pytest.approx(4) for model in mix_models(alike, attention(alike, 1.0, 2.0), [0, 1, 2])
    )


def test_fedamp_unavailable_site_counts_with_its_last_model_if_it_sent_one(tmp_path):
    args, pull = {"alpha_k": 1.0, "sigma": 4.0}, 1.0
    away = {"b": (2,), "c": (1, 2, 3)}  # the third round has the models of the second
    held = quadratic_fedamp(tmp_path, args, 3, unavailable=lambda site, step: step in away.get(site, ()))
    a, b = five_steps_fedamp(0.0, 0.0, 0.0, pull), five_steps_fedamp(0.0, 0.0, 1.0, pull)
    a = five_steps_fedamp(a, mixture_fedamp(a, [b], 1.0, 4.0), 0.0, pull)
    a, b = (
        five_steps_fedamp(a, mixture_fedamp(a, [b], 1.0, 4.0), 0.0, pull),
        five_steps_fedamp(b, mixture_fedamp(b, [a], 1.0, 4.0), 1.0, pull),
    )
    assert [held[site]["kept/own/w"].item() for site in "ab"] == pytest.approx([a, b], abs=1e-9)
    assert "kept/models/c/w" not in held[SERVER]


def test_fedamp_warns_of_models_that_are_too_different(tmp_path, caplog):
    for sigma, far in ((1e-4, True), (10.0, False)):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "medfl"):
            result = run_fedamp(tmp_path / str(sigma), {"sigma": sigma, "alpha_k": sigma / 10})
        assert ("effectively trains alone" in caplog.text) == far
        weights = result.outcome.findings.meta["weights"]
        assert weights.keys() == {"site-1", "site-2", "site-3"}
        assert all((xi < 1e-4) == far for row in weights.values() for xi in row.values())


# ---- FedAS


def test_fedas_alignment_loss_weights_classes_equally():
    """Two images of class 0 with squared distances 2 and 6 over two features, one of class 2 with 8."""
    prototypes = torch.tensor([[1.0, 0.0], [float("nan")] * 2, [0.0, 0.0]], dtype=torch.float64)
    features = torch.tensor([[2.0, 1.0], [1.0, 6**0.5], [2.0, 2.0]], dtype=torch.float64, requires_grad=True)
    value = alignment_loss(features, prototypes, torch.tensor([0, 0, 2]))
    assert value.item() == pytest.approx((1 + 3) / 2 + 4)
    (gradient,) = torch.autograd.grad(value, features)
    assert gradient[0].tolist() == pytest.approx([0.5, 0.5])  # 2 (f - p) / d / 2 images
    assert gradient[2].tolist() == pytest.approx([2.0, 2.0])


def test_fedas_b_9_bodies_are_weighted_by_their_traces():
    sizes = dict(zip("abc", (7, 1, 3), strict=True))
    for traces, mean in (((1, 1, 2), 2.25), ((3, 3, 3), 5 / 3)):
        metas = {site: {"size": sizes[site], "trace": trace} for site, trace in zip("abc", traces, strict=True)}
        weights = normalised_weights(FedAS().weights_of(None, metas), metas)
        assert sum(weights[site] * body for site, body in zip("abc", (0, 1, 4), strict=True)) == pytest.approx(mean)
    metas = {site: {"size": size, "trace": 0.0} for site, size in sizes.items()}
    assert normalised_weights(FedAS().weights_of(None, metas), metas)["a"] == pytest.approx(7 / 11)
