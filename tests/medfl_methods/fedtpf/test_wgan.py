"""Losses of the critic (O-TP-7) and of the latent variables: closed forms, a reference implementation, gradients."""

import math

import pytest
import torch

from medfl_methods.fedfed.feature_distillation import kl_to_standard_normal
from medfl_methods.fedtpf.adversary import critic_loss, gradient_penalty


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=rng(seed), dtype=torch.float64)


def linear(norm: float, *shape: int):
    """Return the critic D(x) = a x with |a| = norm."""
    a = drawn(*shape, seed=9)
    a = (a * norm / a.norm()).requires_grad_()
    return a, lambda x: (x * a).flatten(1).sum(1)


@pytest.mark.parametrize("shape", [(1,), (3, 5, 5), (2, 3, 4, 5)], ids=str)
@pytest.mark.parametrize(("norm", "penalty"), [(3.0, 4.0), (1.0, 0.0), (0.25, 0.5625)])
def test_penalty_of_a_linear_critic(shape, norm, penalty):
    _, critic = linear(norm, *shape)
    computed = gradient_penalty(critic, drawn(6, *shape), drawn(6, *shape, seed=1), rng())
    assert computed.shape == ()
    assert computed.item() == pytest.approx(penalty, abs=1e-12)
    assert 10 * computed.item() == pytest.approx(10 * penalty, abs=1e-11)


def test_its_gradient_by_the_weights():
    """(|a| - 1)^2 has the gradient 2 (|a| - 1) a / |a|: at norm 3, 4 a / 3."""
    a, critic = linear(3.0, 2, 4, 4)
    gradient_penalty(critic, drawn(5, 2, 4, 4), drawn(5, 2, 4, 4, seed=1), rng()).backward()
    assert torch.allclose(a.grad, 4 * a.detach() / 3, rtol=1e-12)


def test_points_lie_between_the_images_of_each_pair():
    """D(x) = |x|^2 / 2 has the gradient x.

    With real = 0 the norm is (1 - u) |fake|, with one uniform u for each pair.
    """
    fake = drawn(4000, 1, 2, 3)
    fake = 8 * fake / fake.flatten(1).norm(dim=1)[:, None, None, None]
    seen = []

    def critic(x: torch.Tensor) -> torch.Tensor:
        seen.append(x.detach())
        return x.square().flatten(1).sum(1) / 2

    penalty = gradient_penalty(critic, torch.zeros_like(fake), fake, rng())
    (points,) = seen
    shares = points / fake
    assert torch.allclose(shares, shares[:, :1, :1, :1].expand_as(shares), rtol=1e-9)
    share = shares[:, 0, 0, 0]
    assert 0 <= share.min() < share.max() <= 1
    assert share.mean().item() == pytest.approx(0.5, abs=4 / math.sqrt(12 * 4000))
    assert share.var().item() == pytest.approx(1 / 12, rel=0.1)
    assert penalty.item() == pytest.approx((8 * share - 1).square().mean().item(), rel=1e-12)


def test_the_points_are_a_function_of_the_generator_alone():
    _, real, fake = linear(3.0, 2), drawn(5, 2), drawn(5, 2, seed=1)

    def penalty(seed: int) -> float:
        torch.manual_seed(torch.seed() % 1000)
        return gradient_penalty(lambda x: x.square().sum(1), real, fake, rng(seed)).item()

    assert penalty(1) == penalty(1) != penalty(2)


def test_no_gradient_flows_to_the_images_and_a_flat_critic_is_no_trouble():
    real, fake = drawn(3, 2).requires_grad_(), drawn(3, 2, seed=1).requires_grad_()
    a = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    penalty = gradient_penalty(lambda x: x @ a, real, fake, rng())
    penalty.backward()
    assert penalty.item() == 1
    assert real.grad is None
    assert fake.grad is None
    assert a.grad.isfinite().all()


def test_sign_of_the_critics_loss():
    """Reconstructions are at 0 and images at 1 under D(x) = x."""
    assert critic_loss(torch.zeros(4), torch.ones(4)).item() == -1
    assert critic_loss(torch.tensor([2.0, 4.0]), torch.tensor([1.0])).item() == 2
    scores = torch.tensor([0.5, -0.5], requires_grad=True)
    critic_loss(scores, torch.ones(2)).backward()
    assert scores.grad.tolist() == [0.5, 0.5]


@pytest.mark.parametrize(
    ("mean", "variance", "expected"),
    [(0, 1, 0), (2, 1, 2), (0, math.e, (math.e - 2) / 2), (-1, 0.25, (1 + 0.25 - 1 + math.log(4)) / 2)],
)
def test_divergence_of_one_number_and_of_many_alike(mean, variance, expected):
    for shape in ((1, 1), (3, 7)):
        means = torch.full(shape, float(mean), dtype=torch.float64)
        logs = torch.full(shape, math.log(variance), dtype=torch.float64)
        assert kl_to_standard_normal(means, logs).item() == pytest.approx(expected, abs=1e-12)


def test_divergence_against_torchs_own():
    mean, log_variance = drawn(4, 9), drawn(4, 9, seed=1)
    normal = torch.distributions.Normal
    expected = torch.distributions.kl_divergence(normal(mean, (log_variance / 2).exp()), normal(0.0, 1.0)).mean()
    assert kl_to_standard_normal(mean, log_variance).item() == pytest.approx(expected.item(), rel=1e-12)
