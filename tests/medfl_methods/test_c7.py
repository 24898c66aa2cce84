"""What must not change a result: doubled data, renamed classes, twins, a state's way to the disk and back."""

import dataclasses

import pytest
import torch
from torch import nn

from medfl.contract import Holder
from medfl.engine.site import Splits
from medfl.engine.store import Store
from medfl.plugins import load_plugins
from medfl.testing.cohort import Case, SmallNet, TensorData, bits, make_data, make_site, make_sites, make_task
from medfl.utils import wire
from medfl.utils.rng import make_generator
from medfl.utils.wire import tensors_equal

REGISTRY = load_plugins()
QUICK, FURTHER = (
    ["local", "fedavg", "fedbn", "fedkper", "fedskd"],
    ["centralized", "fedprox", "fedcross", "fedcross_star"],
)
METHODS = [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in FURTHER)]


def close(left, right, atol=1e-5):
    assert left.keys() == right.keys()
    for key, tensors in left.items():
        for name, tensor in tensors.items():
            torch.testing.assert_close(right[key][name], tensor, atol=atol, rtol=1e-4, msg=lambda m, k=key: f"{k}: {m}")


def changed(change, **sites):
    """Sites whose training images and labels are changed, and test labels where `change` gives them."""
    return {
        name: Splits(change(data.train), change(data.val), change(data.test)) for name, data in make_sites().items()
    }


# ---- 1


@pytest.mark.parametrize("name", METHODS)
def test_every_image_twice_changes_nothing(tmp_path, name):
    """In full batches on a network without batch statistics: weights and gradients are the same."""

    def twice(data):
        return TensorData(data.images.repeat(2, 1, 1, 1), data.class_labels.repeat(2))

    options = {"task": make_task("plain"), "batch_size": 999}
    once = bits(Case(REGISTRY, name).run(tmp_path / "once", **options))
    close(once, bits(Case(REGISTRY, name).run(tmp_path / "twice", sites=changed(twice), **options)))


# ---- 2


class Permuted(SmallNet):
    """The network whose head has its rows in another order."""

    order = torch.tensor([2, 0, 1])

    def __init__(self):
        super().__init__()
        with torch.no_grad():
            self.head.weight.copy_(self.head.weight[self.order].clone())
            self.head.bias.copy_(self.head.bias[self.order].clone())


@pytest.mark.parametrize("name", METHODS)
def test_renamed_classes_give_the_same_models_and_scores(tmp_path, name):
    """Class c is called where c stands in the order; the head's rows move with it."""
    order = Permuted.order
    new_name = order.argsort()

    def rename(data):
        return TensorData(data.images, new_name[data.class_labels])

    task = make_task()
    before = Case(REGISTRY, name).run(tmp_path / "before", task=task)
    renamed = dataclasses.replace(task, networks={"norm": Permuted})
    after = Case(REGISTRY, name).run(tmp_path / "after", task=renamed, sites=changed(rename))
    expected = bits(before)
    for tensors in expected.values():
        for key in tensors:  # an ensemble has several heads
            if key.endswith(("head.weight", "head.bias")):
                tensors[key] = tensors[key][order]
    close(expected, bits(after), atol=1e-4)
    for model, splits in before.summary.scores.items():
        for split, metrics in splits.items():
            assert after.summary.scores[model][split]["accuracy"].sites == metrics["accuracy"].sites


# ---- 4


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("network", ["norm", "plain"])
def test_tiny_and_one_sided_sites_are_legal(tmp_path, name, network):
    sites = make_sites({"few": 3, "none": 0, "one": 1, "usual": 11})
    sites["same"] = make_site(7, "same", torch.ones(7, dtype=torch.int64))
    result = Case(REGISTRY, name).run(tmp_path, sites=sites, task=make_task(network))
    assert result.outcome.status == "finished"
    for key, tensors in bits(result).items():
        assert all(torch.isfinite(tensor).all() for tensor in tensors.values()), key


# ---- 5


@pytest.mark.parametrize("name", [*QUICK, "fedprox", "fedcross_star"])
def test_twins_with_one_stream_have_the_same_updates(tmp_path, monkeypatch, name):
    monkeypatch.setattr(Holder, "rng", lambda self, label: make_generator(7, "twin", self.round, label))
    data = make_site(12, "twin")
    result = Case(REGISTRY, name).run(tmp_path, sites={"a": data, "b": data}, rounds=2)
    left, right = (Store(tmp_path / "state" / site).latest().tensors for site in "ab")
    assert tensors_equal(left, right)
    assert left
    assert all(
        tensors_equal(result.models["a"][kind].tensors, model.tensors) for kind, model in result.models["b"].items()
    )


# ---- 6


@pytest.mark.parametrize("name", METHODS)
def test_a_state_comes_back_from_the_disk(tmp_path, name):
    result = Case(REGISTRY, name).run(tmp_path, rounds=2)
    for path in sorted((tmp_path / "state").iterdir()):
        record = Store(path).latest()
        if record is None:
            continue
        state = record.state()
        again, meta = wire.decode(wire.encode(state.tensors, state.meta))
        assert tensors_equal(again, state.tensors)
        assert meta == state.meta
        models = result.models.get(path.name, {})
        if "personal" in models:
            kept = models["personal"].tensors
            own = {key: tensor for key, tensor in state.tensors.items() if "/" not in key}  # not an optimiser's
            assert tensors_equal({key: kept[key] for key in own}, own)


def test_a_predictor_is_the_same_on_another_day(tmp_path):
    result = Case(REGISTRY, "fedbn").run(tmp_path, rounds=1)
    model = result.models["site-1"]["personal"]
    images = make_data(5, "x").images
    logits = [REGISTRY.make_method("fedbn", {}).predictor(make_task(), [model])(images) for _ in range(2)]
    assert torch.equal(*logits)
    assert nn.functional.softmax(logits[0], 1).sum(1).tolist() == pytest.approx([1.0] * 5)
