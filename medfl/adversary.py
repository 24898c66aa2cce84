"""A site's critic, which learns to tell what a generator rebuilds from the site's images; it never leaves the site."""

from __future__ import annotations

from functools import partial

import torch

from medfl.contract import Site, Tensors
from medfl.distilling import scale_of
from medfl.losses.wgan import critic_loss, gradient_penalty
from medfl.networks.critic import Critic
from medfl.optimizer_state import read_state, write_state
from medfl.wire import prefixed, select

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
