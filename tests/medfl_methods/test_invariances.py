"""Tests of invariances: duplicated data, renamed classes, equal sites, and states restored from disk."""

import dataclasses

import pytest
import torch

from medfl.engine.site import Splits
from medfl.plugins import load_plugins
from medfl.testing.cohort import Case, SmallNet, TensorData, bits, make_sites, make_task

REGISTRY = load_plugins()
QUICK, FURTHER = (
    ["local", "fedavg", "fedbn", "fedkper"],
    ["centralized", "fedprox", "fedcross", "fedcross_star", "fedskd"],
)
METHODS = [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in FURTHER)]


def close(left, right, atol=1e-5):
    assert left.keys() == right.keys()
    for key, tensors in left.items():
        for name, tensor in tensors.items():
            torch.testing.assert_close(right[key][name], tensor, atol=atol, rtol=1e-4, msg=lambda m, k=key: f"{k}: {m}")


def changed(change, **sites):
    """Return sites with changed training images and labels, and with test labels if `change` returns them."""
    return {
        name: Splits(change(data.train), change(data.val), change(data.test)) for name, data in make_sites().items()
    }


# ---- 1


@pytest.mark.parametrize("name", METHODS)
def test_duplicated_images_change_no_result(tmp_path, name):
    """Duplicate each image, with full batches and without batch statistics: weights and gradients stay equal."""

    def twice(data):
        return TensorData(data.images.repeat(2, 1, 1, 1), data.class_labels.repeat(2))

    options = {"task": make_task("plain"), "batch_size": 999}
    once = bits(Case(REGISTRY, name).run(tmp_path / "once", **options))
    close(once, bits(Case(REGISTRY, name).run(tmp_path / "twice", sites=changed(twice), **options)))


# ---- 2


class Permuted(SmallNet):
    """Network whose head has its rows in another order."""

    request = torch.tensor([2, 0, 1])

    def __init__(self):
        super().__init__()
        with torch.no_grad():
            self.head.weight.copy_(self.head.weight[self.request].clone())
            self.head.bias.copy_(self.head.bias[self.request].clone())


@pytest.mark.parametrize("name", METHODS)
def test_renamed_classes_give_the_same_models_and_scores(tmp_path, name):
    """Rename class c to its position in the order, and permute the head's rows accordingly."""
    request = Permuted.request
    new_name = request.argsort()

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
                tensors[key] = tensors[key][request]
    close(expected, bits(after), atol=1e-4)
    for model, splits in before.summary.scores.items():
        for split, metrics in splits.items():
            assert after.summary.scores[model][split]["accuracy"].sites == metrics["accuracy"].sites
