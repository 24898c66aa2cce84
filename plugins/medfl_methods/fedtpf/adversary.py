"""A site's critic, which learns to tell what a generator rebuilds from the site's images, and its losses.

They are those of a Wasserstein GAN with gradient penalty. The critic never leaves the site.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import nn

from medfl.contract import Site
from medfl.training.optimizer_state import read_state, write_state
from medfl.types import Tensors
from medfl.utils.wire import prefixed, select
from medfl_methods.fedfed.distillation import scale_of
from medfl_methods.fedfed.generator_parts import Halve, check_images, check_options, check_shape, halvings

STAGES = 4
"""The most halvings."""

LONGEST = 4
"""Longest edge of a map that is not halved again, and whose positions the linear layer sees apart."""


class Critic(nn.Module):
    """Halvings (kernel 4, stride 2), each with LeakyReLU(0.2), and a linear layer to one number.

    Nothing is normalised over a batch, so the score of an image does not depend on the others, and the gradient
    penalty of each image is its own. Three halvings for 28 or 32 pixels, four from 33 pixels on, fewer for images below
    17. A map that is still longer than `LONGEST`, for images from 65 pixels on, is averaged before the linear layer;
    so the number of weights is bounded.

    Args:
        shape: (C, H, W) or (C, D, H, W) of an image, each edge >= 4, even or odd.
        width: Channels after the first halving, >= 1; twice, and then four times as many after the others.

    Raises:
        SettingsError: If an argument is impossible.

    Source: Gulrajani et al., Improved Training of Wasserstein GANs, NeurIPS 2017, with the layers of DCGAN.
    """

    def __init__(self, shape: Sequence[int], width: int = 32) -> None:
        super().__init__()
        channels, edges = check_shape("Critic", shape)
        check_options("Critic", width=(width, 1))
        self.shape = tuple(shape)
        sizes = halvings(edges, LONGEST)[: STAGES + 1]
        widths = [channels, *(width * min(2**stage, 4) for stage in range(len(sizes) - 1))]
        layers: list[nn.Module] = []
        for before, after in zip(widths, widths[1:]):
            layers += [Halve(len(edges), before, after, bias=True), nn.LeakyReLU(0.2)]
        self.layers = nn.Sequential(*layers)
        self._averages = max(sizes[-1]) > LONGEST
        self.score = nn.Linear(widths[-1] * (1 if self._averages else math.prod(sizes[-1])), 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Scores (B,), of any size and sign, of images (B, *shape)."""
        check_images("Critic", images, self.shape)
        maps = self.layers(images).flatten(2)
        scores: torch.Tensor = self.score(maps.mean(2) if self._averages else maps.flatten(1))
        return scores[:, 0]


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
