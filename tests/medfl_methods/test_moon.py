"""MOON: its term by hand, which models it compares, and its projection head."""

import dataclasses
import math

import pytest
import torch

from medfl.plugins import load_plugins
from medfl.testing.cohort import Case, make_task
from medfl.toolkit.losses import contrastive
from medfl.utils.wire import tensors_equal

REGISTRY = load_plugins()


def run(folder, args=None, **options):
    return Case(REGISTRY, "moon", {"proj_dim": 4} | (args or {})).run(folder, **options)


# ---- the term


def unit(cosine):
    """A vector whose cosine with (1, 0) is that, of another length."""
    return torch.tensor([[cosine, math.sqrt(1 - cosine**2)]], dtype=torch.float64) * 3


@pytest.mark.parametrize(("near", "far", "tau"), [(0.75, 0.3, 0.5), (0.1, 0.7, 0.5), (0.2, 0.9, 1.0)])
def test_the_contrast_has_the_value_of_the_formula(near, far, tau):
    z = torch.tensor([[2.0, 0.0]], dtype=torch.float64)
    a, b = math.exp(near / tau), math.exp(far / tau)
    value = contrastive(z, unit(near), unit(far), tau).item()
    assert value == pytest.approx(-math.log(a / (a + b)), abs=1e-9)
    if (near, far) == (0.75, 0.3):
        assert value == pytest.approx(0.3411538747, abs=1e-9)


def test_where_both_models_say_the_same_it_is_ln_2_without_a_gradient():
    z, other = torch.randn(5, 7, requires_grad=True), torch.randn(5, 7)
    value = contrastive(z, other, other.clone(), 0.5)
    assert value.item() == pytest.approx(math.log(2), abs=1e-6)
    assert torch.autograd.grad(value, z)[0].abs().max() < 1e-7


def test_no_gradient_flows_into_the_models_that_stay():
    tensors = [torch.randn(3, 4, requires_grad=True) for _ in range(3)]
    contrastive(*tensors, 0.5).backward()
    assert tensors[0].grad is not None
    assert tensors[1].grad is tensors[2].grad is None


# ---- which models


def test_models_that_stay_do_not_move_the_statistics(tmp_path):
    """At learning rate 0 batch norm sees the same batches, whether or not there is a term."""
    still = dataclasses.replace(make_task(), optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.0))
    ours, plain = (
        run(tmp_path / str(mu), {"mu": mu}, task=still, rounds=2).outcome.models["global"].tensors for mu in (1.0, 0.0)
    )
    assert tensors_equal(ours, plain)
