"""Critic of a site, which learns to distinguish reconstructions from images, and its losses.

The losses are those used for a Wasserstein GAN with gradient penalty. The critic never leaves the site.
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
from medfl_methods.fedfed.distiller_training import require_scale
from medfl_methods.fedfed.generator_layers import (
    HalvingConv,
    check_images,
    check_options,
    check_shape,
    edges_by_halving,
)

MAX_HALVINGS = 4
"""Maximum number of convolutions of a `Critic` that halve the edges of the feature map."""

MAX_BOTTLENECK_EDGE = 4
"""Maximum edge of a feature map that is not halved again. The linear layer has separate weights for its positions."""


class Critic(nn.Module):
    """Convolutional network that scores an image: halvings (kernel 4, stride 2) with LeakyReLU(0.2) and a linear layer.

    Nothing is normalised over a batch. The score of an image therefore does not depend on other images, and each image
    has its own gradient penalty. There are three halvings for 28 or 32 pixels, four from 33 pixels, and fewer for
    images below 17 pixels. For images from 65 pixels the map is still larger than `MAX_BOTTLENECK_EDGE` and is averaged
    before the linear layer, so the number of weights is bounded.

    Args:
        shape: Shape (C, H, W) or (C, D, H, W) of an image, each edge >= 4, even or odd.
        width: Number of channels after the first halving, >= 1; twice, and then four times as many after the others.

    Attributes:
        shape: Shape of an image.
        layers: Halving convolutions from the image to the last feature map.
        score: Linear layer from that feature map to the score.

    Raises:
        SettingsError: If an argument is out of range.

    Source: Gulrajani et al., Improved Training of Wasserstein GANs, NeurIPS 2017, with the layers of DCGAN.
    """

    def __init__(self, shape: Sequence[int], width: int = 32) -> None:
        super().__init__()
        channels, edges = check_shape("Critic", shape)
        check_options("Critic", width=(width, 1))
        self.shape = tuple(shape)
        sizes = edges_by_halving(edges, MAX_BOTTLENECK_EDGE)[: MAX_HALVINGS + 1]
        widths = [channels, *(width * min(2**stage, 4) for stage in range(len(sizes) - 1))]
        layers: list[nn.Module] = []
        for before, after in zip(widths, widths[1:]):
            layers += [HalvingConv(len(edges), before, after, bias=True), nn.LeakyReLU(0.2)]
        self.layers = nn.Sequential(*layers)
        self._averages = max(sizes[-1]) > MAX_BOTTLENECK_EDGE
        self.score = nn.Linear(widths[-1] * (1 if self._averages else math.prod(sizes[-1])), 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return scores (B,), of any size and sign, of images (B, *shape)."""
        check_images("Critic", images, self.shape)
        maps = self.layers(images).flatten(2)
        scores: torch.Tensor = self.score(maps.mean(2) if self._averages else maps.flatten(1))
        return scores[:, 0]


def critic_loss(fake_scores: torch.Tensor, real_scores: torch.Tensor) -> torch.Tensor:
    """Return the loss E[D(fake)] - E[D(real)] of the critic D. The generator minimises -E[D(fake)].

    Args:
        fake_scores: Scores of reconstructions, shape (B,).
        real_scores: Scores of images, shape (B',).

    Returns:
        Scalar of any sign. For a critic with Lipschitz constant 1 it is minus an estimate of the Wasserstein distance.
    """
    return fake_scores.mean() - real_scores.mean()


def gradient_penalty(
    critic: Callable[[torch.Tensor], torch.Tensor],
    real: torch.Tensor,
    fake: torch.Tensor,
    generator: torch.Generator,
) -> torch.Tensor:
    """Return E[(|gradient of D at x| - 1)^2] for the critic D, at points x between real and reconstructed images.

    x = u real + (1 - u) fake with u uniform in [0, 1), one u for each pair of images. The norm is the Euclidean norm
    over all elements of an image. The gradient reaches the critic's weights and not the images. The caller multiplies
    the result by the weight of the penalty.

    Args:
        critic: Function that maps images (B, C, *spatial) to scores (B,), each from its own image only.
        real: Images, shape (B, C, *spatial).
        fake: Reconstructions, same shape.
        generator: Random stream of u, on the CPU.

    Returns:
        Scalar, >= 0; (|a| - 1)^2 for the linear critic D(x) = a x.

    Source: Gulrajani et al., Improved Training of Wasserstein GANs, NeurIPS 2017, equation 3.
    """
    u = torch.rand(len(real), *[1] * (real.dim() - 1), generator=generator, dtype=torch.float64).to(real)
    points = (u * real + (1 - u) * fake).detach().requires_grad_()
    (gradients,) = torch.autograd.grad(critic(points).sum(), points, create_graph=True)
    norms = torch.linalg.vector_norm(gradients.flatten(1), dim=1)
    return (norms - 1).square().mean()


CRITIC = "critic"
"""Name of the critic among the networks of a task, and prefix of its tensors in a site's state."""


MODEL_PREFIX, OPTIMIZER_PREFIX = f"{CRITIC}/model/", f"{CRITIC}/optimizer/"
"""Prefixes of tensor names in a site's state: of the critic's weights, and of the state of the critic's optimiser."""


class Adversary:
    """Wasserstein critic with gradient penalty at a site, and its optimiser.

    Args:
        site: Site with its task, seed and random streams.
        tensors: Result of the method `tensors` after the previous round; empty in the first round.
        lr: Learning rate of Adam with betas (0, 0.9), > 0.
        penalty: Factor of the gradient penalty, >= 0.
        steps: Critic steps for each generator step, >= 1.
        width: Number of channels after the critic's first halving.

    Source: Gulrajani et al., Improved Training of Wasserstein GANs, NeurIPS 2017.
    """

    def __init__(self, site: Site, tensors: Tensors, lr: float, penalty: float, steps: int, width: int) -> None:
        task = site.task.with_network(CRITIC, partial(Critic, require_scale(site.task).shape, width))
        self._model = task.load(
            select(tensors, MODEL_PREFIX) or task.initial(site.settings.seed, CRITIC), CRITIC
        ).train()
        self._optimizer = torch.optim.Adam(self._model.parameters(), lr, betas=(0.0, 0.9))
        write_state(self._optimizer, self._model, select(tensors, OPTIMIZER_PREFIX))
        self._penalty, self._steps, self._points = penalty, steps, site.rng("gradient penalty")
        self._losses: list[torch.Tensor] = []

    def train_critic(self, real: torch.Tensor, fake: torch.Tensor) -> None:
        """Train the critic on a batch for the configured number of steps, and update its weights in place.

        Args:
            real: Images, shape (B, C, *spatial).
            fake: Reconstructions of these images, same shape. They get no gradient.
        """
        fake = fake.detach()
        self._model.requires_grad_(True)
        for _ in range(self._steps):
            self._optimizer.zero_grad(set_to_none=True)
            loss = critic_loss(self._model(fake), self._model(real))
            self._losses.append(loss.detach())
            loss = loss + self._penalty * gradient_penalty(self._model, real, fake, self._points)
            loss.backward()
            self._optimizer.step()
        self._model.requires_grad_(False)

    def mean_loss(self) -> float | None:
        """Return the mean of `critic_loss` over the steps so far, or None without a step.

        It approaches 0 as reconstructions become similar to images.
        """
        return float(torch.stack(self._losses).double().mean()) if self._losses else None

    def generator_loss(self, fake: torch.Tensor) -> torch.Tensor:
        """Return the loss -E[D(fake)] of the generator for reconstructions `fake`. The critic D gets no gradient."""
        scores: torch.Tensor = self._model(fake)
        return -scores.mean()

    def tensors(self) -> Tensors:
        """Return weights and optimiser state of the critic, as named tensors for the site's state."""
        model = {name: tensor.detach().to("cpu", copy=True) for name, tensor in self._model.state_dict().items()}
        return prefixed(model, MODEL_PREFIX) | prefixed(read_state(self._optimizer, self._model), OPTIMIZER_PREFIX)
