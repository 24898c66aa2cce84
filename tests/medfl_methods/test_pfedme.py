"""pFedMe against closed forms and a plain loop."""

import dataclasses

import pytest
import torch
from quadratic_toys import QUADRATIC, quadratic_sites

from medfl.engine.plan import MethodChoice
from medfl.engine.runs.simulation import Run, RunData, simulate
from medfl.engine.store import Store
from medfl.plugins import load_plugins
from medfl.settings import Settings
from medfl.testing.cohort import states
from medfl.types import SERVER

REGISTRY = load_plugins()
EXACT = {"lam": 15.0, "inner_steps": 1, "inner_lr": 1 / 16}
"""On a quadratic of curvature 1 one step of this length solves the inner problem."""


def quadratic(folder, args, rounds=1):
    slow = dataclasses.replace(QUADRATIC, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01))
    make_method = lambda: REGISTRY.make_method("pfedme", args)  # noqa: E731
    simulate(
        Run(
            method=MethodChoice(name="toy", make=make_method),
            task=slow,
            settings=Settings(rounds=rounds, epochs=5),
            data=RunData(sites=quadratic_sites()),
            folder=folder,
        )
    )
    return states(folder)


@pytest.mark.parametrize("start", ["warm", "w"])
def test_with_an_exact_inner_solution_it_has_the_values_of_the_formulas(tmp_path, start):
    """Wherever the search for it begins."""
    held = quadratic(tmp_path, EXACT | {"inner_start": start})
    sent = [Store(tmp_path / "state" / site).latest().tensors["reply/model/w"].item() for site in "abc"]
    assert sent == pytest.approx([0, 0.04600429, 0.18401718], abs=1e-8)
    assert held[SERVER]["w"].item() == pytest.approx(0.07667382, abs=1e-8)


@pytest.mark.parametrize(("weights", "beta", "factor"), [("size", 1.0, 1.0), ("uniform", 2.0, 2.0)])
def test_the_server_steps_by_beta_times_the_mean(tmp_path, weights, beta, factor):
    held = quadratic(tmp_path, EXACT | {"weights": weights, "beta": beta})
    shares = {"size": (1 / 4, 1 / 4, 1 / 2), "uniform": (1 / 3,) * 3}[weights]
    mean = sum(share * w for share, w in zip(shares, (0, 0.04600429, 0.18401718), strict=True))
    assert held[SERVER]["w"].item() == pytest.approx(factor * mean, abs=1e-7)
