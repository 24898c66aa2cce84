"""Tests of ResNet: MONAI's outputs, any width, norm and activation in each block, and no in-place operation."""

from __future__ import annotations

import io
import pickle
from typing import Any

import pytest
import torch
from monai.networks.nets import resnet as monai_resnet
from refusals import refused
from resnet_toys import backward_with_hooks, images, numbers, small, stage_outputs
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from medfl.errors import SettingsError
from medfl.networks.norms import buffer_names, freeze_norms, has_batch_norm, norm_names
from medfl.networks.resnet import DEPTHS, ResNet
from medfl.networks.resnet_blocks import group_count
from medfl.objectives import Multiclass
from medfl.plugins import load_plugins
from medfl.task import Task
from medfl.testing.cohort import CLASSES, Case, make_task
from medfl.types import Meta

WIDTHS = (64, 62, 60, 58)
NORMS: list[tuple[Any, type[nn.Module]]] = [
    ("batch", _BatchNorm),
    ("group", nn.GroupNorm),
    (["group", {"num_groups": 2}], nn.GroupNorm),
    ("instance", _InstanceNorm),
    (["instance", {"affine": True}], _InstanceNorm),
]


def monai(depth: int, spatial_dims: int, width: int = 8, **changes: Any) -> nn.Module:
    build = getattr(monai_resnet, f"resnet{depth}")
    options = {"spatial_dims": spatial_dims, "n_input_channels": 2, "num_classes": 3, "widen_factor": width / 64}
    return build(**options | changes)


def same(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    return torch.allclose(ours, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("spatial_dims", [2, 3])
@pytest.mark.parametrize("depth", list(DEPTHS))
def test_with_batch_norm_it_is_monais_network(depth, spatial_dims):
    batch = images(spatial_dims).double()
    ours, theirs = small(depth, spatial_dims, "batch").double(), monai(depth, spatial_dims).double()
    assert list(ours.state_dict()) == list(theirs.state_dict())
    theirs.load_state_dict(ours.state_dict())
    again = ResNet(depth, 2, 3, spatial_dims, width=8).double()
    again.load_state_dict(theirs.state_dict())
    assert same(again.eval()(batch), theirs.eval()(batch))
    assert same(again.train()(batch), theirs.train()(batch))
    for (name, buffer), other in zip(again.named_buffers(), theirs.buffers(), strict=True):
        assert same(buffer.double(), other.double()), f"{name} after a batch in training"


@pytest.mark.parametrize("depth", list(DEPTHS))
def test_the_same_seed_draws_monais_initial_tensors(depth):
    states = []
    for build in (lambda: ResNet(depth, 2, 3, 2, width=8), lambda: monai(depth, 2)):
        torch.manual_seed(3)
        states.append(build().state_dict())
    assert all(torch.equal(tensor, states[1][name]) for name, tensor in states[0].items())


@pytest.mark.parametrize(("kernel", "stride", "pool"), [(3, 2, True), (5, 1, False)])
def test_the_stems_options_are_monais(kernel, stride, pool):
    ours = small(norm="batch", stem_kernel=kernel, stem_stride=stride, stem_pool=pool).double()
    theirs = monai(10, 2, conv1_t_size=kernel, conv1_t_stride=stride, no_max_pool=not pool).double().eval()
    theirs.load_state_dict(ours.state_dict())
    assert same(ours(images(2).double()), theirs(images(2).double()))


@pytest.mark.parametrize(("depth", "width"), [*((10, width) for width in WIDTHS), (50, 62)])
def test_at_the_papers_widths_all_tensors_have_monais_shapes(depth, width):
    with torch.device("meta"):
        for spatial_dims in (2, 3):
            ours, theirs = ResNet(depth, 2, 3, spatial_dims, width=width), monai(depth, spatial_dims, width)
            assert shapes(ours) == shapes(theirs)


def shapes(model: nn.Module) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize("width", WIDTHS)
def test_stages_have_the_shapes_of_the_paper(width):
    for size, edges, channels in (([224] * 2, (112, 56, 28, 14), 3), ([48] * 3, (24, 12, 6, 3), 4)):
        with torch.device("meta"):
            model = ResNet(10, channels, 5, len(size), width=width, norm="group", size=size)
            maps = stage_outputs(model, torch.empty(8, channels, *size))
            assert model(torch.empty(8, channels, *size)).shape == (8, 5)
        expected = [(8, width * 2**stage, *[edge] * len(size)) for stage, edge in enumerate(edges)]
        assert [tuple(map_.shape) for map_ in maps] == expected


@pytest.mark.parametrize(("width", "spatial_dims", "norm"), [(62, 2, "group"), (58, 3, "instance")])
def test_an_odd_width_trains(width, spatial_dims, norm):
    torch.manual_seed(0)
    model = ResNet(10, 2, 3, spatial_dims, width=width, norm=norm)
    loss = nn.functional.cross_entropy(model(images(spatial_dims)), torch.tensor([0, 1, 2]))
    loss.backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    assert all(gradient is not None and gradient.isfinite().all() for gradient in gradients)
    assert model.conv1.weight.grad.abs().max() > 0


@pytest.mark.parametrize(
    ("channels", "groups"), [(64, 32), (62, 31), (60, 30), (58, 29), (8, 4), (7, 1), (2, 1), (1, 1)]
)
def test_the_number_of_groups_follows_its_rule(channels, groups):
    assert group_count(channels) == groups
    for wide in (2 * channels, 4 * channels, 8 * channels):
        allowed = [count for count in range(1, 33) if wide % count == 0 and wide // count >= 2]
        assert group_count(wide) == max(allowed)
    if channels in WIDTHS:
        assert {group_count(channels * 2**stage) for stage in range(4)} <= {29, 30, 31, 32}, "alike for all sites"


@pytest.mark.parametrize(("norm", "kind"), NORMS, ids=str)
@pytest.mark.parametrize(("depth", "places"), [(10, 1 + 4 * 2 + 3), (50, 1 + 16 * 3 + 4)])
def test_norm_and_act_reach_every_block(depth, places, norm, kind):
    model = small(depth, norm=norm, act="elu")
    layers = [module for module in model.modules() if isinstance(module, (_BatchNorm, nn.GroupNorm, _InstanceNorm))]
    assert len(layers) == places
    assert all(isinstance(layer, kind) for layer in layers)
    if isinstance(norm, list):
        assert all(getattr(layer, name) == value for layer in layers for name, value in norm[1].items())
    kinds = [type(module) for module in model.modules()]
    assert (kinds.count(nn.ELU), kinds.count(nn.ReLU)) == (1 + sum(DEPTHS[depth][1]), 0)


def test_monais_own_blocks_ignore_norm_and_act():
    """This is the reason for medfl's own class; if the test fails, MONAI's class can replace it."""
    model = monai(10, 2, norm=("group", {"num_groups": 4}), act="elu")
    kinds = [type(module) for module in model.modules()]
    assert (kinds.count(nn.GroupNorm), kinds.count(nn.BatchNorm2d)) == (1, 4 * 2 + 3)
    assert (kinds.count(nn.ELU), kinds.count(nn.ReLU)) == (1, 4)
    assert all(module.inplace for module in model.modules() if isinstance(module, nn.ReLU))
    with pytest.raises(RuntimeError, match="modified inplace"):
        backward_with_hooks(model)


def test_body_head_and_stages_are_the_network():
    for spatial_dims in (2, 3):
        model, batch = small(spatial_dims=spatial_dims), images(spatial_dims)
        features = model.body(batch)
        assert features.shape == (3, 64)
        assert torch.equal(model.head(features), model(batch))
        *_, last = stage_outputs(model, batch)
        assert torch.allclose(last.flatten(2).mean(2), features, rtol=1e-4)
    assert list(model.body.parameters())[0] is model.conv1.weight
    both = [*model.body.parameters(), *model.head.parameters()]
    assert {id(parameter) for parameter in both} == {id(parameter) for parameter in model.parameters()}
    assert len(both) == len(list(model.parameters()))


@pytest.mark.parametrize(
    ("norm", "spatial_dims"), [("batch", 2), ("batch", 3), ("group", 2), ("group", 3), ("instance", 3)]
)
def test_scripted_or_pickled_it_gives_the_same_logits(norm, spatial_dims):
    model, batch = small(spatial_dims=spatial_dims, norm=norm), images(spatial_dims)
    file = io.BytesIO()
    torch.jit.save(torch.jit.script(model), file)
    file.seek(0)
    assert torch.equal(torch.jit.load(file)(batch), model(batch))
    again = pickle.loads(pickle.dumps(model))  # noqa: S301 - made here
    assert torch.equal(again(batch), model(batch))
    assert again.feature_layers[0] is again.layer1


def test_a_bottleneck_network_can_be_scripted():
    model = small(50)
    assert torch.equal(torch.jit.script(model)(images(2)), model(images(2)))


def test_its_normalisation_layers_are_found_and_frozen():
    model = small(norm="batch").train()
    names = norm_names(model)
    assert "layer2.0.downsample.1.running_mean" in names, "no 'bn' in this name"
    assert len(names) == 5 * 12
    assert buffer_names(model) == {name for name in names if name.split(".")[-1] not in ("weight", "bias")}
    assert has_batch_norm(model)
    before = {name: tensor.clone() for name, tensor in model.named_buffers()}
    freeze_norms(model)
    model(images(2))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.named_buffers())
    grouped = small()
    assert not has_batch_norm(grouped)
    assert len(norm_names(grouped, ("group",))) == 2 * 12


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("method", ["fedavg", "fedbn"])
def test_it_trains_in_a_federation(tmp_path, method, norm):
    base = make_task()
    build = {"resnet": lambda: ResNet(10, 1, CLASSES, width=4, norm=norm, stem_kernel=3, stem_pool=False)}
    task = Task(build, "resnet", base.loss, base.optimizer, Multiclass(CLASSES), base.metrics)
    settings: Meta = {"rounds": 1, "epochs": 1}
    result = Case(load_plugins(), method).run(tmp_path, task=task, **settings)
    assert result.outcome.status == "finished"


@pytest.mark.parametrize(
    ("change", "code", "fields"),
    [
        ({"depth": 11}, "unknown_choice", {"what": "depth", "choice": 11, "known": [10, 18, 34, 50]}),
        ({"spatial_dims": 1}, "setting_out_of_range", {"setting": "spatial_dims", "expected": [2, 3], "found": 1}),
        ({"in_channels": 0}, "setting_out_of_range", {"setting": "in_channels", "minimum": 1, "found": 0}),
        ({"num_classes": 0}, "setting_out_of_range", {"setting": "num_classes", "minimum": 1, "found": 0}),
        ({"width": 0}, "setting_out_of_range", {"setting": "width", "minimum": 1, "found": 0}),
        ({"width": 7.5}, "setting_out_of_range", {"setting": "width", "minimum": 1, "found": 7.5}),
        ({"stem_kernel": 4}, "setting_out_of_range", {"setting": "stem_kernel", "expected": "odd", "found": 4}),
        ({"stem_stride": 0}, "setting_out_of_range", {"setting": "stem_stride", "minimum": 1}),
        ({"stem_pool": "false"}, "wrong_setting_type", {"setting": "stem_pool", "found": "'false'"}),
        ({"norm": "batsh"}, "invalid_layer", {"setting": "norm", "found": "batsh"}),
        (
            {"norm": ["group", {"num_groups": 5}]},
            "invalid_layer",
            {"setting": "norm", "channels": 8, "found": "['group', {'num_groups': 5}]"},
        ),
        ({"act": "rellu"}, "invalid_layer", {"setting": "act", "found": "rellu"}),
        ({"act": ["relu", {"inplace": True}]}, "inplace_activation", {"found": "['relu', {'inplace': True}]"}),
        ({"size": 15}, "image_too_small", {"minimum": 16, "found": [15, 15]}),
        ({"size": [48, 12]}, "image_too_small", {"minimum": 16, "found": [48, 12]}),
        ({"size": 31, "stem_stride": 2}, "image_too_small", {"minimum": 32}),
        ({"size": 7, "stem_pool": False}, "image_too_small", {"minimum": 8}),
        ({"size": 16, "norm": "instance"}, "image_too_small", {"minimum": 17}),
        ({"size": [48, 48, 48]}, "wrong_edge_count", {"expected": 2}),
    ],
    ids=str,
)
def test_impossible_arguments_are_named(change, code, fields):
    with refused(SettingsError, code, network="ResNet", **fields):
        ResNet(**{"width": 8} | change)


@pytest.mark.parametrize(("norm", "least"), [("batch", 16), ("group", 16), ("instance", 17)])
def test_the_smallest_allowed_image_trains(norm, least):
    model = ResNet(width=8, norm=norm, size=least)
    assert model(numbers(2, 3, least, least)).isfinite().all()
