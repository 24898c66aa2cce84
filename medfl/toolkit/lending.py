"""The base of methods whose models circulate: every site has its own, which is lent to another site in each round.

A round has up to three steps. ``send``: each owner posts a copy to the host that the route names; its own state stays
as it is. ``train``: the hosts train. ``home``: where guests return, their owners take them in. The server plans the
route and holds no model. This base trains the guest itself and returns it; a method may do something else in `train`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import ClassVar, Literal

from pydantic import field_validator

from medfl.contract import Capability, Model, PayloadKind, Reply, Request, Server, Site
from medfl.toolkit.aggregation import sample
from medfl.toolkit.personal import Personal
from medfl.toolkit.rounds import Due, Step
from medfl.toolkit.transfer import SENDS, TELLS, ModelInTransit, arrived, as_host, is_finite, pack, route, unpack
from medfl.types import Meta, Tensors
from medfl.utils.metadata import MetaField, one_of

logger = logging.getLogger(__name__)


class Circulating(Personal):
    """Models that are lent to other sites, trained there and returned.

    Attributes:
        route: How hosts are given models, see `medfl.toolkit.transfer`.
        p2p_scale: What the local epochs (or steps) of the run are multiplied by, a whole number >= 1; ``N`` stands for
            the number of sites with training data.
    """

    sends: ClassVar[Mapping[str, PayloadKind]] = SENDS
    sends_meta: ClassVar[Mapping[str, MetaField]] = {**TELLS, "guest": MetaField("public", one_of("owner", empty=True))}
    supports: ClassVar[frozenset[Capability]] = Personal.supports | {Capability.PEER_MESSAGES}

    route: Literal["random_permutation", "derangement", "identity"] = "random_permutation"
    p2p_scale: Literal["N"] | int = "N"

    @field_validator("p2p_scale")
    @classmethod
    def _at_least_one(cls, value: str | int) -> str | int:
        if isinstance(value, int) and value < 1:
            raise ValueError("expected 'N' or a whole number >= 1")
        return value

    def guests_return(self, server: Server) -> bool:
        """Whether in this round hosts train their guests and return them."""
        return True

    # ---- the steps of a round

    def round_steps(self) -> tuple[Step, ...]:
        """Models are sent, trained and brought home."""
        return (
            Step("send", partial(self.to_owners, "send"), self.send, quorum=0),
            Step("train", self.requests, self.train),
            Step("home", partial(self.to_owners, "home"), quorum=0),
        )

    def schedule(self, server: Server, done: Sequence[Due]) -> Sequence[Due]:
        """Where no model travels only ``train``; ``home`` where guests return."""
        if all(host == owner for host, owner in self.owner_of(server).items()):
            names = ["train"]
        else:
            names = ["send", "train", "home"] if self.guests_return(server) else ["send", "train"]
        return [Due(name) for name in names[len(done) :]]

    def owner_of(self, server: Server) -> dict[str, str]:
        """This round's participants, each with the owner of the model that it gets; all methods share this route."""
        hosts = sample(server.trainable(), server.settings.fraction, server.shared_rng("participation"))
        return route(hosts, {host: host for host in hosts}, self.route, server.shared_rng("route"))

    def requests(self, server: Server) -> list[Request]:
        """To the hosts, to train."""
        scale = len(server.trainable()) if self.p2p_scale == "N" else self.p2p_scale
        meta: Meta = {"scale": scale, "returns": self.guests_return(server)}
        return [Request(host, "train", meta=meta | {"owner": owner}) for host, owner in self.owner_of(server).items()]

    def to_owners(self, op: str, server: Server) -> list[Request]:
        """To the owners of the models that travel."""
        pairs, returns = self.owner_of(server).items(), self.guests_return(server)
        return [Request(owner, op, meta={"to": host, "returns": returns}) for host, owner in pairs if host != owner]

    # ---- a site

    def execute(self, site: Site, request: Request) -> Reply:
        """Take in the own model if it came home, then do what is asked."""
        self.take_in(site)
        return super().execute(site, request)

    def send(self, site: Site, request: Request) -> Reply:
        """Post a copy of the own model to its host."""
        mine = ModelInTransit(site.name, site.network, self.lent(site, request))
        return Reply(peer_messages=[pack(request.meta["to"], mine, [site.round])])

    def lent(self, site: Site, request: Request) -> Tensors:
        """What of the own model is sent to its host."""
        return self.own(site)

    def take_in(self, site: Site) -> None:
        """Keep the own model as it came home last, perhaps while this site was away."""
        for peer_message in site.inbox:
            if peer_message.meta["owner"] == site.name:  # one at most: who is away lends nothing
                site.state.tensors = unpack(peer_message).kept

    def train(self, site: Site, request: Request) -> Reply:
        """Train the guest, or the own model if that stayed at home, and return the guest."""
        owner = request.meta["owner"]
        guest = self.guest(site, owner)
        if guest is None:
            return Reply(meta={"guest": ""}, log={"trained": 0.0})
        done, kept = self.go_on(as_host(site, guest.network, request.meta["scale"]), guest.kept)
        if not is_finite(kept):
            logger.warning("Round %d: a training at %s diverged; the model goes on as it came.", site.round, site.name)
            return Reply(meta={"guest": ""}, log=done.log | {"trained": 0.0})
        reply = Reply(
            meta={"guest": owner},
            log=done.log | {"trained": 1.0},
            trained={"personal": Model(guest.network, done.after)},
        )
        if owner == site.name:
            site.state.tensors = kept
        else:
            reply.peer_messages = [pack(owner, ModelInTransit(owner, guest.network, kept), [site.round])]
        return reply

    def guest(self, site: Site, owner: str) -> ModelInTransit | None:
        """The model of `owner` that is here this round; None if it did not come."""
        if owner == site.name:
            return ModelInTransit(site.name, site.network, self.own(site))
        return arrived(site, owner, [site.round])
