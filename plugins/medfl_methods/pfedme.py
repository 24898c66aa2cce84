"""pFedMe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch.func import functional_call

from medfl.contract import Capability, Model, Reply, Request, Server, Site
from medfl.toolkit.fit import Fit
from medfl.toolkit.kept import keep, kept
from medfl.toolkit.local_training import on_cpu
from medfl.toolkit.server_optimizer import lengthened
from medfl.training.loop import Batch
from medfl.types import Meta, Tensors
from medfl_methods.fedavg import FedAvg

OWN = "own/"
"""Where a site keeps the parameters of its personal model."""


class PFedMe(FedAvg):
    """Personal models by Moreau envelopes: a site's own model is tied to the one that it sends, which follows it.

    With each batch a site first takes `inner_steps` steps of plain gradient descent from its personal model towards the
    minimum of F(theta) + (lam/2) ||theta - w||^2 on that batch; then one step of the run's optimiser on w along
    lam (w - theta), which is the gradient of the envelope, that minimum as a function of w. In a round w begins as the
    received model, and so does theta. The server's new model is (1 - beta) times its old one plus beta times the mean
    of the sites' w; buffers are plainly averaged.

    theta is the site's personal model, with the buffers of the common one; until a site has trained, it is the common
    model. The logged loss is that of the last inner step plus (lam/2) ||theta - w||^2. The released code also decays
    theta in the inner steps, which the paper does not; neither does medfl.

    When to use it: When each hospital wants a model for its own patients, not far from a common one, and computing is
    no obstacle: it costs `inner_steps` times FedAvg's. w moves by the optimiser's learning rate times lam, so choose
    both together, and keep `inner_lr` below 1 / lam.

    Attributes:
        lam: How strongly the personal model is held near w, > 0.
        inner_steps: Steps of the personal model for each batch, >= 1.
        inner_lr: Their learning rate, > 0.
        inner_start: Where they begin: ``warm`` at the personal model of the batch before, as in the released code, or
            at ``w``.
        beta: Length of the server's step, > 0; 1 is plain averaging.
        weights: ``uniform`` weighs the participants alike, as in the paper; ``size`` by their numbers of images, as in
            the released code.

    Source: Dinh, Tran, Nguyen, NeurIPS 2020, Algorithm 1, equations 2, 5 and 7.
    """

    name = "pfedme"
    family = "personal"
    paper = "Dinh, Tran, Nguyen, NeurIPS 2020"
    summary = "own models by Moreau envelopes: each is tied to the one that its site sends, which follows it"
    supports = frozenset({Capability.ROBUST})

    presets: ClassVar[Mapping[str, Meta]] = {"paper": {"inner_lr": 0.09}, "medfl": {}}

    lam: float = Field(15.0, gt=0, allow_inf_nan=False)
    inner_steps: int = Field(5, ge=1)
    inner_lr: float = Field(0.01, gt=0, allow_inf_nan=False)
    inner_start: Literal["warm", "w"] = "warm"
    beta: float = Field(1.0, gt=0, allow_inf_nan=False)
    weights: Literal["size", "uniform"] = "uniform"

    def server_update(self, server: Server, old: Tensors, mean: Tensors) -> Tensors:
        """A step of length beta; buffers take the whole one."""
        return super().server_update(server, old, lengthened(server, mean, self.beta))

    # ---- a site

    def before_fit(self, fit: Fit) -> None:
        """The personal model begins as the received one."""
        fit.extra["theta"] = dict(fit.start)

    def loss(self, fit: Fit, batch: Batch) -> torch.Tensor:
        """The envelope at w, whose gradient is lam (w - theta)."""
        w = dict(fit.parameters())
        begin = fit.extra["theta"] if self.inner_start == "warm" else w
        theta = {name: begin[name].detach().clone().requires_grad_() for name in w}
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

    def after_fit(self, fit: Fit) -> None:
        """The site keeps its personal model."""
        keep(fit.site, OWN, on_cpu(fit.extra["theta"]))

    def train(self, site: Site, request: Request) -> Reply:
        """As in FedAvg; the model that was trained is the personal one."""
        reply = super().train(site, request)
        trained = reply.trained["personal"]
        reply.trained = {"personal": replace(trained, tensors=trained.tensors | kept(site, OWN))}
        return reply

    def models(self, participant: Server | Site) -> dict[str, Model]:
        """The common model, and at each site its own."""
        models = super().models(participant)
        if isinstance(participant, Site):
            common = next(iter(models.values())).tensors
            models["personal"] = Model(participant.network, common | kept(participant, OWN))
        return models
