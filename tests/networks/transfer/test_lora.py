"""Tests of low-rank adapters: layers, initial outputs, merging, and the numbers of peft 0.21.2."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused
from torch import nn
from torch.func import functional_call, grad, vmap

from medfl.errors import ContractError, SettingsError
from medfl.networks.transfer.adapters.layers import Adapted, AdapterOptions, adapter_scale, add_adapters, has_residuals
from medfl.networks.transfer.adapters.tensors import (
    FACTOR_A,
    FACTOR_B,
    RESIDUAL,
    adapted_layers,
    is_adapter,
    is_residual,
    low_rank_product,
    merge_adapters,
)

CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


class Network(nn.Module):
    """A convolution, a normalisation layer and a linear layer, and a linear head."""

    def __init__(self, dims=2, **options):
        super().__init__()
        layer = CONVOLUTIONS[dims](2, 4, **({"kernel_size": 3, "padding": 1} | options))
        self.body = nn.Sequential(layer, nn.GroupNorm(2, 4), nn.ReLU(), Pool(), nn.Flatten(), nn.Linear(4, 5))
        self.head = nn.Linear(5, 3)

    def forward(self, x):
        return self.head(self.body(x))


class Pool(nn.Module):
    def forward(self, x):
        return x.flatten(2).mean(2)


def images(dims=2, count=3, channels=2):
    return torch.randn(count, channels, *[6] * dims, generator=torch.Generator().manual_seed(1))


def make(dims=2, aggregation="naive", rank=2, alpha=6.0, targets="all", seed=0, **options):
    """Return a plain network, and a copy with adapters."""
    torch.manual_seed(seed)
    plain = Network(dims, **options)
    adapted = copy.deepcopy(plain)
    add_adapters(adapted, AdapterOptions(rank, alpha, targets, aggregation), "net")
    return plain, adapted


def draw(model, names=("lora_b", RESIDUAL), seed=3, factor=0.5):
    """Fill the tensors whose names contain one of the given ones."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if any(part in name for part in names):
                tensor.copy_(factor * torch.randn(tensor.shape, generator=generator))
    return model


SHAPES = [
    (1, {}),
    (2, {}),
    (3, {}),
    (2, {"stride": 2, "dilation": 2, "padding": 2, "bias": False}),
    (2, {"kernel_size": (1, 3), "padding": "same", "padding_mode": "reflect"}),
    (3, {"kernel_size": 1, "padding": 0, "stride": 2}),
]


@pytest.mark.parametrize("aggregation", ["frozen_a", "exact", "naive"])
@pytest.mark.parametrize(("dims", "options"), SHAPES)
def test_outputs_are_those_of_the_base_network_at_first_and_of_the_merged_one_later(dims, options, aggregation):
    plain, adapted = make(dims, aggregation, **options)
    x = images(dims)
    assert torch.equal(plain(x), adapted(x))
    draw(adapted)
    merged = merge_adapters(adapted.state_dict(), adapter_scale(adapted))
    assert list(merged) == list(plain.state_dict())
    plain.load_state_dict(merged)
    assert not torch.allclose(merged["body.0.weight"], make(dims, **options)[0].state_dict()["body.0.weight"])
    torch.testing.assert_close(plain(x), adapted(x), rtol=0, atol=1e-6)


def test_factors_have_small_shapes_and_everything_but_factors_and_head_is_frozen():
    _, adapted = make(3, "frozen_a")
    shapes = {name: list(p.shape) for name, p in adapted.named_parameters() if p.requires_grad}
    assert shapes == {
        "body.0.lora_b.weight": [4, 2, 1, 1, 1],
        "body.5.lora_b.weight": [5, 2],
        "head.weight": [3, 5],
        "head.bias": [3],
    }
    assert adapted.body[0].lora_a.weight.shape == (2, 2, 3, 3, 3)
    adapted(images(3)).sum().backward()
    assert all(p.grad is None for p in adapted.parameters() if not p.requires_grad)
    assert adapted.body[0].lora_b.weight.grad.abs().sum() > 0
    _, both = make(3, "exact")
    assert {name for name, p in both.named_parameters() if p.requires_grad} == shapes.keys() | {
        "body.0.lora_a.weight",
        "body.5.lora_a.weight",
    }
    assert has_residuals(both)
    assert not has_residuals(adapted)
    assert [name for name in both.state_dict() if is_residual(name)] == ["body.0.lora_residual", "body.5.lora_residual"]
    assert adapted_layers(both.state_dict()) == ["body.0.", "body.5."]
    assert adapter_scale(both) == 3.0
    assert adapter_scale(Network()) is None


def test_a_rank_above_the_full_rank_of_a_layer_is_the_full_rank():
    _, adapted = make(2, rank=64)
    assert adapted.body[0].lora_a.weight.shape[0] == 4
    assert adapted.body[5].lora_b.weight.shape == (5, 4)
    assert adapter_scale(adapted) == 6 / 64


@pytest.mark.parametrize("dims", [2, 3])
def test_full_rank_reaches_any_change_of_the_weights(dims):
    plain, adapted = make(dims, rank=5, alpha=5.0)
    wanted = draw(copy.deepcopy(plain), ("0.weight", "5.weight"))
    state = adapted.state_dict()
    for layer in adapted_layers(state):
        change = (wanted.state_dict()[layer + "weight"] - plain.state_dict()[layer + "weight"]).flatten(1)
        a = state[layer + FACTOR_A].flatten(1)
        if change.shape[1] >= change.shape[0]:  # B is square: A is the change
            state[layer + FACTOR_A] = change.reshape(state[layer + FACTOR_A].shape)
            state[layer + FACTOR_B] = torch.eye(len(change)).reshape(state[layer + FACTOR_B].shape)
        else:
            state[layer + FACTOR_B] = change @ torch.linalg.inv(a)
    adapted.load_state_dict(state)
    torch.testing.assert_close(adapted(images(dims)), wanted(images(dims)), rtol=0, atol=1e-5)


@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.integers(1, 5))
def test_grouped_convolutions_have_one_pair_of_factors_per_group(groups, inputs, outputs, dims, rank):
    torch.manual_seed(0)
    layer = CONVOLUTIONS[dims](groups * inputs, groups * outputs, 3, groups=groups, padding=1)
    model = nn.Sequential(copy.deepcopy(layer))
    options = AdapterOptions(rank, 2.0, "all", "naive")
    if groups > 1 and inputs == 1:
        with refused(SettingsError, "no_match", setting="lora.targets", names=[]):
            add_adapters(model, options, "net")
        return
    add_adapters(model, options, "net")
    draw(model)
    merged = merge_adapters(model.state_dict(), options.scale)
    layer.load_state_dict({name.removeprefix("0."): tensor for name, tensor in merged.items()})
    x = images(dims, channels=groups * inputs)
    torch.testing.assert_close(layer(x), model(x), rtol=0, atol=1e-5)


def test_layers_whose_weights_are_read_elsewhere_have_no_adapter():
    class Same(nn.Conv2d):
        pass

    tied = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
    tied[1].weight = tied[0].weight
    model = nn.ModuleDict(
        {
            "plain": nn.Linear(3, 4),
            "same": Same(3, 4, 1),
            "depthwise": nn.Conv2d(3, 6, 3, groups=3),
            "transposed": nn.ConvTranspose2d(3, 4, 2),
            "attention": nn.MultiheadAttention(4, 2),
            "encoder": nn.TransformerEncoderLayer(4, 2, 8),
            "normalised": nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)),
            "old": nn.utils.spectral_norm(nn.Linear(3, 3)),
            "tied": tied,
        }
    )
    add_adapters(model, AdapterOptions(2, 2.0), "net")
    assert [name for name, module in model.named_modules() if isinstance(module, Adapted)] == ["plain"]
    assert {name for name, p in model.named_parameters() if p.requires_grad} == {"plain.lora_b.weight"}


def test_targets_select_layers_and_no_match_is_refused_with_the_names():
    _, adapted = make(targets=r"body\.5")
    assert adapted_layers(adapted.state_dict()) == ["body.5."]
    with refused(SettingsError, "no_match", setting="lora.targets", network="net", names=["body.0", "body.5"]):
        make(targets="layer4")
    with refused(SettingsError, "no_match", names=["body.0", "body.5"]):
        make(targets="head")


def test_plain_weights_load_as_a_zero_change_and_incomplete_ones_are_refused():
    plain, adapted = make(2, "exact")
    draw(adapted)
    other = draw(Network(), ("weight", "bias"))
    adapted.load_state_dict(other.state_dict())
    assert torch.equal(adapted(images()), other(images()))
    state = draw(adapted).state_dict()
    del state["body.0.weight"], state["body.0.lora_b.weight"]
    with pytest.raises(RuntimeError, match=r"body\.0\.lora_b\.weight"):
        adapted.load_state_dict(state)
    with refused(ContractError, "missing_tensor", tensor="body.0.weight"):
        merge_adapters({name: t for name, t in adapted.state_dict().items() if name != "body.0.weight"}, 1.0)
    with refused(ContractError, "missing_tensor", tensor="body.5.lora_a.weight"):
        merge_adapters({name: t for name, t in adapted.state_dict().items() if name != "body.5." + FACTOR_A}, 1.0)
    assert [is_adapter(name) for name in ("model/a.lora_residual", "lora_a.weight", "a.weight", "xlora_b.weight")] == [
        True,
        True,
        False,
        False,
    ]


def test_copies_and_channels_last_and_autocast_compute_the_same():
    _, adapted = make(2, "exact")
    draw(adapted)
    x, expected = images(), adapted(images())
    copied = copy.deepcopy(adapted)
    assert torch.equal(copied(x), expected)
    draw(copied, factor=2.0)
    assert torch.equal(adapted(x), expected)
    last = copied.to(memory_format=torch.channels_last)
    last.load_state_dict(adapted.state_dict())
    torch.testing.assert_close(last(x.to(memory_format=torch.channels_last)), expected, rtol=0, atol=1e-6)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(adapted(x).float(), expected, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("dims", [2, 3])
def test_gradients_of_single_images_are_those_of_a_loop(dims):
    _, adapted = make(dims, "exact")
    draw(adapted)
    x = images(dims)
    learned = {name: p.detach() for name, p in adapted.named_parameters() if p.requires_grad}

    def loss(parameters, image):
        return functional_call(adapted, parameters, (image[None],)).square().sum()

    together = vmap(grad(loss), in_dims=(None, 0))(learned, x)
    for row, image in enumerate(x):
        adapted.zero_grad()
        adapted(image[None]).square().sum().backward()
        for name, parameter in adapted.named_parameters():
            if parameter.requires_grad:
                torch.testing.assert_close(together[name][row], parameter.grad, rtol=1e-4, atol=1e-5)


def test_factors_are_drawn_from_the_generator_as_torch_draws_weights():
    first, second = make(seed=4)[1], make(seed=4)[1]
    assert torch.equal(first.body[0].lora_a.weight, second.body[0].lora_a.weight)
    assert not torch.equal(first.body[0].lora_a.weight, make(seed=5)[1].body[0].lora_a.weight)
    largest = first.body[0].lora_a.weight.abs().max().item()
    assert 0.5 / math.sqrt(18) < largest <= 1 / math.sqrt(18)  # Kaiming's bound for a = sqrt(5)
    assert not first.body[0].lora_b.weight.any()


PEFT = {
    2: (
        [1.666678, 0.846257, 0.168382, 1.519661, 1.122846, 1.691139],
        {"first.": 1.162641, "last.": 0.432317},
    ),
    3: (
        [1.849408, 0.336781, -0.618944, 2.139066, 1.755622, 3.750853],
        {"first.": 2.002548, "last.": 0.464092},
    ),
}
"""Outputs, and norms of the weight changes, of the network in the test below with adapters of peft 0.21.2."""


@pytest.mark.parametrize("dims", [2, 3])
def test_three_steps_give_the_numbers_of_peft(dims):
    class Reference(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = CONVOLUTIONS[dims](2, 4, 3, stride=2, padding=1)
            self.last = nn.Linear(4, 3)

        def forward(self, x):
            return self.last(torch.relu(self.first(x)).flatten(2).mean(2))

    def fill(named, offset, function, factor):
        for number, (_, parameter) in enumerate(named):
            values = torch.linspace(-1, 1, parameter.numel()).mul(offset + number)
            with torch.no_grad():
                parameter.copy_(factor * function(values).reshape(parameter.shape))

    model = Reference()
    fill(model.named_parameters(), 7, torch.sin, 1.0)
    add_adapters(model, AdapterOptions(2, 6.0, "all", "naive"), "net")
    learned = sorted((name, p) for name, p in model.named_parameters() if p.requires_grad)
    fill(learned, 3, torch.cos, 0.3)
    x = torch.linspace(-2, 2, 4 * 5**dims).cos().reshape(2, 2, *[5] * dims)
    optimizer = torch.optim.SGD([p for _, p in learned], lr=0.02)
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), torch.tensor([0, 2])).backward()
        optimizer.step()
    outputs, norms = PEFT[dims]
    torch.testing.assert_close(model(x).flatten(), torch.tensor(outputs), rtol=0, atol=2e-6)
    state = model.state_dict()
    for layer, norm in norms.items():
        change = 3 * low_rank_product(state[layer + FACTOR_A], state[layer + FACTOR_B])
        assert change.norm().item() == pytest.approx(norm, abs=2e-6)
