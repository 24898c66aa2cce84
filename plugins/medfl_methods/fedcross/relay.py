"""The base of methods whose models move on: a model stays where it was trained until it is trained elsewhere.

A round is one or more turns of two steps. ``send``: the holder of a model posts it to its next host, and goes on
holding it. ``train``: the hosts train; from then on they hold what they trained. So a model is not lost on its way to a
site that is away, and no model counts twice. The server draws the route, keeps track of who holds what, and holds no
model itself.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import torch

from medfl.contract import Capability, Model, PayloadKind, PeerMessage, Replies, Reply, Request, Server, Site
from medfl.errors import RefusedError
from medfl.toolkit.aggregation import sample
from medfl.toolkit.personal import Personal
from medfl.toolkit.rounds import Due, Step
from medfl.toolkit.transfer import SENDS, TELLS, ModelInTransit, arrived, is_finite, pack, route
from medfl.types import Meta, Tensors
from medfl.utils.metadata import MetaField, one_of
from medfl.utils.wire import prefixed, select

logger = logging.getLogger(__name__)

ONE = "one"
"""The name of the model where there is but one; otherwise a model has the name of the site for which it began."""

AFTER = -1
"""Stands for a turn in the orders of the steps that close a round."""

HELD = "held/"
"""What names of models begin with in a site's state: ``held/MODEL/TENSOR``."""


class Relay(Personal):
    """Models that are handed from site to site.

    A site's meta says which of its models count (``holds``) and which it trained last (``resident``).

    Attributes:
        circulating: How many models circulate: ``K``, one for each site with training data, or ``one``, which visits
            all participants in turn in each round.
        route: ``random_permutation``: any model may come to any host, also the one that it is at. ``derangement``: no
            model stays where it is. ``ring``: each goes to the next host, by name. A single model visits the sites in
            the order of their names with ``ring``, and in a new random order each round otherwise.
    """

    sends: ClassVar[Mapping[str, PayloadKind]] = SENDS
    sends_meta: ClassVar[Mapping[str, MetaField]] = {
        **TELLS,
        "trained": MetaField("public", one_of("model", empty=True), after=("train",)),
    }
    supports = frozenset({Capability.PEER_MESSAGES})

    circulating: Literal["K", "one"] = "K"
    route: Literal["random_permutation", "derangement", "ring"] = "random_permutation"

    def closing(self, server: Server) -> list[str]:
        """Names of further steps of this round; a method adds them to `round_steps`, with orders `to_all`."""
        return []

    # ---- the server

    def setup(self, server: Server) -> None:
        """Nobody holds a model yet: its first host makes the initial one."""
        server.state.meta = {"at": {}, "answered": 0}

    def turns(self, server: Server) -> list[dict[str, str]]:
        """Host to model, for each turn of this round."""
        hosts = sample(server.trainable(), server.settings.fraction, server.shared_rng("participation"))
        if self.circulating == "K":
            held = {owner: owner for owner in server.trainable()} | server.state.meta["at"]
            return [route(hosts, held, self.route, server.shared_rng("route"))]
        if self.route != "ring":
            order = torch.randperm(len(hosts), generator=server.shared_rng("route"))
            hosts = [hosts[index] for index in order.tolist()]
        return [{host: ONE} for host in hosts]

    def round_steps(self) -> tuple[Step, ...]:
        """Models are sent and trained."""
        return (
            Step("send", self.send_requests, self.send, quorum=0),
            Step("train", self.requests, self.train, self.aggregate_updates, self.needed),
        )

    def schedule(self, server: Server, done: Sequence[Due]) -> Sequence[Due]:
        """Turn after turn, and the closing steps; a turn in which no model moves needs no ``send``."""
        turns = range(len(self.turns(server)))
        dues = [Due(name, turn) for turn in turns for name in ("send", "train")]
        dues += [Due(name) for name in self.closing(server)]
        begun = [dues.index(due) for due in done if due in dues]
        left = dues[max(begun, default=-1) + 1 :]
        return left[1:] if left and left[0].name == "send" and not self._moves(server, left[0].turn) else left

    def send_requests(self, server: Server) -> list[Request]:
        """To those who hold a model that moves in this turn."""
        turn = self.due(server).turn
        moves = self._moves(server, turn)
        return [self.request(server, turn, site, "send", {"posts": posts}) for site, posts in moves.items()]

    def requests(self, server: Server) -> list[Request]:
        """To the hosts of this turn, to train."""
        at, turn = server.state.meta["at"], self.due(server).turn
        models = {host: {"model": model, "from": at.get(model)} for host, model in self.turns(server)[turn].items()}
        return [self.request(server, turn, host, "train", meta) for host, meta in models.items()]

    def to_all(self, op: str, server: Server) -> list[Request]:
        """To all sites, which the meta names."""
        return [self.request(server, AFTER, site, op, {"sites": server.sites}) for site in server.sites]

    def request(self, server: Server, turn: int, to: str, op: str, meta: Meta) -> Request:
        """An order that says which models the site holds, and what parcels of the turn are stamped with."""
        at = server.state.meta["at"]
        holds = sorted(model for model in at if at[model] == to)
        return Request(to, op, meta=meta | {"stamp": [server.round, turn], "holds": holds})

    def aggregate_updates(self, server: Server, replies: Replies) -> None:
        """Note who holds what now, and how many have replied in this round."""
        meta, first = server.state.meta, self.due(server).turn == 0
        meta["at"] |= {reply["trained"]: host for host, reply in replies.meta.items() if reply["trained"]}
        meta["answered"] = len(replies) + (0 if first else meta["answered"])

    def needed(self, server: Server) -> int:
        """Replies that are still needed in the last turn, so that the round has as many as the run asks for."""
        turns, turn = self.turns(server), self.due(server).turn
        if turn < len(turns) - 1:
            return 0
        visits, answered = sum(len(pairs) for pairs in turns), server.state.meta["answered"] if turn else 0
        return max(0, min(server.settings.min_replies, visits) - int(answered))

    def _moves(self, server: Server, turn: int) -> dict[str, dict[str, str]]:
        """Holder to the models that it has to send in a turn, each with its next host."""
        at, moves = server.state.meta["at"], dict[str, dict[str, str]]()
        for host, model in self.turns(server)[turn].items():
            if at.get(model, host) != host:
                moves.setdefault(at[model], {})[model] = host
        return moves

    # ---- a site

    def execute(self, site: Site, request: Request) -> Reply:
        """Do what is asked, after forgetting the models that were trained elsewhere since."""
        site.state.meta["holds"] = request.meta["holds"]
        forget(site, {*request.meta["holds"], site.state.meta.get("resident", "")})
        return super().execute(site, request)

    def send(self, site: Site, request: Request) -> Reply:
        """Post models to their next hosts."""
        posts, stamp = request.meta["posts"], request.meta["stamp"]
        return Reply(peer_messages=[_post(site, model, to, stamp) for model, to in posts.items()])

    def train(self, site: Site, request: Request) -> Reply:
        """Train the model that is here for this turn, and hold it."""
        model = request.meta["model"]
        kept = self._found(site, model, request)
        if not kept:
            return Reply(meta={"trained": ""}, log={"trained": 0.0})
        done, kept = self.go_on(site, kept)
        if not is_finite(kept):
            logger.warning("Round %d: a training at %s diverged; the model goes on as it came.", site.round, site.name)
            return Reply(meta={"trained": ""}, log=done.log | {"trained": 0.0})
        forget(site, set(request.meta["holds"]) - {model})
        site.state.tensors |= prefixed(kept, f"{HELD}{model}/")
        site.state.meta["resident"] = model
        site.state.meta["holds"] = sorted({*request.meta["holds"], model})
        log = done.log | {"trained": 1.0}
        return Reply(meta={"trained": model}, log=log, trained={"personal": Model(site.network, done.after)})

    def begin(self, site: Site, model: str) -> Tensors:
        """The initial tensors of a model."""
        return self.initial(site, "" if model == ONE else model)

    def _found(self, site: Site, model: str, request: Request) -> Tensors:
        """The model that is to be trained: new, held or arrived; empty if it did not come."""
        if request.meta["from"] is None:
            return self.begin(site, model)
        if request.meta["from"] == site.name:
            return held(site, model)
        guest = arrived(site, model, request.meta["stamp"])
        return guest.kept if guest else {}


def held(site: Site, model: str) -> Tensors:
    """A model in a site's state, with its optimiser's state if that travels; empty if it is not there."""
    return select(site.state.tensors, f"{HELD}{model}/")


def forget(site: Site, but: set[str]) -> None:
    """Drop the models of a site's state that are not named."""
    keep = tuple(f"{HELD}{model}/" for model in but)
    site.state.tensors = {
        name: tensor
        for name, tensor in site.state.tensors.items()
        if not name.startswith(HELD) or name.startswith(keep)
    }


def _post(site: Site, model: str, to: str, stamp: list[int]) -> PeerMessage:
    kept = held(site, model)
    if not kept:
        raise RefusedError(
            "lost_model",
            f"Site '{site.name}' no longer has the model '{model}', which then can't go on.",
            site=site.name,
            model=model,
        )
    return pack(to, ModelInTransit(model, site.network, kept), stamp)
