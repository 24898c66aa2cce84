"""FedCross."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, Literal

from torch import nn

from medfl.contract import Capability, Model, PeerMessage, ReducesTo, Reply, Request, Server, Site
from medfl.task import Task
from medfl.toolkit.rounds import Step
from medfl.toolkit.transfer import MODEL
from medfl.training.optimizer_state import split
from medfl.types import Meta, Tensors
from medfl.utils.wire import prefixed, select
from medfl_methods.fedcross.ensemble import new_ensemble
from medfl_methods.fedcross.relay import HELD, ONE, Relay, held

SEEN = "seen/"
"""What copies begin with, in a site's state, that are there to be scored with."""


class FedCross(Relay):
    """Models go from site to site and are trained where they are; nothing is ever averaged.

    With ``circulating = K`` there are as many models as sites with training data, and in each round each site trains
    the one that the route gives it. With ``one`` a single model visits all sites in turn in each round. The server
    draws the route, keeps track of who holds which model, and holds none itself. A model that can't reach its host,
    whose host is away, or whose training is not finite stays with the site that holds it. With partial participation
    the models that participants hold are dealt among them, and the others wait.

    After a round that is evaluated, models are copied to where they are scored. The single model goes to all sites and
    is their ``global`` model. Of K models, ``test = ensemble`` gives all to all: a site's ``personal`` model, which it
    takes home, is the ensemble, whose output is the mean of the members' probabilities, as in the paper. ``test =
    owner`` sends each model to the site for which it began, as that site's ``personal`` model. A site that is away then
    is scored with what it has: the model that it trained last.

    When to use it: Where sites are few, trust each other with their models, and averaging loses what a site has
    learned. Each site's raw model reaches another site; and with many unlike sites a model forgets the first ones
    before it comes back.

    Attributes:
        optimizer_state: ``reset`` starts the optimiser anew at each visit; ``travel`` sends its state with the model.
        test: What is scored where K models circulate: ``ensemble`` or ``owner``; of no effect with a single one.

    Source: Xu, Deng, Chen, Kuang, Barber, Kim, Gateno, Xia, Yan, Federated Cross Learning for Medical Image
    Segmentation, MIDL 2023; the single model is the FedCross of Weng, Cai, Zhou, FedSKD, arXiv 2503.18981, 2025.
    """

    name = "fedcross"
    family = "peer to peer"
    paper = "Xu et al., MIDL 2023"
    summary = "models go from site to site and are trained where they are, nothing is averaged"
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
        """Whether the optimiser goes on."""
        return self.optimizer_state == "travel"

    def closing(self, server: Server) -> list[str]:
        """Copies are shared after a round that is evaluated."""
        return ["share", "keep"] if server.settings.due(server.round) else []

    def round_steps(self) -> tuple[Step, ...]:
        """Models are sent and trained; then copies are shared and kept."""
        return (
            *super().round_steps(),
            Step("share", partial(self.to_all, "share"), self.share, quorum=0),
            Step("keep", partial(self.to_all, "keep"), self.keep, quorum=0),
        )

    def share(self, site: Site, request: Request) -> Reply:
        """Post copies of the models that this site holds."""
        return Reply(peer_messages=self.copies(site, request.meta["sites"]))

    def keep(self, site: Site, request: Request) -> Reply:
        """Keep the copies that came."""
        came = [peer_message.tensors for peer_message in site.inbox if peer_message.meta["stamp"] == [site.round]]
        site.state.tensors = {name: t for name, t in site.state.tensors.items() if name.startswith(HELD)}
        for tensors in came:
            site.state.tensors |= prefixed(select(tensors, MODEL), SEEN)
        site.state.meta["seen"] = site.round
        return Reply()

    def copies(self, site: Site, sites: list[str]) -> list[PeerMessage]:
        """A parcel for each other site that is scored with a model that this one holds; all models in it."""
        mine = {model: split(held(site, model))[0] for model in site.state.meta["holds"]}
        everywhere = self.circulating == "one" or self.test == "ensemble"
        peer_messages = []
        for to in sites:
            wanted = [model for model in mine if to != site.name and (everywhere or model == to)]
            tensors = {f"{MODEL}{model}/{name}": t for model in wanted for name, t in mine[model].items()}
            meta: Meta = {"owner": site.name, "network": site.network, "stamp": [site.round]}
            peer_messages += [PeerMessage(to, tensors, meta)] if wanted else []
        return peer_messages

    def models(self, participant: Server | Site) -> dict[str, Model]:
        """What a site is scored with; nothing at the server."""
        if isinstance(participant, Server):
            return {}
        known = self.known(participant)
        latest = split(held(participant, participant.state.meta.get("resident", "")))[0] or self.begin(
            participant, participant.name
        )
        was_unavailable = participant.state.meta.get("seen") != participant.round  # when copies were shared
        if self.circulating == "one" and not was_unavailable:
            return {"global": Model(participant.network, known.get(ONE) or self.begin(participant, ONE))}
        if self.circulating == "K" and self.test == "owner":
            return {"personal": Model(participant.network, known.get(participant.name, latest))}
        if self.circulating == "one" or was_unavailable or not known:
            return {"personal": Model(participant.network, latest)}
        return {"personal": ensemble_model(participant, known)}

    def known(self, site: Site) -> dict[str, Tensors]:
        """The models that a site holds or has copies of, by name."""
        copies = select(site.state.tensors, SEEN)
        seen = {model: select(copies, f"{model}/") for model in {name.partition("/")[0] for name in copies}}
        return seen | {model: split(held(site, model))[0] for model in site.state.meta.get("holds", [])}

    def network_config(self, model: Model, network_def: Any) -> Any:
        """Return the configuration of the model's network; for an ensemble, of several such networks."""
        if not model.meta:
            return network_def
        return {"_target_": "medfl_methods.fedcross.ensemble.ensemble_of", "network": network_def, **model.meta}

    def predictor(self, task: Task, models: list[Model]) -> nn.Module:
        """Return the network, or the ensemble of its members."""
        network, meta = models[0].network, models[0].meta
        if meta:
            task = task.with_network(network, partial(new_ensemble, task.networks[network], **meta))
        return super().predictor(task, models)


def ensemble_model(site: Site, members: Mapping[str, Tensors]) -> Model:
    """Return the ensemble of some models as one model, in the order of their names; a single model as it is.

    Args:
        site: Gives the network and the objective.
        members: Maps each member's name to its tensors; at least one.
    """
    if len(members) == 1:
        return Model(site.network, next(iter(members.values())))
    tensors = {
        f"members.{number}.{name}": tensor
        for number, member in enumerate(sorted(members))
        for name, tensor in members[member].items()
    }
    return Model(site.network, tensors, {"size": len(members), "objective": site.task.objective.facts})
