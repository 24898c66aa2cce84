"""pFedMe: personal models through Moreau envelopes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch.func import functional_call

from medfl.contract import Capability, Model, Reply, Request, Server, Site
from medfl.toolkit.fit import Fit
from medfl.toolkit.local_training import on_cpu
from medfl.toolkit.participant_state import auxiliary_state, set_auxiliary_state
from medfl.toolkit.server_optimizer import scale_parameter_updates
from medfl.training.loop import Batch
from medfl.types import Meta, Tensors
from medfl_methods.fedavg import FedAvg

PERSONAL_PREFIX = "own/"
"""Prefix, in a site's state, of the parameters of its personal model."""


class PFedMe(FedAvg):
    """Personal models through Moreau envelopes (pFedMe): the site's sent model follows its personal model.

    A site has two models: its personal model theta, and the model w that it sends. theta minimises the loss near w, and
    w moves towards theta, which is a gradient step on the Moreau envelope of the loss. In each round, w and theta start
    as the received model. The personal model has the buffers of the global one. A site that has not trained yet uses
    the global model.

    Update rule:
        For each batch, `inner_steps` steps of gradient descent from the start `inner_start` approximate

            theta = argmin F(theta) + (lam / 2) ||theta - w||^2

        Then the run's optimiser takes one step on w with the gradient lam (w - theta). With w_k the models of the
        participants, the server computes

            w_{t+1} = (1 - beta) w_t + beta mean_k w_k

        Buffers are averaged without beta.

    When to use it: When each hospital needs a personal model that is not far from a global one, and computing time is
    available: local training costs `inner_steps` times as much as with `fedavg`.

    Limits: w moves by the optimiser's learning rate times ``lam``, so choose both together, and keep `inner_lr` below 1
    / lam. The released code applies weight decay to theta in the inner steps; the paper and this implementation do not.
    The logged loss is the loss of the last inner step plus (lam / 2) ||theta - w||^2.

    Attributes:
        lam: Strength of the regulariser between theta and w, > 0.
        inner_steps: Steps of theta per batch, >= 1.
        inner_lr: Learning rate of the inner steps, > 0.
        inner_start: Start of the inner steps: ``warm`` at the personal model of the previous batch, as in the released
            code, or at ``w``.
        beta: Step length of the server, > 0; 1 is plain averaging.
        weights: Aggregation weights: ``uniform`` is equal, as in the paper; ``size`` is proportional to the numbers of
            images, as in the released code.

    Source: Dinh, Tran, Nguyen, NeurIPS 2020, Algorithm 1, equations 2, 5 and 7.
    """

    name = "pfedme"
    family = "personal"
    paper = "Dinh, Tran, Nguyen, NeurIPS 2020"
    summary = "personal models through Moreau envelopes: the sent model follows the personal model"
    supports = frozenset({Capability.ROBUST})

    presets: ClassVar[Mapping[str, Meta]] = {"paper": {"inner_lr": 0.09}, "medfl": {}}

    lam: float = Field(15.0, gt=0, allow_inf_nan=False)
    inner_steps: int = Field(5, ge=1)
    inner_lr: float = Field(0.01, gt=0, allow_inf_nan=False)
    inner_start: Literal["warm", "w"] = "warm"
    beta: float = Field(1.0, gt=0, allow_inf_nan=False)
    weights: Literal["size", "uniform"] = "uniform"

    def server_update(self, server: Server, old: Tensors, mean: Tensors) -> Tensors:
        """Return the new global tensors after a step of length beta; buffers take the mean."""
        return super().server_update(server, old, scale_parameter_updates(server, mean, self.beta))

    # ---- a site

    def before_fit(self, fit: Fit) -> None:
        """Prepare a training: set the personal model theta to the received model."""
        fit.extra["theta"] = dict(fit.start)

    def loss(self, fit: Fit, batch: Batch) -> torch.Tensor:
        """Update theta by the inner steps, and return a value whose gradient by w is lam (w - theta)."""
        w = dict(fit.parameters())
        start = fit.extra["theta"] if self.inner_start == "warm" else w
        theta = {name: start[name].detach().clone().requires_grad_() for name in w}
        for _ in range(self.inner_steps):
            value = fit.site.task.loss(functional_call(fit.model, theta, (batch.images,)), batch.targets)
            gradients = torch.autograd.grad(value, list(theta.values()), allow_unused=True)
            with torch.no_grad():
                for (name, tensor), gradient in zip(theta.items(), gradients, strict=True):
                    pull = self.lam * (tensor - w[name])
                    tensor -= self.inner_lr * (pull if gradient is None else gradient + pull)
        fit.extra["theta"] = {name: tensor.detach() for name, tensor in theta.items()}
        terms = [(parameter - fit.extra["theta"][name]).square().sum() for name, parameter in w.items()]
        return value.detach() + 0.5 * self.lam * torch.stack(terms).sum()

    def can_continue(self, fit: Fit) -> bool:
        """Return False: a training also changes the personal model."""
        return False

    def after_fit(self, fit: Fit) -> None:
        """Store the personal model in the site's state."""
        set_auxiliary_state(fit.site, PERSONAL_PREFIX, on_cpu(fit.extra["theta"]))

    def train(self, site: Site, request: Request) -> Reply:
        """Train as in FedAvg; reply with the personal model as the trained model."""
        reply = super().train(site, request)
        trained = reply.trained["personal"]
        reply.trained = {"personal": replace(trained, tensors=trained.tensors | auxiliary_state(site, PERSONAL_PREFIX))}
        return reply

    def models(self, participant: Server | Site) -> dict[str, Model]:
        """Return the models of a participant by kind: ``global``, and at a site also ``personal``."""
        models = super().models(participant)
        if isinstance(participant, Site):
            common = next(iter(models.values())).tensors
            models["personal"] = Model(participant.network, common | auxiliary_state(participant, PERSONAL_PREFIX))
        return models
