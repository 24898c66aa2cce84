"""FedALA: a step of the weights by hand, a plain loop, and what is mixed."""

import pytest
import torch
from torch.nn import functional as F

from medfl.contract import Site, State
from medfl.plugins import load_plugins
from medfl.settings import Settings
from medfl.testing.cohort import Case, SmallNet, bits, make_data, make_sites, make_task, states
from medfl.toolkit.kept import keep, kept
from medfl.utils.rng import make_generator
from medfl.utils.wire import select, tensors_equal
from medfl_methods.fedala import MIX, OWN, FedALA, ala_step, mixture, upper_layers

REGISTRY = load_plugins()


def run(folder, args=None, **options):
    return Case(REGISTRY, "fedala", args or {}).run(folder, **({"task": make_task("plain"), "rounds": 2} | options))


# ---- by hand


def test_a_step_of_the_weights():
    own, common = torch.tensor([1.0, 1.0, 0.0, 2.0]), torch.tensor([1.5, 1.5, 1.0, 2.0])
    weight, gradient = torch.tensor([1.0, 0.5, 0.1, 0.7]), torch.tensor([0.2, -0.2, 3.0, 9.0])
    assert ala_step(own, common, weight, gradient, 1.0).tolist() == pytest.approx([0.9, 0.6, 0.0, 0.7])
    assert ala_step(own, common, weight, -gradient, 1.0).tolist() == pytest.approx([1.0, 0.4, 1.0, 0.7])
    assert torch.equal(ala_step(own, common, weight, gradient, 0.0), weight)


def test_mixtures_are_exact_at_their_ends():
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
    """A site with upper layers of its own."""
    site = Site("a", round_, State(), make_task("plain"), Settings(rounds=9, seed=7, batch_size=4))
    site.train = make_data(11, "a")
    keep(site, OWN, own)
    return site


def weights_by_loop(common, own, weights, rows, passes, eta=1.0):
    """The weights after some passes, with the losses of the last batches."""
    model, losses = make_task("plain").build().eval(), []
    data, parts = make_data(11, "a"), ("weight", "bias")
    for _ in range(passes):
        for batch in rows.split(4):
            model.load_state_dict(common)
            with torch.no_grad():
                for part in parts:
                    name = f"head.{part}"
                    getattr(model.head, part).copy_(own[name] + (common[name] - own[name]) * weights[name])
            images, labels = data.batch(batch)
            loss = F.cross_entropy(model(images), labels)
            gradients = torch.autograd.grad(loss, [getattr(model.head, part) for part in parts])
            for part, gradient in zip(parts, gradients, strict=True):
                name = f"head.{part}"
                weights[name] = (weights[name] - eta * gradient * (common[name] - own[name])).clamp(0, 1)
        losses.append(loss.item())
    return weights, losses


def test_weights_are_learned_as_printed():
    """On four fifths of the images; the first time until the loss is steady, then by one pass from where they were."""
    common, other = make_task("plain").initial(7), make_task("plain").initial(8)
    own = {name: 3 * tensor for name, tensor in other.items() if name.startswith("head.")}
    ones = {name: torch.ones_like(tensor) for name, tensor in own.items()}
    site, method = site_of(own), FedALA(threshold=0.002, window=2, eta=2.0)
    start = method.start(site, common)
    rows = torch.randperm(11, generator=make_generator(7, "a", 2, "mixture"))[:8]
    losses = weights_by_loop(common, own, dict(ones), rows, 50, 2.0)[1]
    spreads = [torch.tensor(losses[i - 2 : i]).std(correction=0) for i in range(3, 51)]
    passes = next(i for i, spread in enumerate(spreads, 3) if spread < 0.002)
    assert 3 < passes < 50
    expected = weights_by_loop(common, own, dict(ones), rows, passes, 2.0)[0]
    for name, weight in expected.items():
        torch.testing.assert_close(kept(site, MIX)[name], weight, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(start[name], own[name] + (common[name] - own[name]) * weight, atol=1e-5, rtol=1e-4)
        assert 0 <= weight.min() < 1
    assert tensors_equal(select(start, "body."), select(common, "body."))
    site.round = 3
    method.start(site, common)
    rows = torch.randperm(11, generator=make_generator(7, "a", 3, "mixture"))[:8]
    for name, weight in weights_by_loop(common, own, expected, rows, 1, 2.0)[0].items():
        torch.testing.assert_close(kept(site, MIX)[name], weight, atol=1e-5, rtol=1e-4)


def test_passes_have_an_end():
    common = make_task("plain").initial(7)
    own = {name: -tensor for name, tensor in common.items() if name.startswith("head.")}
    ends = []
    for settings in ({"threshold": 1e9, "window": 2}, {"threshold": 0.0, "max_passes": 3}):
        site = site_of(own)
        FedALA(**settings).start(site, common)
        ends.append(kept(site, MIX))
    assert tensors_equal(*ends)


def test_a_difference_that_sums_to_zero_is_one():
    common = make_task("plain").initial(7)
    own = {name: tensor.clone() for name, tensor in common.items() if name.startswith("head.")}
    own["head.bias"] += torch.tensor([1.0, -1.0, 0.0])
    assert not tensors_equal(FedALA().start(site_of(own), common), common)


# ---- runs


def test_only_the_upper_layers_are_mixed_and_the_first_round_is_fedavg(tmp_path):
    first, second = run(tmp_path / "1", rounds=1), run(tmp_path / "2")
    plain = Case(REGISTRY, "fedavg").run(tmp_path / "fedavg", task=make_task("plain"), rounds=1)
    for name, tensors in bits(plain).items():
        assert tensors_equal(bits(first)[name], tensors)
    common, held = second.outcome.models["global"].tensors, states(tmp_path / "2")
    for site in make_sites():
        own, weights = (select(held[site], f"kept/{place}") for place in (OWN, MIX))
        assert set(own) == set(weights) == {"head.weight", "head.bias"}
        personal = second.models[site]["personal"].tensors
        assert tensors_equal(personal, common | mixture(own, common, weights))
        assert not tensors_equal(personal, common)
        assert tensors_equal(select(personal, "body."), select(common, "body."))


def test_buffers_are_the_common_ones(tmp_path):
    result = run(tmp_path, {"p_layers": 3}, task=make_task())
    common = result.outcome.models["global"].tensors
    for models in result.models.values():
        for name in ("body.1.running_mean", "body.1.running_var"):
            assert torch.equal(models["personal"].tensors[name], common[name])
        assert not torch.equal(models["personal"].tensors["body.0.weight"], common["body.0.weight"])
