"""The base of methods whose models move on: a model stays where it was trained until it is trained elsewhere.

A round is one or more turns of two steps. ``send``: the holder of a model posts it to its next host, and goes on
holding it. ``train``: the hosts train; from then on they hold what they trained. So a model is not lost on its way to a
site that is away, and no model counts twice. The server draws the route, keeps track of who holds what, and holds no
model itself.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import ClassVar, Literal

import torch

from medfl.contract import Kind, Model, Order, Parcel, Plan, Replies, Reply, Server, Site
from medfl.errors import RefusedError
from medfl.methods.aggregation import sample
from medfl.methods.personal import Personal
from medfl.methods.transfer import SENDS, TELLS, Traveller, arrived, is_finite, pack, route
from medfl.types import Tensors
from medfl.utils.tells import Tell, one_of
from medfl.utils.wire import prefixed, select

logger = logging.getLogger(__name__)

ONE = "one"
"""The name of the model where there is but one; otherwise a model has the name of the site for which it began."""

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

    sends: ClassVar[Mapping[str, Kind]] = SENDS
    sends_meta: ClassVar[Mapping[str, Tell]] = {
        **TELLS,
        "trained": Tell("public", one_of("model", none=True), after=("train",)),
    }
    unlike_networks: ClassVar[bool] = False
    posts_parcels: ClassVar[bool] = True

    circulating: Literal["K", "one"] = "K"
    route: Literal["random_permutation", "derangement", "ring"] = "random_permutation"

    def closing(self, server: Server) -> list[str]:
        """Further steps of this round, which all sites take part in; a method's `close` carries them out."""
        return []

    def close(self, site: Site, order: Order) -> Reply:
        """What a site does in a closing step; the order's meta names all ``sites``."""
        raise NotImplementedError

    # ---- the server

    def setup(self, server: Server) -> None:
        """Nobody holds a model yet: its first host makes the initial one."""
        server.state.meta = {"at": {}, "next": 0, "answered": 0}

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

    def steps(self, server: Server) -> list[tuple[str, int]]:
        """Op and turn of each step of this round."""
        turns = range(len(self.turns(server)))
        return [(op, turn) for turn in turns for op in ("send", "train")] + [(op, -1) for op in self.closing(server)]

    def now(self, server: Server) -> int:
        """The number of the next step in `steps`; a turn in which no model moves needs no ``send``."""
        number: int = server.state.meta["next"]
        op, turn = self.steps(server)[number]
        return number + 1 if op == "send" and not self._moves(server, turn) else number

    def plan(self, server: Server) -> Plan | None:
        """The next step of the round."""
        if server.rounds_done >= server.settings.rounds:
            return None
        at, number, steps = server.state.meta["at"], self.now(server), self.steps(server)
        op, turn = steps[number]
        quorum = 0
        if op == "send":
            orders = [Order(site, op, meta={"posts": posts}) for site, posts in self._moves(server, turn).items()]
        elif op == "train":
            pairs = self.turns(server)[turn].items()
            orders = [Order(host, op, meta={"model": model, "from": at.get(model)}) for host, model in pairs]
            quorum = self._quorum(server) if turn == len(self.turns(server)) - 1 else 0
        else:
            orders = [Order(site, op, meta={"sites": server.sites}) for site in server.sites]
        for order in orders:
            holds = sorted(model for model in at if at[model] == order.to)
            order.meta |= {"stamp": [server.round, turn], "holds": holds}
        return Plan(server.round, orders, ends_round=number == len(steps) - 1, quorum=quorum)

    def fold(self, server: Server, replies: Replies) -> None:
        """Note who holds what now, and which step comes next."""
        meta, number, steps = server.state.meta, self.now(server), self.steps(server)
        if steps[number][0] == "train":
            meta["at"] |= {told["trained"]: host for host, told in replies.meta.items() if told["trained"]}
            meta["answered"] += len(replies)
        meta["next"] = (number + 1) % len(steps)
        if meta["next"] == 0:
            meta["answered"] = 0

    def _moves(self, server: Server, turn: int) -> dict[str, dict[str, str]]:
        """Holder to the models that it has to send in a turn, each with its next host."""
        at, moves = server.state.meta["at"], dict[str, dict[str, str]]()
        for host, model in self.turns(server)[turn].items():
            if at.get(model, host) != host:
                moves.setdefault(at[model], {})[model] = host
        return moves

    def _quorum(self, server: Server) -> int:
        """Replies that are still needed in the last turn, so that the round has as many as the run asks for."""
        visits = sum(len(turn) for turn in self.turns(server))
        return max(0, min(server.settings.min_replies, visits) - int(server.state.meta["answered"]))

    # ---- a site

    def work(self, site: Site, order: Order) -> Reply:
        """Do what is asked, after forgetting the models that were trained elsewhere since."""
        asked = order.meta
        site.state.meta["holds"] = asked["holds"]
        forget(site, {*asked["holds"], site.state.meta.get("resident", "")})
        if order.op == "send":
            return Reply(parcels=[_post(site, model, to, asked["stamp"]) for model, to in asked["posts"].items()])
        return self.train(site, order) if order.op == "train" else self.close(site, order)

    def train(self, site: Site, order: Order) -> Reply:
        """Train the model that is here for this turn, and hold it."""
        model = order.meta["model"]
        kept = self._found(site, model, order)
        if not kept:
            return Reply(meta={"trained": ""}, log={"trained": 0.0})
        done, kept = self.go_on(site, kept)
        if not is_finite(kept):
            logger.warning("Round %d: a training at %s diverged; the model goes on as it came.", site.round, site.name)
            return Reply(meta={"trained": ""}, log=done.log | {"trained": 0.0})
        forget(site, set(order.meta["holds"]) - {model})
        site.state.tensors |= prefixed(kept, f"{HELD}{model}/")
        site.state.meta["resident"] = model
        site.state.meta["holds"] = sorted({*order.meta["holds"], model})
        log = done.log | {"trained": 1.0}
        return Reply(meta={"trained": model}, log=log, trained={"personal": Model(site.network, done.after)})

    def begin(self, site: Site, model: str) -> Tensors:
        """The initial tensors of a model."""
        return self.initial(site, "" if model == ONE else model)

    def _found(self, site: Site, model: str, order: Order) -> Tensors:
        """The model that is to be trained: new, held or arrived; empty if it did not come."""
        if order.meta["from"] is None:
            return self.begin(site, model)
        if order.meta["from"] == site.name:
            return held(site, model)
        guest = arrived(site, model, order.meta["stamp"])
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


def _post(site: Site, model: str, to: str, stamp: list[int]) -> Parcel:
    kept = held(site, model)
    if not kept:
        raise RefusedError(f"Site '{site.name}' no longer has the model '{model}', which then can't go on.")
    return pack(to, Traveller(model, site.network, kept), stamp)
