"""pFedMe against closed forms and a plain loop."""

import dataclasses

import pytest
import torch
from quadratic_toys import QUADRATIC, quadratic_sites
from torch.nn import functional as F

from medfl.engine.plan import MethodChoice
from medfl.engine.runs.simulation import RunData, SimulatedRun, simulate
from medfl.engine.store import Store
from medfl.plugins import load_plugins
from medfl.settings import Settings
from medfl.testing.cohort import Case, make_sites, make_task, states
from medfl.types import SERVER
from medfl.utils.rng import make_generator
from medfl.utils.wire import tensors_equal

REGISTRY = load_plugins()
EXACT = {"lam": 15.0, "inner_steps": 1, "inner_lr": 1 / 16}
"""On a quadratic of curvature 1 one step of this length solves the inner problem."""


def run(folder, args=None, **options):
    return Case(REGISTRY, "pfedme", args or {}).run(folder, **({"rounds": 2} | options))


def quadratic(folder, args, rounds=1):
    slow = dataclasses.replace(QUADRATIC, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01))
    make_method = lambda: REGISTRY.make_method("pfedme", args)  # noqa: E731
    simulate(
        SimulatedRun(
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


@pytest.mark.parametrize("start", ["warm", "w"])
def test_it_is_the_loop_of_the_paper(tmp_path, start):
    """With the run's optimiser for w, SGD with momentum; all sites in three rounds."""
    args = {"lam": 2.0, "inner_steps": 3, "inner_lr": 0.2, "beta": 1.5, "inner_start": start}
    sites, model = make_sites(), make_task("plain").build()
    result = run(tmp_path, args, task=make_task("plain"), rounds=3)
    common, own = make_task("plain").initial(7), {}
    names = list(common)
    for round_ in (1, 2, 3):
        ends = []
        for site, splits in sites.items():
            w, theta = dict(common), dict(common)
            speed = {name: torch.zeros_like(tensor) for name, tensor in w.items()}
            draws = make_generator(7, site, round_, "batches")
            for rows in torch.randperm(len(splits.train), generator=draws).split(5):
                images, labels = splits.train.batch(rows)
                theta = dict(w) if start == "w" else theta
                for _ in range(3):
                    model.load_state_dict(theta)
                    grads = torch.autograd.grad(F.cross_entropy(model(images), labels), list(model.parameters()))
                    theta = {n: theta[n] - 0.2 * (g + 2.0 * (theta[n] - w[n])) for n, g in zip(names, grads)}
                for name in names:
                    speed[name] = 0.9 * speed[name] + 2.0 * (w[name] - theta[name])
                    w[name] = w[name] - 0.1 * speed[name]
            ends.append(w)
            own[site] = theta
        common = {n: common[n] + 1.5 * sum(end[n] - common[n] for end in ends) / 3 for n in names}
    for name in names:
        torch.testing.assert_close(result.outcome.models["global"].tensors[name], common[name], atol=1e-5, rtol=1e-4)
        for site in sites:
            mine = result.models[site]["personal"].tensors[name]
            torch.testing.assert_close(mine, own[site][name], atol=1e-5, rtol=1e-4)


def test_an_absent_site_keeps_its_model_and_one_that_never_trained_has_the_common_one(tmp_path):
    first = run(tmp_path / "first", rounds=1).models["site-2"]["personal"].tensors
    later = run(tmp_path / "later", absent=lambda site, step: site == "site-2" and step == 2)
    parameters = [name for name, _ in make_task().build().named_parameters()]
    assert all(torch.equal(later.models["site-2"]["personal"].tensors[name], first[name]) for name in parameters)
    models = run(tmp_path / "never", absent=lambda site, step: site == "site-3").models["site-3"]
    assert tensors_equal(models["personal"].tensors, models["global"].tensors)
