"""Ditto against closed forms, a plain loop, and the methods that it is at its limits."""

import pytest
from quadratic_toys import QUADRATIC, quadratic, quadratic_sites

from medfl.engine.store import Store
from medfl.plugins import load_plugins

REGISTRY = load_plugins()


def states(folder, name):
    return Store(folder / "state" / name).latest().state().tensors


# ---- closed forms and an independent loop


def test_own_models_of_quadratics_have_the_values_of_the_formulas(tmp_path):
    expected = [(0, 0.33616, 1.34464), (0.30973698, 0.75604989, 2.09498862)]
    for rounds, values in enumerate(expected, 1):  # each continues the one before
        w = quadratic(tmp_path, lambda: REGISTRY.make_method("ditto", {"lam": 1.0}), rounds)
        own = [states(tmp_path, site)["kept/own/w"].item() for site in sorted(quadratic_sites())]
        assert own == pytest.approx(values, abs=1e-7)
        assert w == pytest.approx([0.9213975, 1.4654735098][rounds - 1], abs=1e-9)
    assert QUADRATIC.objective.classes == 2
