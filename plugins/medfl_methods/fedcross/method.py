"""FedCross as a method class: distribution of model copies for evaluation, and the ensemble that sites export.

The inherited setting `circulating` is the number of models that move, the setting `route` their way from site to site.
A peer message goes from one site to another.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, Literal

from torch import nn

from medfl.contract import Capability, Model, PeerMessage, ReducesTo, Reply, Request, Server, Site
from medfl.task import Task
from medfl.toolkit.model_transfer import TRANSFER_PREFIX
from medfl.toolkit.rounds import RoundStep
from medfl.training.optimizer_state import split_optimizer_state
from medfl.types import Meta, Tensors
from medfl.utils.wire import prefixed, select
from medfl_methods.fedcross.ensemble import new_ensemble
from medfl_methods.fedcross.relay import HELD_PREFIX, SINGLE_MODEL, Relay, held_model

COPY_PREFIX = "seen/"
"""Prefix of tensor names in a site's state: copies of models that the site received for evaluation."""


class FedCross(Relay):
    """Models move from site to site and are trained at each site that they visit; the server never averages them.

    After a round that is evaluated, sites send copies of their models to the sites where they are evaluated. The single
    model goes to all sites and is their ``global`` model. With K models, ``test = ensemble`` sends all models to all
    sites. The ``personal`` model that a site exports is then the ensemble, whose output is the mean of the members'
    probabilities, as in the paper. ``test = owner`` sends each model to the site for which it was initialised, as that
    site's ``personal`` model. A site that is unavailable at that moment is evaluated with the model that it trained
    last.

    Update rule:
        With ``circulating = K`` there are as many models as sites with training data, and in each round each site
        trains the model that the route assigns to it:

            w_m <- local training of w_m at site route(m)

        With ``circulating = one`` a single model visits all sites in turn in each round. The server draws the route,
        tracks which site holds each model, and holds no model itself. A model stays at the site that holds it if it
        cannot reach its host, the host is unavailable, or the training diverges. With partial participation, only
        models that participants hold are distributed among them; the other models wait.

    When to use it: Use it with few sites that trust each other with their models, if averaging loses what sites have
    learned. Each site's raw model reaches another site. With many different sites a model forgets the first ones before
    it returns to them.

    Attributes:
        optimizer_state: ``reset`` starts a new optimiser at each visit; ``travel`` sends the optimiser's state with the
            model.
        test: Evaluated model if K models circulate: ``ensemble`` or ``owner``; no effect with a single model.

    Source: Xu, Deng, Chen, Kuang, Barber, Kim, Gateno, Xia, Yan, Federated Cross Learning for Medical Image
    Segmentation, MIDL 2023; the single model is the FedCross of Weng, Cai, Zhou, FedSKD, arXiv 2503.18981, 2025.
    """

    name = "fedcross"
    family = "peer to peer"
    paper = "Xu et al., MIDL 2023"
    summary = "models move from site to site and are trained at each one; nothing is averaged"
    supports = frozenset({Capability.PEER_MESSAGES})

    presets: ClassVar[Mapping[str, Meta]] = {
        "paper": {"init": "own", "optimizer_state": "travel"},
        "fedskd": {"circulating": "one"},
        "medfl": {},
    }
    reduces_to: ClassVar[tuple[ReducesTo, ...]] = tuple(
        ReducesTo(
            "fedcross_star",
            {"circulating": "K", "test": "owner", "route": "random_permutation", "optimizer_state": state},
            {"p2p_scale": 1, "optimizer_state": state},
        )
        for state in ("reset", "travel")
    )

    optimizer_state: Literal["reset", "travel"] = "reset"
    test: Literal["ensemble", "owner"] = "ensemble"

    @property
    def keeps_optimizer(self) -> bool:
        """True if the optimiser's state travels with the model from site to site."""
        return self.optimizer_state == "travel"

    def closing_steps(self, server: Server) -> list[str]:
        """Return the names of further steps of this round: those that distribute copies, if the round is evaluated."""
        return ["share", "keep"] if server.settings.is_evaluated_after(server.round) else []

    def round_steps(self) -> tuple[RoundStep, ...]:
        """Return all steps that a round can have.

        ``send`` and ``train`` move and train the models; ``share`` and ``keep`` send and store copies for evaluation.
        """
        return (
            *super().round_steps(),
            RoundStep("share", partial(self.to_all, "share"), self.share, quorum=0),
            RoundStep("keep", partial(self.to_all, "keep"), self.keep, quorum=0),
        )

    def share(self, site: Site, request: Request) -> Reply:
        """Execute the step ``share``: send copies of the models that this site holds to sites that evaluate them."""
        return Reply(peer_messages=self.copies(site, request.meta["sites"]))

    def keep(self, site: Site, request: Request) -> Reply:
        """Execute the step ``keep``: store the copies that arrived in this round, and delete older ones."""
        received = [message.tensors for message in site.inbox if message.meta["stamp"] == [site.round]]
        site.state.tensors = {name: t for name, t in site.state.tensors.items() if name.startswith(HELD_PREFIX)}
        for tensors in received:
            site.state.tensors |= prefixed(select(tensors, TRANSFER_PREFIX), COPY_PREFIX)
        site.state.meta["seen"] = site.round
        return Reply()

    def copies(self, site: Site, sites: list[str]) -> list[PeerMessage]:
        """Return the peer messages with copies of this site's models.

        There is one message for each other site that is evaluated with models of this site; it contains all of these.

        Args:
            site: Site that sends the copies.
            sites: Names of all sites.
        """
        held_models = {model: split_optimizer_state(held_model(site, model))[0] for model in site.state.meta["holds"]}
        everywhere = self.circulating == "one" or self.test == "ensemble"
        messages = []
        for to in sites:
            wanted = [model for model in held_models if to != site.name and (everywhere or model == to)]
            tensors = {
                f"{TRANSFER_PREFIX}{model}/{name}": t for model in wanted for name, t in held_models[model].items()
            }
            meta: Meta = {"owner": site.name, "network": site.network, "stamp": [site.round]}
            messages += [PeerMessage(to, tensors, meta)] if wanted else []
        return messages

    def models(self, participant: Server | Site) -> dict[str, Model]:
        """Return the models of a participant that are evaluated and exported, by kind; none for the server.

        A site has a ``global`` model if a single model circulates, otherwise a ``personal`` model.
        """
        if isinstance(participant, Server):
            return {}
        known_models = self.known_models(participant)
        latest = split_optimizer_state(held_model(participant, participant.state.meta.get("resident", "")))[
            0
        ] or self.initial_model(participant, participant.name)
        missed_copies = participant.state.meta.get("seen") != participant.round
        if self.circulating == "one" and not missed_copies:
            return {
                "global": Model(
                    participant.network, known_models.get(SINGLE_MODEL) or self.initial_model(participant, SINGLE_MODEL)
                )
            }
        if self.circulating == "K" and self.test == "owner":
            return {"personal": Model(participant.network, known_models.get(participant.name, latest))}
        if self.circulating == "one" or missed_copies or not known_models:
            return {"personal": Model(participant.network, latest)}
        return {"personal": ensemble_model(participant, known_models)}

    def known_models(self, site: Site) -> dict[str, Tensors]:
        """Return the tensors of the models that a site holds or has copies of, by the name of the model."""
        copies = select(site.state.tensors, COPY_PREFIX)
        seen = {model: select(copies, f"{model}/") for model in {name.partition("/")[0] for name in copies}}
        return seen | {
            model: split_optimizer_state(held_model(site, model))[0] for model in site.state.meta.get("holds", [])
        }

    def network_config(self, model: Model, network_def: Any) -> Any:
        """Return the configuration with which a bundle builds the network of a model.

        Args:
            model: Single model, or ensemble from `ensemble_model`.
            network_def: Configuration of the task's network, of which an ensemble has several copies.
        """
        if not model.meta:
            return network_def
        return {"_target_": "medfl_methods.fedcross.ensemble.ensemble_of", "network": network_def, **model.meta}

    def predictor(self, task: Task, models: list[Model]) -> nn.Module:
        """Return a network that predicts with a model: the task's network, or an ensemble of copies of it."""
        network, meta = models[0].network, models[0].meta
        if meta:
            task = task.with_network(network, partial(new_ensemble, task.networks[network], **meta))
        return super().predictor(task, models)


def ensemble_model(site: Site, members: Mapping[str, Tensors]) -> Model:
    """Join several models to one model, an ensemble in the order of their names; return a single model unchanged.

    Args:
        site: Site with the network and the objective.
        members: Mapping from each member's name to its tensors; at least one.
    """
    if len(members) == 1:
        return Model(site.network, next(iter(members.values())))
    tensors = {
        f"members.{number}.{name}": tensor
        for number, member in enumerate(sorted(members))
        for name, tensor in members[member].items()
    }
    return Model(site.network, tensors, {"size": len(members), "objective": site.task.objective.facts})
