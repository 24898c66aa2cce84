"""A site's critic, which learns to tell what a generator rebuilds from the site's images, and its losses.

They are those of a Wasserstein GAN with gradient penalty. The critic never leaves the site.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from medfl.contract import Site
from medfl.training.optimizer_state import read_state, write_state
from medfl.types import Tensors
from medfl.utils.wire import prefixed, select
from medfl_methods.fedfed.distillation import scale_of
from medfl_methods.fedtpf.critic import Critic


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


CRITIC = "critic"


MODEL, OPTIMIZER = f"{CRITIC}/model/", f"{CRITIC}/optimizer/"


class Adversary:
    """A Wasserstein critic with gradient penalty, and its optimiser.

    Args:
        site: Gives task, seed and streams.
        tensors: What `tensors` gave in the round before; empty at first.
        lr: Learning rate of Adam with betas (0, 0.9), > 0.
        penalty: Factor of the gradient penalty, >= 0.
        steps: Of the critic for one of the generator, >= 1.
        width: Channels of its first stage.

    Source: Gulrajani et al., Improved Training of Wasserstein GANs, NeurIPS 2017.
    """

    def __init__(self, site: Site, tensors: Tensors, lr: float, penalty: float, steps: int, width: int) -> None:
        task = site.task.with_network(CRITIC, partial(Critic, scale_of(site.task).shape, width))
        self._model = task.load(select(tensors, MODEL) or task.initial(site.settings.seed, CRITIC), CRITIC).train()
        self._optimizer = torch.optim.Adam(self._model.parameters(), lr, betas=(0.0, 0.9))
        write_state(self._optimizer, self._model, select(tensors, OPTIMIZER))
        self._penalty, self._steps, self._points = penalty, steps, site.rng("gradient penalty")

    def learn(self, real: torch.Tensor, fake: torch.Tensor) -> None:
        """Steps of the critic on a batch, (B, C, *spatial) each."""
        fake = fake.detach()
        self._model.requires_grad_(True)
        for _ in range(self._steps):
            self._optimizer.zero_grad(set_to_none=True)
            loss = critic_loss(self._model(fake), self._model(real))
            loss = loss + self._penalty * gradient_penalty(self._model, real, fake, self._points)
            loss.backward()
            self._optimizer.step()
        self._model.requires_grad_(False)

    def deceived(self, fake: torch.Tensor) -> torch.Tensor:
        """-E[D(fake)], which a generator makes small; the critic gets no gradient."""
        scores: torch.Tensor = self._model(fake)
        return -scores.mean()

    def tensors(self) -> Tensors:
        """For the site's state."""
        model = {name: tensor.detach().to("cpu", copy=True) for name, tensor in self._model.state_dict().items()}
        return prefixed(model, MODEL) | prefixed(read_state(self._optimizer, self._model), OPTIMIZER)
