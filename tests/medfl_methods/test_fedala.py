"""Tests of FedALA: a step of the weights by hand, exact mixtures, and the selection of layers."""

import pytest
import torch

from medfl.contract import Site, State
from medfl.plugins import load_plugins
from medfl.settings import Settings
from medfl.testing.cohort import Case, SmallNet, make_data, make_task
from medfl.toolkit.participant_state import auxiliary_state, set_auxiliary_state
from medfl.utils.wire import tensors_equal
from medfl_methods.fedala import MIXTURE_WEIGHTS_PREFIX, OWN_LAYERS_PREFIX, FedALA, ala_step, mixture, upper_layers

REGISTRY = load_plugins()


def run(folder, args=None, **options):
    return Case(REGISTRY, "fedala", args or {}).run(folder, **({"task": make_task("plain"), "rounds": 2} | options))


# ---- by hand


def test_weight_step_equals_the_formula():
    own, common = torch.tensor([1.0, 1.0, 0.0, 2.0]), torch.tensor([1.5, 1.5, 1.0, 2.0])
    weight, gradient = torch.tensor([1.0, 0.5, 0.1, 0.7]), torch.tensor([0.2, -0.2, 3.0, 9.0])
    assert ala_step(own, common, weight, gradient, 1.0).tolist() == pytest.approx([0.9, 0.6, 0.0, 0.7])
    assert ala_step(own, common, weight, -gradient, 1.0).tolist() == pytest.approx([1.0, 0.4, 1.0, 0.7])
    assert torch.equal(ala_step(own, common, weight, gradient, 0.0), weight)


def test_mixtures_are_exact_at_weights_0_and_1():
    own, common = torch.randn(2, 1000) * 1e3
    for weight, expected in ((0.0, own), (1.0, common)):
        assert torch.equal(mixture({"w": own}, {"w": common}, {"w": torch.full((1000,), weight)})["w"], expected)


def test_layers_are_modules_counted_from_the_output():
    layers = [[name for name, _ in upper_layers(SmallNet(), count)] for count in range(5)]
    body = [f"body.{part}" for part in ("0.weight", "0.bias", "1.weight", "1.bias")]
    head = ["head.weight", "head.bias"]
    assert layers == [[], head, body[2:] + head, body + head, body + head]


# ---- the loop


def site_of(own, round_=2):
    """Return a site with stored upper layers."""
    site = Site("a", round_, State(), make_task("plain"), Settings(rounds=9, seed=7, batch_size=4))
    site.train = make_data(11, "a")
    set_auxiliary_state(site, OWN_LAYERS_PREFIX, own)
    return site


def test_number_of_passes_is_limited():
    common = make_task("plain").initial(7)
    own = {name: -tensor for name, tensor in common.items() if name.startswith("head.")}
    ends = []
    for settings in ({"threshold": 1e9, "window": 2}, {"threshold": 0.0, "max_passes": 3}):
        site = site_of(own)
        FedALA(**settings).start(site, common)
        ends.append(auxiliary_state(site, MIXTURE_WEIGHTS_PREFIX))
    assert tensors_equal(*ends)


def test_layers_with_a_zero_sum_difference_are_mixed():
    common = make_task("plain").initial(7)
    own = {name: tensor.clone() for name, tensor in common.items() if name.startswith("head.")}
    own["head.bias"] += torch.tensor([1.0, -1.0, 0.0])
    assert not tensors_equal(FedALA().start(site_of(own), common), common)


# ---- runs


def test_buffers_are_those_of_the_global_model(tmp_path):
    result = run(tmp_path, {"p_layers": 3}, task=make_task())
    common = result.outcome.models["global"].tensors
    for models in result.models.values():
        for name in ("body.1.running_mean", "body.1.running_var"):
            assert torch.equal(models["personal"].tensors[name], common[name])
        assert not torch.equal(models["personal"].tensors["body.0.weight"], common["body.0.weight"])
