"""FedALA: adaptive local aggregation, a coordinate-wise learned mixture of the global and the site's own layers."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import pstdev
from typing import ClassVar

import torch
from pydantic import Field
from torch import nn

from medfl.contract import Capability, Model, ReducesTo, Server, Site
from medfl.toolkit.fit import Fit
from medfl.toolkit.local_training import on_cpu
from medfl.toolkit.participant_state import auxiliary_state, set_auxiliary_state
from medfl.training.batches import load_batches, on_device
from medfl.training.loop import autocast
from medfl.types import Meta, Tensors
from medfl_methods.fedavg import FedAvg

OWN_LAYERS_PREFIX = "own/"
"""Prefix, in a site's state, of the upper layers as the site trained them last."""

MIXTURE_WEIGHTS_PREFIX = "mix/"
"""Prefix, in a site's state, of the learned weights W of the global layers in the mixture."""


class FedALA(FedAvg):
    """Adaptive local aggregation (FedALA): a site starts each round from a learned mixture of global and own layers.

    FedALA changes the start of local training only. In the last `p_layers` layers, a site mixes the received global
    layers with its own layers from its previous training. It learns a weight in [0, 1] for each coordinate. Lower
    layers and all buffers come from the global model. In its first round, a site has no own layers and starts from the
    global model. The personal model of a site is the global model with the mixed upper layers.

    Update rule:
        With global layers g, own layers o and weights W, which are 1 at first, local training starts from

            o + (g - o) * W

        Before training, the site learns W on a random sample of its training images, with everything else fixed and in
        evaluation mode. For each batch, with the loss L of the mixed model:

            W <- clip(W - eta * grad L * (g - o), 0, 1)

        The first time, passes over the sample are repeated until the standard deviation of the last batch's loss over
        `window` passes is below `threshold`. In later rounds, one pass is made. W persists over the rounds.

    When to use it: When sites have different class distributions, each needs a model for its own patients, and
    computing time is available. The method also yields a good global model.

    Attributes:
        p_layers: Number of mixed layers, counted from the output, >= 0. A layer is a module with parameters of its own.
        sample_fraction: Share of the training images on which W is learned, in (0, 1], drawn again in each round.
        eta: Learning rate of W, >= 0.
        threshold: Standard deviation of the loss at which the first learning of W stops, >= 0.
        window: Number of passes over which the standard deviation is computed, >= 1. There is at least one pass more.
        max_passes: Maximum number of passes, >= 1.

    Source: Zhang, Hua, Wang, Song, Xue, Ma, Guan, AAAI 2023, equations 3 and 4 and Algorithm 1, and its released code.
    """

    name = "fedala"
    family = "personal"
    paper = "Zhang et al., AAAI 2023"
    summary = "FedAvg whose sites start each round from a learned, coordinate-wise mixture of global and own layers"
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
        """True if the settings mix any layer."""
        return self.eta > 0 and self.p_layers > 0

    def start(self, site: Site, received: Tensors) -> Tensors:
        """Learn and store W, and return the start of the training: the global model with mixed upper layers."""
        start, own = self.full_state(site, received), auxiliary_state(site, OWN_LAYERS_PREFIX)
        if not self.mixes or all(torch.equal(own[name], start[name]) for name in own):
            return start
        set_auxiliary_state(site, MIXTURE_WEIGHTS_PREFIX, self.learn_mixture_weights(site, start, own))
        return start | mixture(own, start, auxiliary_state(site, MIXTURE_WEIGHTS_PREFIX))

    def learn_mixture_weights(self, site: Site, common: Tensors, own: Tensors) -> Tensors:
        """Learn the weights W on a sample of the site's training images and return them.

        Args:
            site: Site with data, task and settings, and with the previous W in its state.
            common: All tensors of the global model.
            own: Upper layers as the site trained them last.
        """
        task, settings, device = site.task, site.settings, site.task.device
        model = task.load(common, site.network).eval().requires_grad_(False)
        upper = {name: p.requires_grad_() for name, p in model.named_parameters() if name in own}
        before = auxiliary_state(site, MIXTURE_WEIGHTS_PREFIX)
        mine, theirs = ({name: tensors[name].to(device) for name in upper} for tensors in (own, common))
        weights = {name: before[name].to(device) if before else torch.ones_like(p) for name, p in upper.items()}
        generator, count = site.rng("mixture"), max(1, int(self.sample_fraction * len(site.train)))
        drawn = torch.randperm(len(site.train), generator=generator)[:count].split(settings.batch_size)
        batches = [rows for rows in drawn if len(rows) >= task.objective.smallest_batch]
        losses: list[float] = []
        for _ in range((1 if before else self.max_passes) if batches else 0):
            for loaded in load_batches(site.train, batches, generator):
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
        """Store the trained upper layers in the site's state."""
        if self.mixes:
            set_auxiliary_state(fit.site, OWN_LAYERS_PREFIX, on_cpu(dict(upper_layers(fit.model, self.p_layers))))

    def models(self, participant: Server | Site) -> dict[str, Model]:
        """Return the models of a participant by kind: ``global``, and at a site its mixture as ``personal``."""
        models = super().models(participant)
        if isinstance(participant, Site) and self.mixes:
            full = next(iter(models.values())).tensors
            mixed = mixture(
                auxiliary_state(participant, OWN_LAYERS_PREFIX),
                full,
                auxiliary_state(participant, MIXTURE_WEIGHTS_PREFIX),
            )
            models["personal"] = Model(participant.network, full | mixed)
        return models


def upper_layers(model: nn.Module, count: int) -> list[tuple[str, nn.Parameter]]:
    """Return the trainable parameters, with their names, of the last `count` modules that have own parameters."""
    owned = [[id(p) for p in module.parameters(recurse=False) if p.requires_grad] for module in model.modules()]
    layers = [parameters for parameters in owned if parameters]
    chosen = {parameter for layer in layers[max(0, len(layers) - count) :] for parameter in layer}
    return [(name, p) for name, p in model.named_parameters() if id(p) in chosen]


def mixture(own: Tensors, common: Tensors, weights: Tensors) -> Tensors:
    """Mix own and global layers: return own + (common - own) W for each tensor in `weights`.

    The result is exactly `own` at W = 0 and exactly `common` at W = 1.

    Args:
        own: Layers as the site trained them last.
        common: The same layers of the global model.
        weights: Weights W by tensor name, of the same shapes.
    """
    return {name: torch.lerp(own[name], common[name], weight) for name, weight in weights.items()}


def ala_step(
    own: torch.Tensor, common: torch.Tensor, weight: torch.Tensor, gradient: torch.Tensor, eta: float
) -> torch.Tensor:
    """Update the mixture weights W by a gradient step: return clip(W - eta * gradient * (common - own), 0, 1).

    Args:
        own: Layer as the site trained it last.
        common: The same layer of the global model.
        weight: Weights W, of the same shape.
        gradient: Gradient of the loss by the mixed layer, of the same shape.
        eta: Learning rate, >= 0.
    """
    return (weight - eta * gradient * (common - own)).clamp(0, 1)
