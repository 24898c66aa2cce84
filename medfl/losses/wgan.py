"""Losses of a Wasserstein GAN with gradient penalty."""

from __future__ import annotations

from collections.abc import Callable

import torch


def critic_loss(fake_scores: torch.Tensor, real_scores: torch.Tensor) -> torch.Tensor:
    """E[D(fake)] - E[D(real)], which the critic makes small; its generator makes -E[D(fake)] small.

    Args:
        fake_scores: Shape (B,).
        real_scores: Shape (B',).

    Returns:
        A scalar of any sign; minus an estimate of the Wasserstein distance for a critic with Lipschitz constant 1.
    """
    return fake_scores.mean() - real_scores.mean()


def gradient_penalty(
    critic: Callable[[torch.Tensor], torch.Tensor],
    real: torch.Tensor,
    fake: torch.Tensor,
    generator: torch.Generator,
) -> torch.Tensor:
    """E[(|gradient of D at x| - 1)^2] at points x between the images of each pair; the factor (10) is the caller's.

    x = u real + (1 - u) fake with u uniform in [0, 1), one for each pair. The norm is the Euclidean one over all
    elements of an image. A gradient flows to the critic's weights, none to the images.

    Args:
        critic: Maps images (B, C, *spatial) to scores (B,), each from its own image only.
        real: Shape (B, C, *spatial).
        fake: The same shape.
        generator: Source of u, on the CPU whatever the images' device.

    Returns:
        A scalar, >= 0; (|a| - 1)^2 for the linear critic D(x) = a x.

    Source: Gulrajani et al., Improved Training of Wasserstein GANs, NeurIPS 2017, equation 3.
    """
    u = torch.rand(len(real), *[1] * (real.dim() - 1), generator=generator, dtype=torch.float64).to(real)
    points = (u * real + (1 - u) * fake).detach().requires_grad_()
    (gradients,) = torch.autograd.grad(critic(points).sum(), points, create_graph=True)
    norms = torch.linalg.vector_norm(gradients.flatten(1), dim=1)
    return (norms - 1).square().mean()
