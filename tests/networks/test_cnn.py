"""Tests of CNN4: shapes, layouts, and pooling before ReLU."""

from __future__ import annotations

import pytest
import torch
from refusals import refused
from torch import nn

from medfl.errors import SettingsError
from medfl.networks.cnn import CNN4


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("channels", "classes", "size"), [(3, 8, 28), (1, 2, 28), (3, 4, 32), (3, 9, 30)])
def test_images_become_logits(channels, classes, size):
    model = CNN4(channels, classes, size)
    assert model(numbers(2, channels, size, size)).shape == (2, classes)
    assert model.body(numbers(2, channels, size, size)).shape == (2, 512)


def test_it_is_the_network_of_the_paper():
    count = sum(parameter.numel() for parameter in CNN4(1, 10, 28).parameters())
    assert count == 1_663_370, "McMahan et al. (2017), section 3"
    assert CNN4().body.dense.fc.in_features == 3136


def test_names_are_readable_and_lead_to_body_and_head():
    model = CNN4()
    expected = ["body.stage1.conv", "body.stage2.conv", "body.dense.fc", "head"]
    assert list(model.state_dict()) == [f"{name}.{part}" for name in expected for part in ("weight", "bias")]
    assert isinstance(model.head, nn.Linear)
    assert len(model.feature_layers) == 3


def test_the_stages_in_order_make_the_body():
    model, images = CNN4(), numbers(2, 3, 28, 28)
    first, second, dense = model.feature_layers
    assert torch.equal(dense(second(first(images)).flatten(1)), model.body(images))


def test_pooling_before_relu_is_bitwise_the_same_as_after_it():
    model, images = CNN4(), numbers(4, 3, 28, 28)

    def textbook(x: torch.Tensor) -> torch.Tensor:
        for stage in model.feature_layers[:2]:
            x = nn.functional.max_pool2d(torch.relu(stage.conv(x)), 2)
        return model.head(torch.relu(model.body.dense.fc(x.flatten(1))))

    results = []
    for forward in (model, textbook):
        model.zero_grad()
        logits = forward(images)
        nn.functional.cross_entropy(logits, torch.tensor([0, 1, 2, 3])).backward()
        results.append([logits.detach(), *(parameter.grad.clone() for parameter in model.parameters())])
    for number, (ours, theirs) in enumerate(zip(*results, strict=True)):
        assert torch.equal(ours, theirs), f"tensor {number} differs by {(ours - theirs).abs().max()}"


def test_both_memory_layouts_give_the_same_logits():
    model, images = CNN4().eval(), numbers(4, 3, 28, 28)
    plain = model(images)
    last = model.to(memory_format=torch.channels_last)(images.contiguous(memory_format=torch.channels_last))
    assert (plain - last).abs().max() < 1e-6


@pytest.mark.parametrize(
    ("setting", "minimum", "value"), [("in_channels", 1, 0), ("num_classes", 2, 1), ("size", 4, 3)]
)
def test_impossible_arguments_are_named(setting, minimum, value):
    with refused(SettingsError, "setting_out_of_range", network="CNN4", setting=setting, minimum=minimum, found=value):
        CNN4(**{setting: value})
