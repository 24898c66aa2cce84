"""Cyclic weight transfer: one model visits the sites one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch

from medfl.contract import Request, Server
from medfl.toolkit.aggregation import sample_sites
from medfl.toolkit.averaging import Averaging, Weighting
from medfl.toolkit.rounds import RoundStep, ScheduledStep


class Cyclic(Averaging):
    """Cyclic weight transfer: one model is trained at one site after the other, without averaging.

    In each round, the model visits every participant of the round once, in one step per visit. Each site continues the
    training from the model that the previous site returned. The model passes through the server, which therefore sees
    every update. The server skips a site that does not reply. Sites' sizes have no effect, because nothing is averaged.

    Update rule:
        For the participants k_1, ..., k_K of a round, in the order of the route:

            w <- w + (update of site k_i, trained from w)    for i = 1, ..., K

    When to use it: When few sites can take turns, or when a site has too few images for a model of its own.

    Limits: A round takes as long as the local trainings of all its participants together. On heterogeneous sites, the
    model is biased towards the sites that it visited last.

    Limit cases: With one site, this method is `fedavg`.

    Attributes:
        order: Order of the sites. ``random`` draws a new order in each round; ``fixed`` sorts the sites by name.

    Source: Chang, Balachandar, Lam, Yi, Brown, Beers, Rosen, Rubin, Kalpathy-Cramer, JAMIA 2018, 25(8).
    """

    name = "cyclic"
    family = "averaging"
    paper = "Chang et al., JAMIA 2018"
    summary = "cyclic weight transfer: one model is trained at one site after the other, without averaging"
    supports = frozenset()

    order: Literal["random", "fixed"] = "random"

    @property
    def weighting(self) -> Weighting:
        """Weighting of the sites' models: ``none``, because the server averages no models."""
        return "none"

    def round_steps(self) -> tuple[RoundStep, ...]:
        """Return the steps that a round may contain: one visit, which is a step of FedAvg with one participant."""
        return (RoundStep("fit", self.requests, self.train, self.aggregate_updates, quorum=0),)

    def remaining_steps(self, server: Server, done: Sequence[ScheduledStep]) -> Sequence[ScheduledStep]:
        """Return the remaining steps of the round: one visit for each participant not visited yet."""
        return [ScheduledStep("fit", turn) for turn in range(max(1, len(self.route(server))))][len(done) :]

    def route(self, server: Server) -> list[str]:
        """Return the round's participants in the order in which the model visits them."""
        chosen = sample_sites(server.trainable(), server.settings.fraction, server.shared_rng("participation"))
        if self.order == "fixed":
            return chosen
        places = torch.randperm(len(chosen), generator=server.shared_rng("cycle"))
        return [chosen[place] for place in places.tolist()]

    def requests(self, server: Server) -> list[Request]:
        """Return a request with the current model for the next site of the route."""
        turn = self.current_step(server).turn
        return [Request(name, "fit", self.publish(server)) for name in self.route(server)[turn : turn + 1]]
