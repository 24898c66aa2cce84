"""Base class of methods in which the sites' models circulate: in each round, other sites train them.

An owner is the site that a model belongs to; a host is the site that trains the model in a round; a visiting model is
a model at a host that is not its owner.

A round has up to three steps. ``send``: each owner sends a copy of its model to the host that the route assigns, and
keeps its own state. ``train``: the hosts train. ``home``: owners store the returned models. The server plans the route
and has no model. This base class trains the visiting model and returns it; a method may override `train`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import ClassVar, Literal

from pydantic import field_validator

from medfl.contract import Capability, Model, PayloadKind, Reply, Request, Server, Site
from medfl.toolkit.aggregation import sample_sites
from medfl.toolkit.model_transfer import (
    MODEL_MESSAGE_SCHEMA,
    MODEL_MESSAGE_TENSORS,
    ModelInTransit,
    draw_route,
    is_finite,
    pack_model,
    receive_model,
    unpack_model,
    with_host_settings,
)
from medfl.toolkit.personal import PersonalModels
from medfl.toolkit.rounds import RoundStep, ScheduledStep
from medfl.types import Meta, Tensors
from medfl.utils.metadata import MetaField, one_of

logger = logging.getLogger(__name__)
"""Logger of this module."""


class CirculatingModels(PersonalModels):
    """Models that are sent to other sites, trained there and returned.

    Attributes:
        route: Assignment of models to hosts: ``random_permutation``; ``derangement``, in which every model moves; or
            ``identity``, in which none moves.
        p2p_scale: Factor for the run's local epochs (or steps), an integer >= 1; ``N`` means the number of sites with
            training data.
    """

    sends: ClassVar[Mapping[str, PayloadKind]] = MODEL_MESSAGE_TENSORS
    """Mapping from each name prefix of tensors in peer messages to the kind of these tensors."""
    sends_meta: ClassVar[Mapping[str, MetaField]] = {
        **MODEL_MESSAGE_SCHEMA,
        "visiting_owner": MetaField("public", one_of("owner", empty=True)),
    }
    """Mapping from each metadata key of replies and peer messages to its type and its disclosure."""
    supports: ClassVar[frozenset[Capability]] = PersonalModels.supports | {Capability.PEER_MESSAGES}
    """Capabilities of the method: different networks, and messages between sites."""

    route: Literal["random_permutation", "derangement", "identity"] = "random_permutation"
    p2p_scale: Literal["N"] | int = "N"

    @field_validator("p2p_scale")
    @classmethod
    def _at_least_one(cls, value: str | int) -> str | int:
        """Raise if `p2p_scale` is below 1."""
        if isinstance(value, int) and value < 1:
            raise ValueError("expected 'N' or a whole number >= 1")
        return value

    def visiting_models_return(self, server: Server) -> bool:
        """Return True if hosts train their visiting models and return them in this round."""
        return True

    # ---- steps of a round

    def round_steps(self) -> tuple[RoundStep, ...]:
        """Return the steps that a round may contain: ``send``, ``train`` and ``home``."""
        return (
            RoundStep("send", partial(self.requests_to_owners, "send"), self.send, quorum=0),
            RoundStep("train", self.requests, self.train),
            RoundStep("home", partial(self.requests_to_owners, "home"), quorum=0),
        )

    def remaining_steps(self, server: Server, done: Sequence[ScheduledStep]) -> Sequence[ScheduledStep]:
        """Return the remaining steps: only ``train`` if no model moves, and ``home`` only if the models return."""
        if all(host == owner for host, owner in self.owner_by_host(server).items()):
            names = ["train"]
        else:
            names = ["send", "train", "home"] if self.visiting_models_return(server) else ["send", "train"]
        return [ScheduledStep(name) for name in names[len(done) :]]

    def owner_by_host(self, server: Server) -> dict[str, str]:
        """Return the owner of the model that each of this round's participants hosts, by host.

        All methods draw the same route.
        """
        hosts = sample_sites(server.trainable(), server.settings.fraction, server.shared_rng("participation"))
        return draw_route(hosts, {host: host for host in hosts}, self.route, server.shared_rng("route"))

    def requests(self, server: Server) -> list[Request]:
        """Return the requests to train, one per host."""
        scale = len(server.trainable()) if self.p2p_scale == "N" else self.p2p_scale
        meta: Meta = {"scale": scale, "returns": self.visiting_models_return(server)}
        return [
            Request(host, "train", meta=meta | {"owner": owner}) for host, owner in self.owner_by_host(server).items()
        ]

    def requests_to_owners(self, op: str, server: Server) -> list[Request]:
        """Return the requests of the step `op`, ``send`` or ``home``, to the owners whose models move."""
        pairs, returns = self.owner_by_host(server).items(), self.visiting_models_return(server)
        return [Request(owner, op, meta={"to": host, "returns": returns}) for host, owner in pairs if host != owner]

    # ---- a site

    def execute(self, site: Site, request: Request) -> Reply:
        """Store the site's own model if it was returned, then execute the request."""
        self.store_returned_model(site)
        return super().execute(site, request)

    def send(self, site: Site, request: Request) -> Reply:
        """Send a copy of the site's own model to its host."""
        mine = ModelInTransit(site.name, site.network, self.sent_model(site, request))
        return Reply(peer_messages=[pack_model(request.meta["to"], mine, [site.round])])

    def sent_model(self, site: Site, request: Request) -> Tensors:
        """Return the tensors of the site's own model that are sent to its host."""
        return self.own(site)

    def store_returned_model(self, site: Site) -> None:
        """Store the last returned own model in the site's state, even if it arrived while the site was unavailable."""
        for peer_message in site.inbox:
            if peer_message.meta["owner"] == site.name:  # at most one: an unavailable site sends no model
                site.state.tensors = unpack_model(peer_message).kept

    def train(self, site: Site, request: Request) -> Reply:
        """Train the visiting model and return it to its owner, or train and store the own model if no model visits.

        A model whose training diverges is neither stored nor returned.
        """
        owner = request.meta["owner"]
        visiting = self.visiting_model(site, owner)
        if visiting is None:
            return Reply(meta={"visiting_owner": ""}, log={"trained": 0.0})
        done, kept = self.continue_training(
            with_host_settings(site, visiting.network, request.meta["scale"]), visiting.kept
        )
        if not is_finite(kept):
            logger.warning("Round %d: training at %s diverged; the model stays unchanged.", site.round, site.name)
            return Reply(meta={"visiting_owner": ""}, log=done.log | {"trained": 0.0})
        reply = Reply(
            meta={"visiting_owner": owner},
            log=done.log | {"trained": 1.0},
            trained={"personal": Model(visiting.network, done.after)},
        )
        if owner == site.name:
            site.state.tensors = kept
        else:
            reply.peer_messages = [pack_model(owner, ModelInTransit(owner, visiting.network, kept), [site.round])]
        return reply

    def visiting_model(self, site: Site, owner: str) -> ModelInTransit | None:
        """Return the model of `owner` that this site hosts in this round, or None if it did not arrive."""
        if owner == site.name:
            return ModelInTransit(site.name, site.network, self.own(site))
        return receive_model(site, owner, [site.round])
