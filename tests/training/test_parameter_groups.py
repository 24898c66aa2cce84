"""Tests of parameter groups: blocks of networks, learning rates by depth, and weight decay without norms."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from monai.networks.nets import DenseNet121
from monai.optimizers import generate_param_groups
from torch import nn

from medfl.networks.parts import SplitNetwork
from medfl.networks.resnet import ResNet
from medfl.settings import Settings
from medfl.testing.cohort import make_task
from medfl.training.parameter_groups import blocks, depths_from_output, parameter_groups


class Encoder(nn.Module):
    """Encoder as in libraries of pretrained networks: a stem, stages of blocks and a last norm."""

    def __init__(self) -> None:
        super().__init__()
        self.position = nn.Parameter(torch.zeros(1, 4, 4))
        self.stem = nn.Conv2d(1, 2, 3)
        self.stem_norm = nn.BatchNorm2d(2)
        self.act = nn.PReLU()
        self.stages = nn.ModuleList([nn.Sequential(Block(), Block()), nn.Sequential(Block())])
        self.norm = nn.LayerNorm([2, 3, 3])

    def forward(self, images):
        return images


class Block(nn.Module):
    """Block of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 2, 3, bias=False), nn.GroupNorm(1, 2)


class Wrapped(nn.Module):
    """Body that only contains an encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = Encoder()


def network(body: nn.Module) -> SplitNetwork:
    return SplitNetwork(body, nn.Linear(3, 2))


@pytest.mark.parametrize("body", [Encoder, Wrapped])
def test_the_depth_of_each_layer_by_hand(body):
    """Five blocks: the stem with its norm and activation, three blocks (the last with the norm after it), the head."""
    model = network(body())
    depths = depths_from_output(model)
    by_name = {
        name.removeprefix("body.").removeprefix("encoder."): depths[id(p)] for name, p in model.named_parameters()
    }
    assert by_name == {
        "position": 4,
        "stem.weight": 4,
        "stem.bias": 4,
        "stem_norm.weight": 4,
        "stem_norm.bias": 4,
        "act.weight": 4,
        "stages.0.0.conv.weight": 3,
        "stages.0.0.norm.weight": 3,
        "stages.0.0.norm.bias": 3,
        "stages.0.1.conv.weight": 2,
        "stages.0.1.norm.weight": 2,
        "stages.0.1.norm.bias": 2,
        "stages.1.0.conv.weight": 1,
        "stages.1.0.norm.weight": 1,
        "stages.1.0.norm.bias": 1,
        "norm.weight": 1,
        "norm.bias": 1,
        "head.weight": 0,
        "head.bias": 0,
    }


@pytest.mark.parametrize(
    ("model", "count", "first", "last"),
    [
        (ResNet(spatial_dims=2, in_channels=1, num_classes=2), 6, ["conv1", "bn1"], ["fc"]),
        (DenseNet121(2, 1, 2), 1 + 6 + 1 + 12 + 1 + 24 + 1 + 16 + 1, ["conv0", "norm0"], ["out"]),
        (nn.Linear(3, 2), 0, [], []),
    ],
)
def test_the_blocks_of_known_networks(model, count, first, last):
    names = {module: path.rpartition(".")[2] for path, module in model.named_modules()}
    layers = [[names[module] for module in modules] for modules in blocks(model)]
    assert len(layers) == count
    assert not layers or (layers[0], layers[-1]) == (first, last)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.5)


def rates_by_name(optimizer, model):
    names = {id(p): name for name, p in model.named_parameters()}
    return {names[id(p)]: group["lr"] for group in optimizer.param_groups for p in group["params"]}


def test_the_rates_of_a_network_by_hand_and_by_monai():
    """The decay of the round applies to all groups. MONAI's function gives the same rates from a list of layers."""
    model = network(Encoder())
    settings = Settings(rounds=2, lr_decay=0.5, optimization={"layer_decay": 0.8})
    optimizer = replace(make_task(), optimizer=sgd).in_round(2, settings).make_optimizer(model, model.parameters())
    rates = rates_by_name(optimizer, model)
    assert rates["head.weight"] == pytest.approx(0.05)
    assert rates["body.stages.1.0.conv.weight"] == pytest.approx(0.05 * 0.8)
    assert rates["body.stages.0.0.norm.bias"] == pytest.approx(0.05 * 0.8**3)
    assert rates["body.position"] == rates["body.stem.weight"] == pytest.approx(0.05 * 0.8**4)
    assert all(group["momentum"] == 0.9 and group["weight_decay"] == 0.5 for group in optimizer.param_groups)
    layers = ["head", "body.stages.1", "body.norm", "body.stages.0.1", "body.stages.0.0"]
    factors = [1, 0.8, 0.8, 0.8**2, 0.8**3]
    groups = generate_param_groups(
        model,
        [lambda named, layer=layer: named[0].startswith(layer + ".") for layer in layers],
        ["filter"] * len(layers),
        [0.05 * factor for factor in factors],
    )
    assert rates == pytest.approx(rates_by_name(torch.optim.SGD(groups, lr=0.05 * 0.8**4), model))


def test_norms_and_biases_without_a_gradient_keep_their_values_and_others_shrink():
    model = network(Encoder())
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    task = replace(make_task(), optimizer=sgd).in_round(1, Settings(rounds=1, optimization={"decay_norms": False}))
    optimizer = task.make_optimizer(model, model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    kept = {name for name, p in model.named_parameters() if torch.equal(p, before[name])}
    assert kept - {"body.position"} == {  # zeros before and after
        name for name in before if "norm" in name or name.endswith("bias") or "act" in name
    }
    assert torch.allclose(model.head.weight, before["head.weight"] * (1 - 0.1 * 0.5))


def test_the_groups_hold_every_trained_parameter_once_and_no_other():
    model = network(Encoder())
    model.body.requires_grad_(False)
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = parameter_groups(model, trained, layer_decay=0.5, decay_norms=False)
    assert [(group.rate_factor, group.decays, len(group.parameters)) for group in groups] == [
        (1, True, 1),
        (1, False, 1),
    ]
    every = parameter_groups(model, model.parameters(), layer_decay=0.5, decay_norms=False)
    assert sorted(id(p) for group in every for p in group.parameters) == sorted(map(id, model.parameters()))
    assert [group.rate_factor for group in every] == sorted((group.rate_factor for group in every), reverse=True)
    assert len(parameter_groups(model, model.parameters())) == 1
