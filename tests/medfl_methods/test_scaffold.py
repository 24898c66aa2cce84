"""SCAFFOLD against closed forms and a plain loop; where it is FedAvg, and what it refuses."""

import dataclasses

import pytest
import torch
from quadratic_toys import run_curved
from refusals import refused
from torch.nn import functional as F

from medfl.engine.store import Store
from medfl.errors import SettingsError
from medfl.plugins import load_plugins
from medfl.testing.cohort import Case, bits, make_sites, make_task
from medfl.types import SERVER
from medfl.utils.rng import make_generator
from medfl.utils.wire import tensors_equal
from medfl_methods.scaffold import moved_by

REGISTRY = load_plugins()


def run(folder, name="scaffold", args=None, **options):
    return Case(REGISTRY, name, args or {}).run(folder, **options)


def states(folder, name):
    return Store(folder / "state" / name).latest().state().tensors


def same(left, right):
    left, right = bits(left), bits(right)
    assert left.keys() == right.keys()
    assert all(tensors_equal(left[key], right[key]) for key in left)


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


# ---- where it is FedAvg


@pytest.mark.parametrize("network", ["norm", "plain"])
def test_the_first_round_is_that_of_fedavg_with_uniform_weights(tmp_path, network):
    options = {"rounds": 1, "task": make_task(network)}
    uniform = run(tmp_path / "fedavg", "fedavg", {"weights": "uniform"}, **options)
    same(run(tmp_path / "scaffold", **options), uniform)


@pytest.mark.parametrize("network", ["norm", "plain"])
def test_with_one_site_it_is_fedavg_for_ever(tmp_path, network):
    options = {"rounds": 4, "task": make_task(network), "sites": make_sites({"only": 17})}
    same(run(tmp_path / "scaffold", **options), run(tmp_path / "fedavg", "fedavg", **options))


# ---- an independent loop


def plain_loop(sites, rounds, momentum):
    """SCAFFOLD as printed, on tensors by name."""
    task, model = make_task("plain"), make_task("plain").build()
    x = {name: tensor.clone() for name, tensor in task.initial(7).items()}
    c = {name: torch.zeros_like(tensor) for name, tensor in x.items()}
    own = {site: {name: torch.zeros_like(tensor) for name, tensor in x.items()} for site in sites}
    for round_ in range(1, rounds + 1):
        moves, changes = [], []
        for site, splits in sites.items():
            model.load_state_dict(x)
            data, generator = splits.train, make_generator(7, site, round_, "batches")
            speed = {name: torch.zeros_like(tensor) for name, tensor in x.items()}
            length, step_length = 0.0, 0.0
            for rows in torch.randperm(len(data), generator=generator).split(5):
                images, labels = data.batch(rows)
                grads = torch.autograd.grad(F.cross_entropy(model(images), labels), list(model.parameters()))
                step_length = momentum * step_length + 0.1
                length += step_length
                with torch.no_grad():
                    for (name, parameter), grad in zip(model.named_parameters(), grads, strict=True):
                        speed[name] = momentum * speed[name] + grad - own[site][name] + c[name]
                        parameter -= 0.1 * speed[name]
            y = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}
            new = {name: own[site][name] - c[name] + (x[name] - y[name]) / length for name in x}
            moves.append({name: y[name] - x[name] for name in x})
            changes.append({name: new[name] - own[site][name] for name in x})
            own[site] = new
        x = {name: x[name] + sum(move[name] for move in moves) / len(moves) for name in x}
        c = {name: c[name] + sum(change[name] for change in changes) / len(changes) for name in x}
    return x, c, own


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_it_is_the_loop_of_the_paper(tmp_path, momentum):
    sites = make_sites()
    sgd = lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=momentum)  # noqa: E731
    task = dataclasses.replace(make_task("plain"), optimizer=sgd)
    result = run(tmp_path, task=task, sites=sites)
    x, c, own = plain_loop(sites, 3, momentum)
    held = states(tmp_path, SERVER)
    for name in x:
        torch.testing.assert_close(result.outcome.models["global"].tensors[name], x[name], atol=2e-5, rtol=1e-4)
        torch.testing.assert_close(held[f"kept/control/{name}"], c[name], atol=1e-4, rtol=1e-3)
        for site in sites:
            torch.testing.assert_close(
                states(tmp_path, site)[f"kept/control/{name}"], own[site][name], atol=1e-4, rtol=1e-3
            )


def test_with_all_sites_the_servers_variate_is_the_mean_of_theirs(tmp_path):
    run(tmp_path)
    held = states(tmp_path, SERVER)
    for name in (key for key in held if key.startswith("kept/control/")):
        mean = torch.stack([states(tmp_path, site)[name] for site in make_sites()]).mean(0)
        torch.testing.assert_close(held[name], mean, atol=1e-5, rtol=1e-4)


# ---- what it covers, and what it refuses


def test_variates_are_of_shared_parameters_alone(tmp_path):
    run(tmp_path, norm_sync="none", rounds=1)
    names = {
        name.removeprefix("kept/control/") for name in states(tmp_path, SERVER) if name.startswith("kept/control/")
    }
    assert names == {"body.0.weight", "body.0.bias", "head.weight", "head.bias"}


@pytest.mark.parametrize(
    ("optimizer", "name", "options"),
    [
        (lambda parameters: torch.optim.Adam(parameters, lr=0.1), "Adam", []),
        (lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True), "SGD", ["nesterov"]),
    ],
)
def test_an_optimiser_that_hides_the_gradient_is_refused(tmp_path, optimizer, name, options):
    task = dataclasses.replace(make_task(), optimizer=optimizer)
    with refused(SettingsError, "unsupported_optimizer", optimizer=name, options=options):
        run(tmp_path, task=task)


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
