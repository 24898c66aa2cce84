"""FedNova: normalised averaging, which corrects for different amounts of local training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from pydantic import Field

from medfl.contract import Need, ReducesTo, Replies, Server
from medfl.toolkit.aggregation import normalised_weights
from medfl.toolkit.averaging import Weighting
from medfl.toolkit.fit import Fit
from medfl.toolkit.server_optimizer import scale_parameter_updates
from medfl.training.sgd import check_sgd, distance_in_learning_rates
from medfl.types import Meta, Tensors
from medfl.utils.metadata import MAX_COUNT, Count, MetaField, bounded_number
from medfl_methods.fedprox import FedProx

STEP_FACTOR = "stretch"
"""Key, in the server's metadata, of the factor by which this round's mean update is multiplied, >= 0."""


class FedNova(FedProx):
    """Normalised averaging (FedNova): each update is divided by the length of the site's local training.

    With `fedavg`, sites that take more local steps have more influence than their weights state. FedNova removes this
    objective inconsistency. Local training is the same as in `fedprox`; with ``mu = 0`` as in `fedavg`.

    Update rule:
        With D_k the update of site k, p_k its weight, and a_k its effort:

            w <- w + tau_eff sum_k p_k D_k / a_k,    tau_eff = sum_k p_k a_k

        The effort is the distance that t local steps cover along a constant gradient of 1, in units of the learning
        rate: a_k = t for plain SGD, and sum_{j <= t} (1 - beta^j) / (1 - beta) with momentum beta. With the proximal
        term, it is the distance D after t iterations of v <- beta v + 1 - lr mu D, D <- D + v, with the velocity v,
        from v = D = 0. Buffers are averaged with the weights p_k / a_k, without the factor tau_eff. Sites that take no
        step are left out.

    When to use it: When sites of different sizes train for whole epochs, so that large sites take many more steps.
    `fedavg` then ends nearer to the optimum of the large sites than their weights state.

    Limits: The method needs SGD, with or without momentum, but without Nesterov momentum or dampening. It does not
    correct the drift of single sites; `scaffold` does. Each site sends its effort and its number of steps, which reveal
    its number of images, so a run with a privacy setting refuses this method. For mu > 0 together with momentum, the
    authors add both efforts. Here the proximal term is part of the loss, so the momentum and the effort include it. The
    preset ``paper`` is meant for SGD with momentum 0.9.

    Limit cases: If all efforts are equal, as in a run with `steps`, this method is `fedprox`, and `fedavg` with ``mu =
    0``.

    Attributes:
        mu: Weight of the proximal term (mu / 2) ||w - w_t||^2, >= 0.
        tau_eff: ``effort`` uses the weighted mean of the efforts, ``steps`` the weighted mean of the numbers of steps,
            as the authors do with a proximal term.

    Source: Wang, Liu, Liang, Joshi, Poor, NeurIPS 2020, equations 5 and 8.
    """

    name = "fednova"
    family = "averaging"
    paper = "Wang et al., NeurIPS 2020"
    summary = "normalised averaging: updates are divided by the length of local training"
    supports = frozenset()
    needs: ClassVar[frozenset[Need]] = frozenset({"one_learning_rate"})

    sends_meta: ClassVar[Mapping[str, MetaField]] = {
        "size": MetaField("private", Count),
        "effort": MetaField("needed", bounded_number(0, MAX_COUNT), after=("fit",)),
        "steps": MetaField("needed", Count, after=("fit",)),
    }
    """Mapping from each metadata key of a reply to its type and its disclosure under a privacy setting."""
    presets: ClassVar[Mapping[str, Meta]] = {"paper": {}, "medfl": {}}
    reduces_to: ClassVar[tuple[ReducesTo, ...]] = ()

    mu: float = Field(0.0, ge=0, allow_inf_nan=False)
    tau_eff: Literal["effort", "steps"] = "effort"

    def setup(self, server: Server) -> None:
        """Set the server's state to the initial model.

        Raises:
            SettingsError: If the task's optimiser is not SGD, or has Nesterov momentum or dampening.
        """
        super().setup(server)
        optimizer = server.task.optimizer([torch.nn.Parameter(torch.zeros(1))])
        check_sgd(optimizer, "FedNova divides updates by the distance that SGD covered")

    def after_fit(self, fit: Fit) -> None:
        """Add the site's effort and number of steps to the metadata of the reply."""
        fit.meta |= {
            "effort": max(distance_in_learning_rates(fit.optimizer.param_groups[0], fit.steps, self.mu), 0.0),
            "steps": fit.steps,
        }

    @property
    def weighting(self) -> Weighting:
        """Weighting of the sites' models: ``size``; the method divides these weights by the efforts."""
        return "size"

    def weights_of(self, server: Server, metas: Mapping[str, Meta]) -> dict[str, float]:
        """Return the weight of each site's reply before normalisation: p_k / a_k, or p_k if all efforts are equal.

        A site that took no step has weight 0.
        """
        sizes = super().weights_of(server, metas)
        efforts = {name: meta["effort"] for name, meta in metas.items()}
        if len(set(efforts.values())) == 1:
            return sizes
        return {name: size / efforts[name] if efforts[name] else 0.0 for name, size in sizes.items()}

    def aggregate_updates(self, server: Server, replies: Replies) -> None:
        """Compute the factor of this round's mean update, then average the updates."""
        moving = {name: meta for name, meta in replies.meta.items() if meta["effort"]}
        server.state.meta[STEP_FACTOR] = self.step_factor(super().weights_of(server, moving), moving) if moving else 1.0
        super().aggregate_updates(server, replies)

    def step_factor(self, sizes: Mapping[str, float], metas: Mapping[str, Meta]) -> float:
        """Compute the factor of the mean update, tau_eff sum_k p_k / a_k, in which the mean has weights p_k / a_k.

        Args:
            sizes: Mapping from each site that took a step to its weight.
            metas: Mapping from each site that took a step to the metadata of its reply.
        """
        shares = normalised_weights(dict(sizes), metas)
        if self.tau_eff == "effort" and len({meta["effort"] for meta in metas.values()}) == 1:
            return 1.0
        length = math.fsum(share * metas[name][self.tau_eff] for name, share in shares.items())
        return length * math.fsum(share / metas[name]["effort"] for name, share in shares.items())

    def server_update(self, server: Server, old: Tensors, mean: Tensors) -> Tensors:
        """Return the new global tensors; the factor scales the updates of parameters, but not of buffers."""
        return super().server_update(server, old, scale_parameter_updates(server, mean, server.state.meta[STEP_FACTOR]))
