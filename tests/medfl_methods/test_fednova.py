"""FedNova against closed forms; where it is FedAvg or FedProx, and what it refuses."""

import dataclasses

import pytest
import torch
from quadratic_toys import quadratic
from refusals import refused

from medfl.errors import SettingsError
from medfl.plugins import load_plugins
from medfl.testing.cohort import Case, bits, make_task
from medfl.training.sgd import way
from medfl.utils.wire import tensors_equal
from medfl_methods.fednova import FedNova

REGISTRY = load_plugins()
METAS = {"a": {"effort": 1.0, "steps": 1}, "b": {"effort": 5.0, "steps": 5}, "c": {"effort": 10.0, "steps": 10}}
SIZES = {"a": 1.0, "b": 1.0, "c": 2.0}


def run(folder, name="fednova", args=None, **options):
    return Case(REGISTRY, name, args or {}).run(folder, **options)


def sgd(momentum=0.0, lr=0.1, **options):
    return torch.optim.SGD([torch.zeros(1)], lr=lr, momentum=momentum, **options)


class Uneven(FedNova):
    """Sites a, b, c take 1, 5 and 10 steps."""

    def train(self, site, order):
        steps = {"a": 1, "b": 5, "c": 10}[site.name]
        settings = site.settings.model_copy(update={"steps": steps})
        return super().train(dataclasses.replace(site, settings=settings), order)


def test_three_rounds_have_the_values_of_the_formulas(tmp_path):
    values = [quadratic(tmp_path, Uneven, rounds) for rounds in (1, 2, 3)]  # each continues the one before
    assert values == pytest.approx([0.9798087779, 1.4625897052, 1.7004702275], abs=1e-9)


def test_weights_and_stretch_are_those_of_the_card():
    method = FedNova()
    assert method.stretch(SIZES, METAS) == pytest.approx(2.275, abs=1e-12)
    sized = {name: meta | {"size": SIZES[name]} for name, meta in METAS.items()}
    weights = method.weights_of(None, sized)
    assert [7 * w / sum(weights.values()) for w in weights.values()] == pytest.approx([5, 1, 1])
    assert FedNova(tau_eff="steps").stretch(SIZES, METAS) == pytest.approx(2.275, abs=1e-12)
    halved = {name: meta | {"effort": meta["effort"] / 2} for name, meta in METAS.items()}
    assert FedNova(tau_eff="steps").stretch(SIZES, halved) == pytest.approx(4.55, abs=1e-12)
    assert method.stretch(SIZES, halved) == pytest.approx(2.275, abs=1e-12), "the unit of efforts cancels"


@pytest.mark.parametrize(
    ("optimizer", "steps", "mu", "expected"),
    [
        (sgd(), 5, 0.0, 5.0),
        (sgd(0.9), 5, 0.0, 13.1441),
        (sgd(0.9), 10, 0.0, 41.3810596090),
        (sgd(), 5, 1.0, 4.0951),
        (sgd(), 0, 1.0, 0.0),
    ],
)
def test_efforts_are_those_of_the_formulas(optimizer, steps, mu, expected):
    assert way(optimizer.param_groups[0], steps, mu) == pytest.approx(expected, abs=1e-9)


def test_an_effort_is_how_far_sgd_goes_along_a_constant_gradient():
    """With momentum and a proximal term in the loss, which the momentum sees."""
    parameter = torch.nn.Parameter(torch.zeros((), dtype=torch.float64))
    optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=0.9)
    for _ in range(7):
        parameter.grad = -torch.ones_like(parameter) + 0.5 * parameter.detach()
        optimizer.step()
    assert way(optimizer.param_groups[0], 7, 0.5) == pytest.approx(parameter.item() / 0.1, abs=1e-12)


@pytest.mark.parametrize("network", ["norm", "plain"])
@pytest.mark.parametrize("weights", ["size", "uniform"])
def test_with_as_many_steps_at_all_sites_it_is_fedavg(tmp_path, network, weights):
    options = {"task": make_task(network), "steps": 3}
    mine = bits(run(tmp_path / "mine", args={"weights": weights}, **options))
    theirs = bits(run(tmp_path / "fedavg", "fedavg", {"weights": weights}, **options))
    assert mine.keys() == theirs.keys()
    assert all(tensors_equal(mine[key], theirs[key]) for key in mine)


def test_with_as_many_steps_and_a_proximal_term_it_is_fedprox(tmp_path):
    mine = bits(run(tmp_path / "mine", args={"mu": 0.3}, steps=2))
    theirs = bits(run(tmp_path / "fedprox", "fedprox", {"mu": 0.3}, steps=2))
    assert all(tensors_equal(mine[key], theirs[key]) for key in mine)


def test_a_site_without_a_step_is_left_out():
    method, metas = FedNova(), {"a": METAS["b"] | {"size": 3}, "b": {"effort": 0.0, "steps": 0, "size": 1}}
    assert method.weights_of(None, metas) == {"a": pytest.approx(0.6), "b": 0.0}
    assert method.stretch({"a": 3.0}, {"a": metas["a"]}) == 1.0


@pytest.mark.parametrize("options", [{"nesterov": True, "momentum": 0.9}, None])
def test_an_optimiser_whose_way_is_not_known_is_refused(tmp_path, options):
    kind = torch.optim.Adam if options is None else torch.optim.SGD
    task = dataclasses.replace(make_task(), optimizer=lambda parameters: kind(parameters, lr=0.1, **(options or {})))
    with refused(
        SettingsError,
        "unsupported_optimizer",
        optimizer=kind.__name__,
        options=[] if options is None else ["nesterov"],
    ):
        run(tmp_path, task=task)


def test_privacy_is_refused_as_steps_tell_sizes(tmp_path):
    privacy = {"unit": "site", "epsilon": 8.0, "delta": 1e-3, "clip": 1.0}
    with refused(SettingsError, "method_not_supported", feature="privacy", method="fednova") as caught:
        run(tmp_path, task=make_task("plain"), privacy=privacy)
    assert "'effort' (a fact that it can't do without)" in caught.value.fields["sends"]
