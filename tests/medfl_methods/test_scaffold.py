"""SCAFFOLD against closed forms and a plain loop; where it is FedAvg, and what it refuses."""

import pytest
import torch
from quadratic_toys import run_curved
from refusals import refused

from medfl.engine.store import Store
from medfl.errors import SettingsError
from medfl.plugins import load_plugins
from medfl.testing.cohort import Case, make_task
from medfl.types import SERVER
from medfl_methods.scaffold import moved_by

REGISTRY = load_plugins()


def run(folder, name="scaffold", args=None, **options):
    return Case(REGISTRY, name, args or {}).run(folder, **options)


def states(folder, name):
    return Store(folder / "state" / name).latest().state().tensors


# ---- closed forms: quadratics h/2 (w - centre)^2, five steps of 0.1


def curved(folder, name, rounds, **args):
    result = run_curved(folder, lambda: REGISTRY.make_method(name, args), rounds)
    return result.outcome.models["global"].tensors["w"].item()


def test_three_rounds_have_the_values_of_the_formulas(tmp_path):
    w, c = [], []
    for rounds in (1, 2, 3):  # each continues the one before
        w.append(curved(tmp_path, "scaffold", rounds))
        c.append(states(tmp_path, SERVER)["kept/control/w"].item())
        if rounds == 1:
            own = [states(tmp_path, site)["kept/control/w"].item() for site in "abc"]
    assert w == pytest.approx([0.5257320833, 0.8185538974, 0.9758604716], abs=1e-9)
    assert c == pytest.approx([-1.0514641667, -0.5856436282, -0.3146131483], abs=1e-9)
    assert own == pytest.approx([0, -1.34464, -1.8097525], abs=1e-9)


def test_it_ends_at_the_optimum_of_all_sites_and_fedavg_does_not(tmp_path):
    assert curved(tmp_path / "scaffold", "scaffold", 80) == pytest.approx(8 / 7, abs=1e-6)
    assert abs(curved(tmp_path / "fedavg", "fedavg", 80, weights="uniform") - 8 / 7) > 0.05


# ---- what it covers, and what it refuses


def test_variates_are_of_shared_parameters_alone(tmp_path):
    run(tmp_path, norm_sync="none", rounds=1)
    names = {
        name.removeprefix("kept/control/") for name in states(tmp_path, SERVER) if name.startswith("kept/control/")
    }
    assert names == {"body.0.weight", "body.0.bias", "head.weight", "head.bias"}


def test_dp_sgd_is_refused_and_whole_sites_have_one_release_a_round(tmp_path):
    pytest.importorskip("opacus")
    privacy = {"epsilon": 8.0, "delta": 1e-3, "clip": 1.0}
    with refused(SettingsError, "method_not_supported", feature="dp_sgd", method="scaffold"):
        run(tmp_path / "sample", task=make_task("plain"), privacy=privacy | {"unit": "sample"})
    run(tmp_path / "site", task=make_task("plain"), privacy=privacy | {"unit": "site"})
    store = Store(tmp_path / "site" / "state" / "site-1")
    for step in store.steps():
        record = store.load(step)
        assert len(record.meta["released"]) == 1
        assert {name.split("/")[1] for name in record.tensors if name.startswith("reply/")} == {"model", "control"}


def test_steps_go_as_far_as_sgd_does():
    parameter = torch.nn.Parameter(torch.zeros((), dtype=torch.float64))
    optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=0.9)
    for _ in range(7):
        parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    assert moved_by(optimizer, 7)[parameter] == pytest.approx(-parameter.item(), abs=1e-12)
