"""MOON: its term by hand, which models it compares, and its projection head."""

import dataclasses
import math

import pytest
import torch
from monai.bundle import ConfigParser

from medfl.contract import Model
from medfl.engine.evaluation import predictor_of
from medfl.engine.store import Store
from medfl.plugins import load_plugins
from medfl.testing.cohort import Case, bits, make_site, make_task, states
from medfl.toolkit.losses import contrastive
from medfl.utils.wire import select, tensors_equal
from medfl_methods.moon import Moon

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


def test_the_first_round_has_no_term_and_the_second_has(tmp_path):
    for rounds, alike in ((1, True), (2, False)):
        with_term, without = (
            bits(run(tmp_path / f"{rounds}{mu}", {"mu": mu}, rounds=rounds))["server/global"] for mu in (1.0, 0.0)
        )
        assert tensors_equal(with_term, without) == alike


def test_the_previous_model_is_that_of_the_last_participation(tmp_path):
    """Its own end, which is neither the received model nor a later one."""
    result = run(tmp_path, rounds=2, absent=lambda site, step: site == "site-1" and step == 2)
    first, held = Moon(proj_dim=4).task_of(make_task()).initial(7), states(tmp_path)
    update = select(Store(tmp_path / "state" / "site-1").latest().tensors, "reply/model/")
    for name, tensor in select(held["site-1"], "kept/previous/").items():
        torch.testing.assert_close(tensor, first[name] + update[name])
    newest = select(held["site-2"], "kept/previous/")
    assert not tensors_equal(newest, result.outcome.models["global"].tensors)
    assert not tensors_equal(newest, select(held["site-1"], "kept/previous/"))


def test_models_that_stay_do_not_move_the_statistics(tmp_path):
    """At learning rate 0 batch norm sees the same batches, whether or not there is a term."""
    still = dataclasses.replace(make_task(), optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.0))
    ours, plain = (
        run(tmp_path / str(mu), {"mu": mu}, task=still, rounds=2).outcome.models["global"].tensors for mu in (1.0, 0.0)
    )
    assert tensors_equal(ours, plain)


# ---- the projection head


def test_the_projection_is_exchanged_and_taken_home(tmp_path):
    tensors = run(tmp_path, rounds=1).outcome.models["global"].tensors
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items() if name.startswith("head.")}
    assert shapes == {
        "head.projection.fc1.weight": (24, 24),
        "head.projection.fc1.bias": (24,),
        "head.projection.fc2.weight": (4, 24),
        "head.projection.fc2.bias": (4,),
        "head.out.weight": (3, 4),
        "head.out.bias": (3,),
    }
    method, task = Moon(proj_dim=4), make_task("plain")
    model = Model("plain", dict(sorted(method.task_of(task).initial(3).items())))
    built = method.network_config(model, {"_target_": "medfl.testing.cohort.SmallNet", "norm": False})
    network = ConfigParser({"network_def": built}).get_parsed_content("network_def").eval()
    network.load_state_dict(model.tensors)
    images, _ = make_site(4, "x").train.batch(torch.arange(4))
    torch.testing.assert_close(network(images), predictor_of(method, task, model)(images))
