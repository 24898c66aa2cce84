"""Tests that normalisation layers are identified by type, at any place and with any name."""

import pytest
import torch
from torch import nn

from medfl.networks.norms import NORM_TYPES, buffer_names, evaluating, freeze_norms, has_batch_norm, norm_names


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.bn_but_not_really = nn.Linear(3, 3)
        self.downsample = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2))
        self.deep = nn.ModuleDict({"x": nn.ModuleList([nn.GroupNorm(1, 2), nn.BatchNorm3d(2, affine=False)])})
        self.layer = nn.LayerNorm(4)
        self.instance = nn.InstanceNorm2d(2, affine=True)
        self.plain_instance = nn.InstanceNorm2d(2)
        self.sync = nn.SyncBatchNorm(2)


STATISTICS = {"running_mean", "running_var", "num_batches_tracked"}
OF_KIND = {
    "batch": {f"downsample.1.{name}" for name in STATISTICS | {"weight", "bias"}}
    | {f"deep.x.1.{name}" for name in STATISTICS}
    | {f"sync.{name}" for name in STATISTICS | {"weight", "bias"}},
    "group": {"deep.x.0.weight", "deep.x.0.bias"},
    "layer": {"layer.weight", "layer.bias"},
    "instance": {"instance.weight", "instance.bias"},
}


@pytest.mark.parametrize("kind", sorted(NORM_TYPES))
def test_each_kind_is_found_by_type(kind):
    assert norm_names(Tower(), (kind,)) == OF_KIND[kind]


def test_kinds_add_up_and_batch_norm_is_the_default():
    assert norm_names(Tower(), tuple(NORM_TYPES)) == set().union(*OF_KIND.values())
    assert norm_names(Tower()) == OF_KIND["batch"]
    assert norm_names(Tower(), ()) == set()


def test_a_model_that_is_itself_a_layer():
    assert norm_names(nn.BatchNorm1d(2)) == STATISTICS | {"weight", "bias"}


def test_buffers_are_what_is_no_parameter():
    expected = {name for name in OF_KIND["batch"] if name.rsplit(".", 1)[1] in STATISTICS}
    assert buffer_names(Tower()) == expected


@pytest.mark.parametrize(
    ("layer", "expected"), [(nn.BatchNorm2d(2), True), (nn.GroupNorm(1, 2), False), (nn.LayerNorm(2), False)]
)
def test_only_batch_norm_needs_two_samples(layer, expected):
    assert has_batch_norm(nn.Sequential(nn.Sequential(layer))) is expected


def test_frozen_layers_are_in_evaluation_mode_and_nothing_else_is():
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.5), nn.LayerNorm(3)).train()
    freeze_norms(model)
    assert [module.training for module in model] == [False, True, True]
    before = model[0].running_mean.clone()
    model(torch.randn(8, 3) + 5)
    assert torch.equal(model[0].running_mean, before)


def test_after_an_evaluation_each_module_is_in_the_mode_that_it_was_in():
    model = Tower().train()
    freeze_norms(model)
    before = [module.training for module in model.modules()]
    assert True in before
    assert False in before

    def stop():
        assert not any(module.training for module in model.modules())
        raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"), evaluating(model):
        stop()
    assert [module.training for module in model.modules()] == before
