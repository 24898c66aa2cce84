"""Ditto against closed forms, a plain loop, and the methods that it is at its limits."""

import dataclasses

import pytest
import torch
from quadratic_toys import QUADRATIC, quadratic, quadratic_sites
from torch.nn import functional as F

from medfl.engine.store import Store
from medfl.plugins import load_plugins
from medfl.testing.cohort import Case, make_sites, make_task
from medfl.types import SERVER
from medfl.utils.rng import make_generator
from medfl.utils.wire import tensors_equal

REGISTRY = load_plugins()
NETWORKS = ["norm", "plain"]


def run(folder, name="ditto", args=None, **options):
    return Case(REGISTRY, name, args or {}).run(folder, **options)


def states(folder, name):
    return Store(folder / "state" / name).latest().state().tensors


# ---- where it is another method


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("lam", [0.0, 3.0])
def test_the_common_model_is_that_of_fedavg(tmp_path, network, lam):
    task = make_task(network)
    mine = run(tmp_path / "ditto", args={"lam": lam}, task=task)
    theirs = run(tmp_path / "fedavg", "fedavg", task=task)
    assert tensors_equal(mine.outcome.models["global"].tensors, theirs.outcome.models["global"].tensors)
    for site, models in theirs.models.items():
        assert tensors_equal(mine.models[site]["global"].tensors, models["global"].tensors)


@pytest.mark.parametrize("network", NETWORKS)
def test_without_lam_the_own_models_are_those_of_local_training(tmp_path, network):
    task = make_task(network)
    mine = run(tmp_path / "ditto", args={"lam": 0.0}, task=task)
    alone = run(tmp_path / "local", "local", task=task)
    for site, models in alone.models.items():
        assert tensors_equal(mine.models[site]["personal"].tensors, models["personal"].tensors)


def test_a_large_lam_holds_own_models_near_the_received_one(tmp_path):
    plain = lambda parameters: torch.optim.SGD(parameters, lr=0.1)  # noqa: E731
    task, far = dataclasses.replace(make_task("plain"), optimizer=plain), []
    received = task.initial(7)
    for lam in (0.0, 1.0, 5.0):
        result = run(tmp_path / str(lam), args={"lam": lam}, task=task, rounds=1, epochs=4)
        own = result.models["site-1"]["personal"].tensors
        far.append(sum((own[name] - received[name]).square().sum().item() for name in own))
    assert far[0] > far[1] > far[2] > 0


# ---- closed forms and an independent loop


def test_own_models_of_quadratics_have_the_values_of_the_formulas(tmp_path):
    expected = [(0, 0.33616, 1.34464), (0.30973698, 0.75604989, 2.09498862)]
    for rounds, values in enumerate(expected, 1):  # each continues the one before
        w = quadratic(tmp_path, lambda: REGISTRY.make_method("ditto", {"lam": 1.0}), rounds)
        own = [states(tmp_path, site)["kept/own/w"].item() for site in sorted(quadratic_sites())]
        assert own == pytest.approx(values, abs=1e-7)
        assert w == pytest.approx([0.9213975, 1.4654735098][rounds - 1], abs=1e-9)
    assert QUADRATIC.objective.classes == 2


def trained(tensors, data, generator, lam, centre):
    """One epoch of SGD with momentum from `tensors`, held near `centre`."""
    model = make_task("plain").build()
    model.load_state_dict(tensors)
    speed = [torch.zeros_like(parameter) for parameter in model.parameters()]
    for rows in torch.randperm(len(data), generator=generator).split(5):
        images, labels = data.batch(rows)
        grads = torch.autograd.grad(F.cross_entropy(model(images), labels), list(model.parameters()))
        with torch.no_grad():
            for index, (name, parameter) in enumerate(model.named_parameters()):
                speed[index] = 0.9 * speed[index] + grads[index] + lam * (parameter - centre[name])
                parameter -= 0.1 * speed[index]
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def test_it_is_the_loop_of_the_paper(tmp_path):
    sites, lam = make_sites(), 0.5
    result = run(tmp_path, args={"lam": lam, "weights": "uniform"}, task=make_task("plain"))
    w = make_task("plain").initial(7)
    own = dict.fromkeys(sites, w)
    for round_ in (1, 2, 3):
        locals_ = []
        for site, splits in sites.items():
            draws = [make_generator(7, site, round_, "batches") for _ in range(2)]
            own[site] = trained(own[site], splits.train, draws[0], lam, w)
            locals_.append(trained(w, splits.train, draws[1], 0.0, w))
        w = {name: sum(model[name] for model in locals_) / len(locals_) for name in w}
    for name, tensor in w.items():
        torch.testing.assert_close(result.outcome.models["global"].tensors[name], tensor, atol=1e-5, rtol=1e-4)
        for site in sites:
            mine = result.models[site]["personal"].tensors[name]
            torch.testing.assert_close(mine, own[site][name], atol=1e-5, rtol=1e-4)


# ---- what stays, and what is scored


def test_the_own_model_never_leaves_and_goes_on_after_an_absence(tmp_path):
    result = run(tmp_path, absent=lambda site, step: site == "site-2" and step == 2, args={"own_epochs": 2})
    assert {name.split("/")[0] for name in states(tmp_path, SERVER)} & {"kept", "own"} == set()
    for site in make_sites():
        store = Store(tmp_path / "state" / site)
        for step in store.steps():
            sent = [name for name in store.load(step).tensors if name.startswith("reply/")]
            assert sent
            assert all(name.startswith("reply/model/") for name in sent)
    assert set(result.models["site-2"]) == {"global", "personal"}


def test_a_site_that_never_trained_has_the_common_model(tmp_path):
    models = run(tmp_path, absent=lambda site, step: site == "site-3").models["site-3"]
    assert tensors_equal(models["personal"].tensors, models["global"].tensors)
