"""Base class of methods whose models move on: a model stays where it was trained until another site trains it.

A round has one or more turns of two steps. In ``send`` the site that holds a model sends a copy to the model's next
host and keeps its own. In ``train`` the hosts train; from then on they hold the trained models. A model is therefore
not lost if its next host is unavailable, and no model is counted twice. The server draws the route, tracks which site
holds each model, and holds no model itself.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import torch

from medfl.contract import Capability, Model, PayloadKind, PeerMessage, Replies, Reply, Request, Server, Site
from medfl.errors import RefusedError
from medfl.toolkit.aggregation import sample_sites
from medfl.toolkit.model_transfer import (
    MODEL_MESSAGE_SCHEMA,
    MODEL_MESSAGE_TENSORS,
    ModelInTransit,
    draw_route,
    is_finite,
    pack_model,
    receive_model,
)
from medfl.toolkit.personal import PersonalModels
from medfl.toolkit.rounds import RoundStep, ScheduledStep
from medfl.types import Meta, Tensors
from medfl.utils.metadata import MetaField, one_of
from medfl.utils.wire import prefixed, select

logger = logging.getLogger(__name__)

SINGLE_MODEL = "one"
"""Name of the model if there is only one. Otherwise a model has the name of the site for which it was initialised."""

CLOSING_TURN = -1
"""Number in place of the turn in requests of the steps that close a round."""

HELD_PREFIX = "held/"
"""Prefix of the tensor names of the models that a site holds, in the site's state: ``held/MODEL/TENSOR``."""


class Relay(PersonalModels):
    """Models that are passed from site to site.

    The metadata of a site's state contain the models that the site holds (``holds``) and the model that it trained last
    (``resident``).

    Attributes:
        circulating: Number of circulating models: ``K``, one for each site with training data, or ``one``, which visits
            all participants in turn in each round.
        route: Route of the models. ``random_permutation``: a model may go to any host, including its present one.
            ``derangement``: every model moves. ``ring``: each model goes to the next host by name. A single model
            visits the sites in the order of their names with ``ring``, and in a new random order in each round
            otherwise.
    """

    sends: ClassVar[Mapping[str, PayloadKind]] = MODEL_MESSAGE_TENSORS
    """Tensors in a site's reply: mapping from each name prefix to the kind of payload, such as an update."""
    sends_meta: ClassVar[Mapping[str, MetaField]] = {
        **MODEL_MESSAGE_SCHEMA,
        "trained": MetaField("public", one_of("model", empty=True), after=("train",)),
    }
    """Metadata in a site's reply: mapping from each key to its type and to whether the value is private."""
    supports = frozenset({Capability.PEER_MESSAGES})
    """Capabilities of the method: sites send messages to each other."""

    circulating: Literal["K", "one"] = "K"
    route: Literal["random_permutation", "derangement", "ring"] = "random_permutation"

    def closing_steps(self, server: Server) -> list[str]:
        """Return the names of further steps of this round, after all turns; none by default.

        A subclass that overrides this adds the steps to `round_steps`, with `to_all` for their requests.
        """
        return []

    # ---- the server

    def setup(self, server: Server) -> None:
        """Initialise the server's state, without any model: the first host of each model initialises the model."""
        server.state.meta = {"at": {}, "answered": 0}

    def turns(self, server: Server) -> list[dict[str, str]]:
        """Draw this round's route: for each turn a mapping from host to the name of the model that the host trains."""
        hosts = sample_sites(server.trainable(), server.settings.fraction, server.shared_rng("participation"))
        if self.circulating == "K":
            held = {owner: owner for owner in server.trainable()} | server.state.meta["at"]
            return [draw_route(hosts, held, self.route, server.shared_rng("route"))]
        if self.route != "ring":
            order = torch.randperm(len(hosts), generator=server.shared_rng("route"))
            hosts = [hosts[index] for index in order.tolist()]
        return [{host: SINGLE_MODEL} for host in hosts]

    def round_steps(self) -> tuple[RoundStep, ...]:
        """Return the steps of a turn: ``send``, in which models move, and ``train``, in which hosts train them."""
        return (
            RoundStep("send", self.send_requests, self.send, quorum=0),
            RoundStep("train", self.requests, self.train, self.aggregate_updates, self.needed_replies),
        )

    def remaining_steps(self, server: Server, done: Sequence[ScheduledStep]) -> Sequence[ScheduledStep]:
        """Return the steps of this round that follow the finished steps `done`.

        A round has the steps of each turn, then the closing steps. A turn in which no model moves has no ``send``.
        """
        turns = range(len(self.turns(server)))
        dues = [ScheduledStep(name, turn) for turn in turns for name in ("send", "train")]
        dues += [ScheduledStep(name) for name in self.closing_steps(server)]
        begun = [dues.index(due) for due in done if due in dues]
        left = dues[max(begun, default=-1) + 1 :]
        return left[1:] if left and left[0].name == "send" and not self._moving_models(server, left[0].turn) else left

    def send_requests(self, server: Server) -> list[Request]:
        """Return the requests to send models, for the sites that hold a model that moves in this turn."""
        turn = self.current_step(server).turn
        moves = self._moving_models(server, turn)
        return [self.request_for(server, turn, site, "send", {"posts": posts}) for site, posts in moves.items()]

    def requests(self, server: Server) -> list[Request]:
        """Return the requests to train the assigned models, for the hosts of this turn."""
        at, turn = server.state.meta["at"], self.current_step(server).turn
        models = {host: {"model": model, "from": at.get(model)} for host, model in self.turns(server)[turn].items()}
        return [self.request_for(server, turn, host, "train", meta) for host, meta in models.items()]

    def to_all(self, op: str, server: Server) -> list[Request]:
        """Return requests for the step `op` to all sites; the metadata contain the names of all sites."""
        return [self.request_for(server, CLOSING_TURN, site, op, {"sites": server.sites}) for site in server.sites]

    def request_for(self, server: Server, turn: int, to: str, op: str, meta: Meta) -> Request:
        """Return a request to a site; the metadata also name the models that the site holds and the turn.

        Args:
            server: Server, which knows where each model is.
            turn: Number of the turn. Round and turn are the stamp by which sites recognise the turn's peer messages.
            to: Name of the site.
            op: Name of the step.
            meta: Further metadata of the request.
        """
        at = server.state.meta["at"]
        holds = sorted(model for model in at if at[model] == to)
        return Request(to, op, meta=meta | {"stamp": [server.round, turn], "holds": holds})

    def aggregate_updates(self, server: Server, replies: Replies) -> None:
        """Record after a step ``train`` which site holds each model, and the number of replies in this round."""
        meta, first = server.state.meta, self.current_step(server).turn == 0
        meta["at"] |= {reply["trained"]: host for host, reply in replies.meta.items() if reply["trained"]}
        meta["answered"] = len(replies) + (0 if first else meta["answered"])

    def needed_replies(self, server: Server) -> int:
        """Return the number of replies that are still needed in the last turn to reach the run's `min_replies`."""
        turns, turn = self.turns(server), self.current_step(server).turn
        if turn < len(turns) - 1:
            return 0
        visits, answered = sum(len(pairs) for pairs in turns), server.state.meta["answered"] if turn else 0
        return max(0, min(server.settings.min_replies, visits) - int(answered))

    def _moving_models(self, server: Server, turn: int) -> dict[str, dict[str, str]]:
        """Return the models that move in a turn: a mapping from holding site to its models with their next hosts."""
        at, moves = server.state.meta["at"], dict[str, dict[str, str]]()
        for host, model in self.turns(server)[turn].items():
            if at.get(model, host) != host:
                moves.setdefault(at[model], {})[model] = host
        return moves

    # ---- a site

    def execute(self, site: Site, request: Request) -> Reply:
        """Execute a request at a site, after deleting the models that other sites have trained since."""
        site.state.meta["holds"] = request.meta["holds"]
        forget(site, {*request.meta["holds"], site.state.meta.get("resident", "")})
        return super().execute(site, request)

    def send(self, site: Site, request: Request) -> Reply:
        """Execute the step ``send``: send copies of models to the models' next hosts."""
        posts, stamp = request.meta["posts"], request.meta["stamp"]
        return Reply(peer_messages=[_peer_message(site, model, to, stamp) for model, to in posts.items()])

    def train(self, site: Site, request: Request) -> Reply:
        """Execute the step ``train``: train the assigned model of this turn, and hold it from then on.

        If the model did not arrive or its training diverges, the reply names no trained model.
        """
        model = request.meta["model"]
        kept = self._model_to_train(site, model, request)
        if not kept:
            return Reply(meta={"trained": ""}, log={"trained": 0.0})
        done, kept = self.continue_training(site, kept)
        if not is_finite(kept):
            logger.warning(
                "Round %d: a training at %s diverged; the model stays as it was received.", site.round, site.name
            )
            return Reply(meta={"trained": ""}, log=done.log | {"trained": 0.0})
        forget(site, set(request.meta["holds"]) - {model})
        site.state.tensors |= prefixed(kept, f"{HELD_PREFIX}{model}/")
        site.state.meta["resident"] = model
        site.state.meta["holds"] = sorted({*request.meta["holds"], model})
        log = done.log | {"trained": 1.0}
        return Reply(meta={"trained": model}, log=log, trained={"personal": Model(site.network, done.after)})

    def initial_model(self, site: Site, model: str) -> Tensors:
        """Return the initial tensors of the model with the name `model`."""
        return self.initial(site, "" if model == SINGLE_MODEL else model)

    def _model_to_train(self, site: Site, model: str, request: Request) -> Tensors:
        """Return the model to train: new, held or received; empty if it did not arrive."""
        if request.meta["from"] is None:
            return self.initial_model(site, model)
        if request.meta["from"] == site.name:
            return held_model(site, model)
        visiting = receive_model(site, model, request.meta["stamp"])
        return visiting.kept if visiting else {}


def held_model(site: Site, model: str) -> Tensors:
    """Return the tensors of a model that a site holds, with the optimiser's state if that travels; else empty."""
    return select(site.state.tensors, f"{HELD_PREFIX}{model}/")


def forget(site: Site, but: set[str]) -> None:
    """Delete the models that a site holds, except those whose names are in `but`."""
    keep = tuple(f"{HELD_PREFIX}{model}/" for model in but)
    site.state.tensors = {
        name: tensor
        for name, tensor in site.state.tensors.items()
        if not name.startswith(HELD_PREFIX) or name.startswith(keep)
    }


def _peer_message(site: Site, model: str, to: str, stamp: list[int]) -> PeerMessage:
    """Return a peer message with a held model. Raise if the site no longer has it."""
    kept = held_model(site, model)
    if not kept:
        raise RefusedError(
            "lost_model",
            f"Site '{site.name}' no longer has the model '{model}', so it can't send the model to its next host.",
            site=site.name,
            model=model,
        )
    return pack_model(to, ModelInTransit(model, site.network, kept), stamp)
