"""FedNova."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from pydantic import Field

from medfl.contract import ReducesTo, Replies, Server
from medfl.toolkit.aggregation import normalised
from medfl.toolkit.averaging import Weighting
from medfl.toolkit.fit import Fit
from medfl.toolkit.server_optimizer import lengthened
from medfl.training.sgd import check_sgd, way
from medfl.types import Meta, Tensors
from medfl.utils.metadata import LARGEST, Count, MetaField, number
from medfl_methods.fedprox import FedProx

STRETCH = "stretch"
"""In the server's meta: how many times the weighted mean of this round's updates the server moves, >= 0."""


class FedNova(FedProx):
    """Averaging of updates that are divided by how far each site's optimiser went, so that longer trainings don't win.

    A site's effort a_k is how far its steps would go along a constant gradient of 1, in units of the learning rate: its
    number of steps t with plain SGD, sum over j <= t of (1 - beta^j) / (1 - beta) with momentum, and with the proximal
    term the D of t turns of v <- beta v + 1 - lr mu D, D <- D + v. The server moves by tau_eff sum p_k D_k / a_k, where
    D_k is an update, p_k a site's weight and tau_eff the weighted mean of the efforts. Buffers are averaged with the
    same weights, p_k / a_k, and not stretched. A site that takes no step is left out.

    Where all efforts are alike, as in a run with `steps`, this is `fedprox`, and `fedavg` with ``mu = 0``. Each site
    tells its effort and its number of steps, from which its number of images follows, so runs with a privacy setting
    refuse this method. It needs plain SGD, with or without momentum. For mu > 0 and momentum at once the authors add
    the efforts of both; here the proximal term is in the loss, so momentum sees it, and so does the effort. The preset
    ``paper`` goes with SGD with momentum 0.9.

    When to use it: Where sites of unlike sizes train whole epochs, so that large ones take many more steps: FedAvg then
    ends nearer to their optimum than their weights say. It does not mend the drift of single sites, as `scaffold` does.

    Attributes:
        mu: Weight of the proximal term (mu/2) ||w - w_t||^2, >= 0.
        tau_eff: ``effort`` takes the weighted mean of efforts, ``steps`` that of the numbers of steps, as the authors
            do with a proximal term.

    Source: Wang, Liu, Liang, Joshi, Poor, NeurIPS 2020, equations 5 and 8.
    """

    name = "fednova"
    family = "averaging"
    paper = "Wang et al., NeurIPS 2020"
    summary = "FedAvg whose updates are divided by how far each site's optimiser went"
    supports = frozenset()

    sends_meta: ClassVar[Mapping[str, MetaField]] = {
        "size": MetaField("private", Count),
        "effort": MetaField("needed", number(0, LARGEST), after=("fit",)),
        "steps": MetaField("needed", Count, after=("fit",)),
    }
    presets: ClassVar[Mapping[str, Meta]] = {"paper": {}, "medfl": {}}
    reduces_to: ClassVar[tuple[ReducesTo, ...]] = ()

    mu: float = Field(0.0, ge=0, allow_inf_nan=False)
    tau_eff: Literal["effort", "steps"] = "effort"

    def setup(self, server: Server) -> None:
        """The common initial model.

        Raises:
            SettingsError: If the task's optimiser is not SGD, or one with Nesterov's momentum or dampening.
        """
        super().setup(server)
        optimizer = server.task.optimizer([torch.nn.Parameter(torch.zeros(1))])
        check_sgd(optimizer, "FedNova divides updates by how far SGD went")

    def after_fit(self, fit: Fit) -> None:
        """The site's effort and its steps."""
        fit.meta |= {"effort": max(way(fit.optimizer.param_groups[0], fit.steps, self.mu), 0.0), "steps": fit.steps}

    @property
    def weighting(self) -> Weighting:
        """``size``: sites weigh p_k, divided by how many steps they took."""
        return "size"

    def weights_of(self, server: Server, metas: Mapping[str, Meta]) -> dict[str, float]:
        """p_k / a_k, and 0 for a site that took no step; p_k where all efforts are alike."""
        sizes = super().weights_of(server, metas)
        efforts = {name: meta["effort"] for name, meta in metas.items()}
        if len(set(efforts.values())) == 1:
            return sizes
        return {name: size / efforts[name] if efforts[name] else 0.0 for name, size in sizes.items()}

    def aggregate_updates(self, server: Server, replies: Replies) -> None:
        """The weighted mean, stretched."""
        moved = {name: meta for name, meta in replies.meta.items() if meta["effort"]}
        server.state.meta[STRETCH] = self.stretch(super().weights_of(server, moved), moved) if moved else 1.0
        super().aggregate_updates(server, replies)

    def stretch(self, sizes: Mapping[str, float], metas: Mapping[str, Meta]) -> float:
        """tau_eff sum p_k / a_k: by how much the mean with weights p_k / a_k falls short of FedNova's step.

        Args:
            sizes: Weights of the sites that took a step.
            metas: What these told.
        """
        shares = normalised(dict(sizes), metas)
        if self.tau_eff == "effort" and len({meta["effort"] for meta in metas.values()}) == 1:
            return 1.0
        length = math.fsum(share * metas[name][self.tau_eff] for name, share in shares.items())
        return length * math.fsum(share / metas[name]["effort"] for name, share in shares.items())

    def server_update(self, server: Server, old: Tensors, mean: Tensors) -> Tensors:
        """The stretched step of the parameters; buffers take the mean."""
        return super().server_update(server, old, lengthened(server, mean, server.state.meta[STRETCH]))
