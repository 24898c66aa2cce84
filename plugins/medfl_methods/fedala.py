"""FedALA."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import pstdev
from typing import ClassVar

import torch
from pydantic import Field
from torch import nn

from medfl.contract import Capability, Model, ReducesTo, Server, Site
from medfl.toolkit.fit import Fit
from medfl.toolkit.kept import keep, kept
from medfl.toolkit.local_training import on_cpu
from medfl.training.batches import load, on_device
from medfl.training.loop import autocast
from medfl.types import Meta, Tensors
from medfl_methods.fedavg import FedAvg

OWN, MIX = "own/", "mix/"
"""Where a site keeps the upper layers that it trained last, and the weights of the common ones in the mixture."""


class FedALA(FedAvg):
    """FedAvg whose sites begin each round with a mixture of the common model and their own, learned coordinate by
    coordinate.

    In the upper layers a site starts from own + (common - own) W, with its own layers as it trained them last and W in
    [0, 1] for each coordinate, at first 1; the lower layers and all buffers are the common ones. Before it trains, it
    learns W on a random share of its training images: by each batch W <- clip(W - eta g (common - own), 0, 1), where g
    is the gradient of the loss there. All else stays as it is, in evaluation mode. The first time this goes on until
    the loss of a pass's last batch has a standard deviation below `threshold` over `window` passes; later it is one
    pass a round. W is kept from round to round. In a site's first round nothing is mixed, as it has no own layers.

    A site's personal model is that mixture with W as it was learned last. ``eta = 0`` and ``p_layers = 0`` make this
    FedAvg.

    When to use it: When sites hold unlike shares of the classes, each wants a model for its own patients, and computing
    is no obstacle. A good common model is there, too.

    Attributes:
        p_layers: How many layers are mixed, from the output, >= 0. A layer is a module with parameters of its own.
        sample_fraction: Share of the training images on which W is learned, in (0, 1], drawn anew each round.
        eta: Learning rate of W, >= 0.
        threshold: Standard deviation of the loss below which W is learned, >= 0.
        window: Of how many passes, >= 1; there is at least one more.
        max_passes: Largest number of passes, >= 1.

    Source: Zhang, Hua, Wang, Song, Xue, Ma, Guan, AAAI 2023, equations 3 and 4 and Algorithm 1, and its released code.
    """

    name = "fedala"
    family = "personal"
    paper = "Zhang et al., AAAI 2023"
    summary = "each site begins with a mixture of the common model and its own, learned coordinate by coordinate"
    supports = frozenset({Capability.ROBUST})

    reduces_to: ClassVar[tuple[ReducesTo, ...]] = (
        ReducesTo("fedavg", {"eta": 0.0}),
        ReducesTo("fedavg", {"p_layers": 0}),
    )
    presets: ClassVar[Mapping[str, Meta]] = {"paper": {}, "medfl": {}}

    p_layers: int = Field(1, ge=0)
    sample_fraction: float = Field(0.8, gt=0, le=1)
    eta: float = Field(1.0, ge=0, allow_inf_nan=False)
    threshold: float = Field(0.1, ge=0, allow_inf_nan=False)
    window: int = Field(10, ge=1)
    max_passes: int = Field(50, ge=1)

    @property
    def mixes(self) -> bool:
        """Whether anything is mixed."""
        return self.eta > 0 and self.p_layers > 0

    def start(self, site: Site, received: Tensors) -> Tensors:
        """The common model, mixed with the own upper layers."""
        start, own = self.full_state(site, received), kept(site, OWN)
        if not self.mixes or all(torch.equal(own[name], start[name]) for name in own):
            return start
        keep(site, MIX, self.learn(site, start, own))
        return start | mixture(own, start, kept(site, MIX))

    def learn(self, site: Site, common: Tensors, own: Tensors) -> Tensors:
        """W, on the site's training images.

        Args:
            site: Gives data, task and settings, and W as it was.
            common: All tensors of the common model.
            own: The own upper layers.
        """
        task, settings, device = site.task, site.settings, site.task.device
        model = task.load(common, site.network).eval().requires_grad_(False)
        upper = {name: p.requires_grad_() for name, p in model.named_parameters() if name in own}
        before = kept(site, MIX)
        mine, theirs = ({name: tensors[name].to(device) for name in upper} for tensors in (own, common))
        weights = {name: before[name].to(device) if before else torch.ones_like(p) for name, p in upper.items()}
        generator, count = site.rng("mixture"), max(1, int(self.sample_fraction * len(site.train)))
        drawn = torch.randperm(len(site.train), generator=generator)[:count].split(settings.batch_size)
        batches = [rows for rows in drawn if len(rows) >= task.objective.smallest_batch]
        losses: list[float] = []
        for _ in range((1 if before else self.max_passes) if batches else 0):
            for loaded in load(site.train, batches, generator):
                with torch.no_grad():
                    for name, tensor in mixture(mine, theirs, weights).items():
                        upper[name].copy_(tensor)
                with autocast(settings, device):
                    loss = task.loss(model(loaded.inputs.to(device)), on_device(loaded.targets, device))
                for name, gradient in zip(upper, torch.autograd.grad(loss, list(upper.values())), strict=True):
                    weights[name] = ala_step(mine[name], theirs[name], weights[name], gradient, self.eta)
            losses.append(loss.item())
            if len(losses) > self.window and pstdev(losses[-self.window :]) < self.threshold:
                break
        return on_cpu(weights)

    def after_fit(self, fit: Fit) -> None:
        """The site keeps its upper layers."""
        if self.mixes:
            keep(fit.site, OWN, on_cpu(dict(upper_layers(fit.model, self.p_layers))))

    def models(self, participant: Server | Site) -> dict[str, Model]:
        """The common model, and at each site its mixture."""
        models = super().models(participant)
        if isinstance(participant, Site) and self.mixes:
            full = next(iter(models.values())).tensors
            mixed = mixture(kept(participant, OWN), full, kept(participant, MIX))
            models["personal"] = Model(participant.network, full | mixed)
        return models


def upper_layers(model: nn.Module, count: int) -> list[tuple[str, nn.Parameter]]:
    """Return the trainable parameters, by name, of the last `count` modules that have any of their own."""
    owned = [[id(p) for p in module.parameters(recurse=False) if p.requires_grad] for module in model.modules()]
    layers = [parameters for parameters in owned if parameters]
    chosen = {parameter for layer in layers[max(0, len(layers) - count) :] for parameter in layer}
    return [(name, p) for name, p in model.named_parameters() if id(p) in chosen]


def mixture(own: Tensors, common: Tensors, weights: Tensors) -> Tensors:
    """own + (common - own) W for each tensor that has weights; exactly `own` at 0 and `common` at 1."""
    return {name: torch.lerp(own[name], common[name], weight) for name, weight in weights.items()}


def ala_step(
    own: torch.Tensor, common: torch.Tensor, weight: torch.Tensor, gradient: torch.Tensor, eta: float
) -> torch.Tensor:
    """clip(W - eta g (common - own), 0, 1).

    Args:
        own: The site's own layer.
        common: The common one, of the same shape.
        weight: W, of the same shape.
        gradient: g, of the loss by the mixture.
        eta: Learning rate, >= 0.
    """
    return (weight - eta * gradient * (common - own)).clamp(0, 1)
