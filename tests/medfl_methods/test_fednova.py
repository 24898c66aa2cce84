"""FedNova against closed forms; where it is FedAvg or FedProx, and what it refuses."""

import dataclasses

import pytest
import torch
from quadratic_toys import quadratic

from medfl.training.sgd import way
from medfl_methods.fednova import FedNova

METAS = {"a": {"effort": 1.0, "steps": 1}, "b": {"effort": 5.0, "steps": 5}, "c": {"effort": 10.0, "steps": 10}}
SIZES = {"a": 1.0, "b": 1.0, "c": 2.0}


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


def test_a_site_without_a_step_is_left_out():
    method, metas = FedNova(), {"a": METAS["b"] | {"size": 3}, "b": {"effort": 0.0, "steps": 0, "size": 1}}
    assert method.weights_of(None, metas) == {"a": pytest.approx(0.6), "b": 0.0}
    assert method.stretch({"a": 3.0}, {"a": metas["a"]}) == 1.0
