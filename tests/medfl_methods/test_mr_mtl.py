"""MR-MTL against closed forms; what is held near the mean, and whose buffers are whose."""

import pytest
import torch
from quadratic_toys import QUADRATIC, quadratic_sites

from medfl.engine.plan import MethodChoice
from medfl.engine.runs.simulation import Run, RunData, simulate
from medfl.plugins import load_plugins
from medfl.settings import Settings
from medfl.testing.cohort import Case, make_sites, states
from medfl.types import SERVER

REGISTRY = load_plugins()


def run(folder, args=None, name="mr_mtl", **options):
    return Case(REGISTRY, name, args or {}).run(folder, **({"rounds": 2} | options))


def quadratic(folder, rounds, lam):
    make_method = lambda: REGISTRY.make_method("mr_mtl", {"lam": lam})  # noqa: E731
    simulate(
        Run(
            method=MethodChoice(name="toy", make=make_method),
            task=QUADRATIC,
            settings=Settings(rounds=rounds, epochs=5),
            data=RunData(sites=quadratic_sites()),
            folder=folder,
        )
    )
    held = states(folder)
    return [held[site]["kept/own/w"].item() for site in "abc"], held[SERVER]["w"].item()


def test_two_rounds_have_the_values_of_the_formulas(tmp_path):
    expected = [
        ((0, 0.33616, 1.34464), 0.5602666667),
        ((0.1883392427, 0.6346521515, 1.9735908779), 0.9321940907),
    ]
    for rounds, (own, mean) in enumerate(expected, 1):  # the second continues the first
        v, w = quadratic(tmp_path, rounds, 1.0)
        assert v == pytest.approx(own, abs=1e-9)
        assert w == pytest.approx(mean, abs=1e-9)


def test_sites_end_half_way_to_the_mean(tmp_path):
    v, w = quadratic(tmp_path, 60, 1.0)
    assert v == pytest.approx([(m + 5 / 3) / 2 for m in (0, 1, 4)], abs=1e-6)
    assert w == pytest.approx(5 / 3, abs=1e-6)


def test_a_site_without_images_has_the_mean(tmp_path):
    result = run(tmp_path, sites=make_sites({"a": 9, "b": 7, "empty": 0}), rounds=1)
    mean = states(tmp_path)[SERVER]
    empty = result.models["empty"]["personal"].tensors
    assert all(torch.equal(empty[name], tensor) for name, tensor in mean.items())
