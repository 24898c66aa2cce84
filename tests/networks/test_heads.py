"""Tests of heads with one and two linear layers, their widths, and their replacement in a network."""

import pytest
import torch
from refusals import refused
from torch import nn

from medfl.errors import SettingsError
from medfl.networks.convnet import ConvNet
from medfl.networks.heads import HeadKind, TwoLayerHead, draw_head_widths, head_kind, initialise_xavier, make_head
from medfl.networks.parts import feature_count, head_prefix, replace_head
from medfl.networks.resnet import ResNet
from medfl.testing.cohort import SmallNet
from medfl.utils.rng import make_generator

FEATURES = torch.randn(4, 8, generator=make_generator("features"))


@pytest.mark.parametrize("activation", ["none", "relu"])
def test_two_layers(activation):
    """The output in evaluation mode is W2 a(W1 x + b1) + b2; without activation, it is one linear map."""
    head = TwoLayerHead(8, 5, 3, 0.5, activation).eval()
    output = head(FEATURES)
    hidden = FEATURES @ head.hidden.weight.T + head.hidden.bias
    hidden = hidden.clamp(min=0) if activation == "relu" else hidden
    torch.testing.assert_close(output, hidden @ head.out.weight.T + head.out.bias)
    linear = torch.allclose(head(2 * FEATURES) + head(torch.zeros(1, 8)), 2 * output, atol=1e-5)
    assert linear == (activation == "none")


def test_dropout_is_between_the_layers():
    head = TwoLayerHead(8, 2000, 2, 0.25)
    with torch.no_grad():
        head.hidden.weight.zero_()
        head.hidden.bias.fill_(1.0)
        head.out.weight.fill_(1.0)
        head.out.bias.zero_()
        dropped = 1 - float(head(FEATURES[:1])[0, 0]) * 0.75 / 2000
    assert dropped == pytest.approx(0.25, abs=4 * (0.25 * 0.75 / 2000) ** 0.5)


@pytest.mark.parametrize("kind", [HeadKind(0), HeadKind(5, 0.3), HeadKind(7, 0.0, "relu")])
def test_a_head_is_made_again_as_it_is(kind):
    made = make_head(8, kind.width, 3, kind.dropout, kind.activation)
    assert head_kind(made) == kind
    assert made(FEATURES).shape == (4, 3)
    width = kind.width
    parameters = (8 + 1) * width + (width + 1) * 3 if width else (8 + 1) * 3
    assert sum(parameter.numel() for parameter in made.parameters()) == parameters


def test_other_kinds_of_heads_are_refused():
    with refused(SettingsError, "unsupported_head", found="Sequential"):
        head_kind(nn.Sequential(nn.Linear(8, 3)))


def test_xaviers_normal_weights():
    head = initialise_xavier(TwoLayerHead(300, 200, 100))
    for layer in (head.hidden, head.out):
        assert torch.count_nonzero(layer.bias) == 0
        variance = 2 / (layer.in_features + layer.out_features)
        assert float(layer.weight.detach().var()) == pytest.approx(variance, rel=0.05)
        fourth = float((layer.weight.detach() ** 4).mean()) / variance**2
        assert fourth == pytest.approx(3, rel=0.15), "a uniform distribution has 9 / 5"


# ---- widths


@pytest.mark.parametrize("count", [1, 4, 15])
def test_one_width_in_each_equal_part(count):
    for seed in range(50):
        widths = draw_head_widths(count, 2048, 0.4, 1.0, make_generator("widths", seed))
        assert len(widths) == count
        for place, width in enumerate(widths):
            low, high = (0.4 + 0.6 * (place + end) / count for end in (0, 1))
            assert int(low * 2048) <= width <= high * 2048
        assert len(set(widths)) == count


def test_widths_are_uniform_in_their_part():
    drawn = [draw_head_widths(2, 10**6, 0.4, 1.0, make_generator("widths", seed)) for seed in range(1000)]
    shares = (torch.tensor(drawn) / 1e6 - torch.tensor([0.4, 0.7])) / 0.3
    bound = 4 * (1 / 12 / 1000) ** 0.5
    assert all(abs(mean - 0.5) < bound for mean in shares.mean(0).tolist())
    assert all(abs(spread - (1 / 12) ** 0.5) < 0.02 for spread in shares.std(0).tolist())


def test_the_ends_of_the_range():
    assert draw_head_widths(3, 100, 0.5, 0.5, make_generator("widths")) == [50, 50, 50]
    assert draw_head_widths(2, 1, 0.1, 0.2, make_generator("widths")) == [1, 1]


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-0.1, 0.5), (0.6, 0.5)])
def test_impossible_shares_are_refused(low, high):
    with refused(SettingsError, "setting_out_of_range", low=low, high=high):
        draw_head_widths(3, 8, low, high, make_generator("widths"))


# ---- in a network


@pytest.mark.parametrize(
    ("build", "path"),
    [
        (SmallNet, "head."),
        (lambda: ConvNet(1, 3), "head."),
        (lambda: ResNet(in_channels=1, num_classes=3, width=4), "fc."),
    ],
    ids=["toy", "convnet", "resnet"],
)
def test_another_head_in_place_of_the_own_one(build, path):
    """The new head has the same name, and the body's tensors keep their names."""
    network = build().eval()
    assert head_prefix(network, "it") == path
    before = {name for name in network.state_dict() if not name.startswith(path)}
    head = make_head(feature_count(network, "it"), 5, 4).eval()
    changed = replace_head(network, head)
    images = torch.randn(2, 1, 28, 28)
    assert changed.head is head
    assert torch.equal(changed(images), head(changed.body(images)))
    assert {name for name in changed.state_dict() if not name.startswith(path)} == before
    assert {name for name in changed.state_dict() if name.startswith(path)} == {path + key for key in head.state_dict()}


def test_a_head_that_is_missing_is_named():
    with refused(SettingsError, "missing_head", network="Flatten"):
        replace_head(nn.Flatten(), nn.Linear(2, 2))
    with refused(SettingsError, "missing_head", network="it", type="Flatten"):
        head_prefix(nn.Flatten(), "it")
