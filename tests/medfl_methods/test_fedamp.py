"""FedAMP against closed forms and a plain loop; who counts for whom."""

import logging
import math

import pytest
import torch
from quadratic_toys import QUADRATIC, quadratic_sites

from medfl.engine.plan import MethodChoice
from medfl.engine.runs.simulation import Run, RunData, Simulation, simulate
from medfl.plugins import load_plugins
from medfl.settings import Settings
from medfl.testing.cohort import Case, states
from medfl.types import SERVER
from medfl_methods.fedamp import attention, mixed

REGISTRY = load_plugins()
CENTRES = {"a": 0.0, "b": 1.0, "c": 4.0}


def run(folder, args=None, **options):
    return Case(REGISTRY, "fedamp", args or {}).run(folder, **({"rounds": 2} | options))


def quadratic(folder, args, rounds, **options):
    make_method = lambda: REGISTRY.make_method("fedamp", args)  # noqa: E731
    simulate(
        Run(
            method=MethodChoice(name="toy", make=make_method),
            task=QUADRATIC,
            settings=Settings(rounds=rounds, epochs=5),
            data=RunData(sites=quadratic_sites()),
            folder=folder,
            simulation=Simulation(**options),
        )
    )
    return states(folder)


def mixture(own, others, alpha, sigma):
    weights = [alpha / sigma * math.exp(-((own - other) ** 2) / sigma) for other in others]
    return (1 - sum(weights)) * own + sum(xi * other for xi, other in zip(weights, others, strict=True))


def five_steps(v, u, centre, pull):
    for _ in range(5):
        v -= 0.1 * ((v - centre) + pull * (v - u))
    return v


def test_mixtures_have_the_values_of_the_formula():
    models = [{"w": torch.tensor([value], dtype=torch.float64)} for value in CENTRES.values()]
    u = mixed(models, attention(models, 1.0, 2.0), [0, 1, 2])
    assert [model["w"].item() for model in u] == pytest.approx([0.3039362551, 0.7133981650, 3.9826655799], abs=1e-9)
    assert mixed(models, attention(models, 1.0, 2.0)[[2]], [2])[0]["w"].item() == pytest.approx(3.9826655799, abs=1e-9)
    alike = [models[2]] * 3
    assert all(model["w"].item() == pytest.approx(4) for model in mixed(alike, attention(alike, 1.0, 2.0), [0, 1, 2]))


def test_an_absent_site_counts_with_what_it_sent_last_and_one_that_never_sent_for_nobody(tmp_path):
    args, pull = {"alpha_k": 1.0, "sigma": 4.0}, 1.0
    away = {"b": (2,), "c": (1, 2, 3)}  # the third round has the models of the second
    held = quadratic(tmp_path, args, 3, absent=lambda site, step: step in away.get(site, ()))
    a, b = five_steps(0.0, 0.0, 0.0, pull), five_steps(0.0, 0.0, 1.0, pull)
    a = five_steps(a, mixture(a, [b], 1.0, 4.0), 0.0, pull)
    a, b = (
        five_steps(a, mixture(a, [b], 1.0, 4.0), 0.0, pull),
        five_steps(b, mixture(b, [a], 1.0, 4.0), 1.0, pull),
    )
    assert [held[site]["kept/own/w"].item() for site in "ab"] == pytest.approx([a, b], abs=1e-9)
    assert "kept/models/c/w" not in held[SERVER]


def test_models_that_are_too_far_apart_are_warned_of(tmp_path, caplog):
    for sigma, far in ((1e-4, True), (10.0, False)):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "medfl"):
            result = run(tmp_path / str(sigma), {"sigma": sigma, "alpha_k": sigma / 10})
        assert ("each trains alone" in caplog.text) == far
        weights = result.outcome.findings.meta["weights"]
        assert weights.keys() == {"site-1", "site-2", "site-3"}
        assert all((xi < 1e-4) == far for row in weights.values() for xi in row.values())
