"""Cyclic weight transfer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch

from medfl.contract import Request, Server
from medfl.toolkit.aggregation import sample
from medfl.toolkit.averaging import Averaging, Weighting
from medfl.toolkit.rounds import Due, Step


class Cyclic(Averaging):
    """One model goes from site to site: each trains it where the one before it left off.

    In a round it visits this round's participants once, one after the other, in a step for each visit; all go through
    the server, which sees every update. A site that does not answer is passed over. Nothing is averaged, so sites'
    sizes don't matter, and the site that comes last is remembered best. With one site this is `fedavg`.

    When to use it: Where few sites take turns anyway, or where one has too few images for a model of its own. A round
    takes as long as all sites' trainings together, and on unlike sites the model follows the last one it saw.

    Attributes:
        order: ``random`` draws the sites' order anew in each round, ``fixed`` is that of their names.

    Source: Chang, Balachandar, Lam, Yi, Brown, Beers, Rosen, Rubin, Kalpathy-Cramer, JAMIA 2018, 25(8).
    """

    name = "cyclic"
    family = "averaging"
    paper = "Chang et al., JAMIA 2018"
    summary = "one model goes from site to site, each trains it where the one before left off"
    supports = frozenset()

    order: Literal["random", "fixed"] = "random"

    @property
    def weighting(self) -> Weighting:
        """``none``: the server averages no models."""
        return "none"

    def round_steps(self) -> tuple[Step, ...]:
        """A visit, which is a step of FedAvg with one participant."""
        return (Step("fit", self.requests, self.train, self.aggregate_updates, quorum=0),)

    def schedule(self, server: Server, done: Sequence[Due]) -> Sequence[Due]:
        """A visit for each participant."""
        return [Due("fit", turn) for turn in range(max(1, len(self.route(server))))][len(done) :]

    def route(self, server: Server) -> list[str]:
        """This round's participants in the order in which the model visits them."""
        chosen = sample(server.trainable(), server.settings.fraction, server.shared_rng("participation"))
        if self.order == "fixed":
            return chosen
        places = torch.randperm(len(chosen), generator=server.shared_rng("cycle"))
        return [chosen[place] for place in places.tolist()]

    def requests(self, server: Server) -> list[Request]:
        """To the site whose turn it is, with the model as it came from the one before."""
        turn = self.due(server).turn
        return [Request(name, "fit", self.publish(server)) for name in self.route(server)[turn : turn + 1]]
