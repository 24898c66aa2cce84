"""Critic network: sizes, bounded numbers of weights, and independence of the images of a batch."""

from __future__ import annotations

import pytest
import torch
from refusals import refused
from resnet_toys import numbers
from torch import nn

from medfl.errors import SettingsError
from medfl.networks.norms import NORM_TYPES, norm_names
from medfl_methods.fedtpf.adversary import Critic, critic_loss, gradient_penalty

SHAPES = [(1, 4, 4), (3, 6, 6), (1, 28, 28), (2, 31, 31), (1, 64, 64), (3, 224, 224), (1, 4, 65)]
VOLUMES = [(1, 6, 6, 6), (2, 28, 28, 28), (1, 40, 40, 40), (1, 5, 9, 17)]


def tiny(shape: tuple[int, ...], width: int = 2) -> Critic:
    torch.manual_seed(0)
    return Critic(shape, width)


def rng() -> torch.Generator:
    return torch.Generator().manual_seed(3)


@pytest.mark.parametrize("shape", [*SHAPES, *VOLUMES], ids=str)
def test_one_number_for_each_image_that_depends_on_no_other(shape):
    critic, images = tiny(shape).train(), numbers(3, *shape)
    scores = critic(images)
    assert scores.shape == (3,)
    changed = images.clone()
    changed[1:] = 7.0
    again = critic(changed)
    assert torch.allclose(scores[0], again[0], atol=1e-6)
    assert not torch.allclose(scores[1:], again[1:], atol=1e-6)
    assert torch.allclose(scores, torch.cat([critic(image[None]) for image in images]), atol=1e-5)


@pytest.mark.parametrize(
    ("edge", "stages", "inputs"),
    [(4, 1, 2 * 4), (16, 2, 4 * 16), (17, 3, 8 * 9), (28, 3, 8 * 16), (32, 3, 8 * 16), (64, 4, 8 * 16), (224, 4, 8)],
)
def test_stages_follow_from_the_size(edge, stages, inputs):
    """Maps of 2 x 2, 4 x 4, 3 x 3, 4 x 4 and so on have 2, 4, 8, 8 channels; maps of 14 x 14 are averaged."""
    critic = tiny((1, edge, edge))
    assert sum(isinstance(layer, nn.LeakyReLU) for layer in critic.layers) == stages
    assert critic.score.in_features == inputs


def test_there_is_no_normalisation_and_weights_are_bounded():
    critics = {edge: tiny((1, edge, edge)) for edge in (4, 28, 64, 65, 224, 999)}
    assert all(norm_names(critic, tuple(NORM_TYPES)) == set() for critic in critics.values())
    count = {edge: sum(p.numel() for p in critic.parameters()) for edge, critic in critics.items()}
    assert count[65] == count[224] == count[999] < count[64]
    assert max(count.values()) == count[64]


@pytest.mark.parametrize("shape", [(2, 28, 28), (1, 70, 5), (1, 9, 9, 9)], ids=str)
def test_the_penalty_can_be_differentiated_by_the_weights(shape):
    """Compare with a finite difference along a random direction of all weights, in float64."""
    critic = tiny(shape).double()
    real, fake = numbers(3, *shape).double(), numbers(3, *shape).double().flip(0).abs()
    gradient_penalty(critic, real, fake, rng()).backward()
    for name, parameter in critic.named_parameters():
        if name.endswith("weight"):
            assert parameter.grad.abs().max() > 0, name
    steps = [1e-6 * numbers(*parameter.shape).double() for parameter in critic.parameters()]
    slopes = [torch.zeros(()) if p.grad is None else p.grad for p in critic.parameters()]
    expected = sum(float((slope * step).sum()) for slope, step in zip(slopes, steps, strict=True))
    around = []
    for sign in (1, -2):
        with torch.no_grad():
            for parameter, step in zip(critic.parameters(), steps, strict=True):
                parameter += sign * step
        around.append(float(gradient_penalty(critic, real, fake, rng()).detach()))
    assert expected == pytest.approx((around[0] - around[1]) / 2, rel=1e-3)


def test_it_learns_to_score_real_images_above_others():
    """The sets are 0.5 * 8 = 4 apart. A slope s costs -4 s + 10 (s - 1)^2, minimal at s = 1.2: scores differ by 4.8."""
    critic = tiny((1, 8, 8), width=8)
    real, fake = torch.full((8, 1, 8, 8), 0.75), torch.full((8, 1, 8, 8), 0.25)
    optimizer, generator = torch.optim.Adam(critic.parameters(), 5e-3, betas=(0.0, 0.9)), rng()
    for _ in range(100):
        loss = critic_loss(critic(fake), critic(real)) + 10 * gradient_penalty(critic, real, fake, generator)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    distance = -float(critic_loss(critic(fake), critic(real)).detach())
    assert distance == pytest.approx(4.8, rel=0.1)


def test_weights_are_a_function_of_torchs_seed():
    first, again = tiny((1, 12, 12)).state_dict(), tiny((1, 12, 12)).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    torch.manual_seed(1)
    other = Critic((1, 12, 12), 2).state_dict()
    assert all(not torch.equal(first[name], other[name]) for name in first)


def test_what_is_impossible_is_named():
    with refused(SettingsError, "wrong_shape", network="Critic", found=[28, 28]):
        Critic((28, 28))
    with refused(SettingsError, "image_too_small", minimum=4, found=[28, 3]):
        Critic((1, 28, 3))
    with refused(SettingsError, "setting_out_of_range", network="Critic", setting="width", minimum=1, found=0):
        Critic((1, 8, 8), 0)
    with refused(SettingsError, "wrong_shape", network="Critic", expected=[1, 8, 8], found=[2, 3, 8, 8]):
        tiny((1, 8, 8))(numbers(2, 3, 8, 8))
