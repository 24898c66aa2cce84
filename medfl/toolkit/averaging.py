"""The base of most methods: sites train from the server's model and reply with updates; the server averages them.

A method overrides what it changes: at a site what `medfl.toolkit.local_training` lists, such as `loss`; here `shared`
(what is exchanged), `weight`, `weights_of`, `server_update`, for tensors beside the model `extra_down`, `extra_weights`
`aggregate_extra`, and for rounds of several steps `round_steps` and `schedule` (`medfl.toolkit.rounds`). Unchanged,
it is FedAvg (McMahan et al., AISTATS 2017).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from torch import nn

from medfl.contract import (
    Capability,
    Filter,
    Findings,
    Model,
    Need,
    PayloadKind,
    ReducesTo,
    Replies,
    Reply,
    Request,
    Server,
    Site,
)
from medfl.errors import SettingsError
from medfl.hooks import PROMISES
from medfl.networks.norms import buffer_names, norm_names
from medfl.privacy.policy import policy_of
from medfl.settings import participants
from medfl.task import Task
from medfl.toolkit.aggregation import (
    add_update,
    check_updates,
    mean_updates,
    normalised,
    sample,
    subtract,
)
from medfl.toolkit.kept import KEPT, add_to_kept, shared_of
from medfl.toolkit.local_training import LocalTraining, own_model
from medfl.toolkit.robust.rule import check_rule, robust_mean
from medfl.toolkit.rounds import Rounds, Step
from medfl.types import MODEL, Meta, Tensors
from medfl.utils.metadata import Count, MetaField
from medfl.utils.text import names_and_more
from medfl.utils.wire import prefixed, select

Weighting = Literal["size", "uniform", "method", "none"]
"""Weighting of the sites' models at the server: by their numbers of training images; all alike; by weights that the
method computes itself; or not at all, since it averages no models."""


class Averaging(Rounds, LocalTraining):
    """Averaging of the updates of participating sites, each weighted by its number of training images.

    Under a privacy setting sizes stay at home and the weights are uniform.

    A class declares its capabilities in `supports`. Two of them are promises, and a subclass does not inherit them.

    * `Capability.DP_SGD`: a site's data enter the updates only through `loss`, in one `fit` a round. DP-SGD makes these
      gradients private and nothing else. A second `fit` in a step is refused then. Check this promise carefully in a
      class that overrides more than `loss` and the server's part.
    * `Capability.ROBUST`: the server computes one mean of the updates, weighted by sizes or uniformly, and a robust
      rule (``settings.robust``) can replace it. Check this promise in a class that overrides `sends`, `weight`,
      `weights_of`, `round_steps`, `plan`, `aggregate`, `average`, `fold`, `extra_weights` or `aggregate_extra`.
    """

    name: ClassVar[str]
    """Name that users type. Each method declares its own name, family, paper and summary."""
    family: ClassVar[str]
    """Heading under which similar methods are listed, for example ``averaging`` or ``personal``."""
    paper: ClassVar[str]
    """Publication, for example ``McMahan et al., AISTATS 2017``; may be empty."""
    summary: ClassVar[str]
    """One line for lists of methods."""

    sends: ClassVar[Mapping[str, PayloadKind]] = {MODEL: "update"}
    sends_meta: ClassVar[Mapping[str, MetaField]] = {"size": MetaField("private", Count)}
    supports: ClassVar[frozenset[Capability]] = frozenset({Capability.ROBUST})
    needs: ClassVar[frozenset[Need]] = frozenset()
    presets: ClassVar[Mapping[str, Meta]] = {"paper": {}, "medfl": {}}
    preset_settings: ClassVar[Mapping[str, Meta]] = {}
    reduces_to: ClassVar[tuple[ReducesTo, ...]] = ()

    @property
    def active_supports(self) -> frozenset[Capability]:
        """Capabilities of the class, without `PROMISES` unless the class declares `supports` itself."""
        return self.supports if "supports" in vars(type(self)) else self.supports - PROMISES

    @property
    def active_needs(self) -> frozenset[Need]:
        """Those of the class, unless it says otherwise."""
        return self.needs

    @property
    def weighting(self) -> Weighting:
        """The weighting of the sites' models with these settings, as `weight` and `weights_of` compute it."""
        if MODEL not in self.sends:
            return "none"
        if type(self).weights_of is not Averaging.weights_of:
            return "method"
        alike = dict.fromkeys([*self.sends_meta, "size"], 1.0)
        once = self.weight(alike)
        if any(self.weight(alike | {key: 3.0}) != once for key in alike if key != "size"):
            return "method"
        return "uniform" if self.weight(alike | {"size": 3.0}) == once else "size"

    # ---- what a method overrides

    def shared(self, model: nn.Module, norm_sync: str) -> list[str]:
        """State-dict names that are exchanged, by the policy for normalisation layers (rule G-2)."""
        norms = norm_names(model)
        personal = {"none": norms, "params": norms & buffer_names(model)}.get(norm_sync, set())
        return [name for name in model.state_dict() if name not in personal]

    def weight(self, meta: Meta) -> float:
        """Weight of a reply before normalisation, >= 0; `meta` lacks what a site's policy keeps at home."""
        return float(meta.get("size", 1.0))

    def weights_of(self, server: Server, metas: Mapping[str, Meta]) -> dict[str, float]:
        """Weights of all replies before normalisation, by site; for a method whose weights hang on each other."""
        return {name: self.weight(meta) for name, meta in metas.items()}

    def server_update(self, server: Server, old: Tensors, mean: Tensors) -> Tensors:
        """The new shared tensors from the old ones and the mean update; plain averaging adds the two.

        Args:
            server: Its state's tensors may keep, under names that begin with `KEPT`, what a server optimiser needs; its
                meta lists the trainable ``parameters``.
            old: The shared tensors that the sites started from.
            mean: Mean update, float64 for floating tensors; for integer buffers the largest update.
        """
        return {name: add_update(tensor, mean[name]) if name in mean else tensor for name, tensor in old.items()}

    # ---- tensors beside the model

    def extra_down(self, server: Server) -> Tensors:
        """What each order brings beside what is published; a site finds it in `Fit.received`."""
        return {}

    def extra_weights(self, server: Server, metas: Mapping[str, Meta]) -> dict[str, float]:
        """Weights of what came beside the updates, before normalisation, by site; by default those of the updates."""
        return self.weights_of(server, metas)

    def aggregate_extra(self, server: Server, prefix: str, mean: Tensors, replied: int) -> None:
        """Take in what came beside the updates; by default it is added to what the server keeps under the prefix.

        Args:
            server: After `server_update`.
            prefix: In `sends`, but not the model's.
            mean: As in `server_update`, by names without the prefix. A site that sent none counts as zeros.
            replied: How many sites replied.
        """
        add_to_kept(server, prefix, mean)

    # ---- the step of a round

    def round_steps(self) -> tuple[Step, ...]:
        """One: this round's participants train, and their updates are averaged."""
        return (Step("fit", self.requests, self.train, self.aggregate_updates),)

    def requests(self, server: Server) -> list[Request]:
        """To this round's participants, with the server's model."""
        chosen = sample(server.trainable(), server.settings.fraction, server.shared_rng("participation"))
        tensors = self.publish(server) | self.extra_down(server)
        return [Request(name, "fit", tensors) for name in chosen]

    def train(self, site: Site, request: Request) -> Reply:
        """Train from the received tensors, keep the personal ones, reply with the update of the shared ones."""
        received = select(request.tensors, MODEL)
        done, models = self.train_in_turn(site, request.tensors, self.start(site, received))
        personal = {name: done.after[name] for name in done.after if name not in received}
        site.state.tensors = prefixed(select(site.state.tensors, KEPT), KEPT) | personal
        update = prefixed({name: subtract(done.after[name], old) for name, old in received.items()}, MODEL)
        return Reply(update | done.extra, {"size": len(site.train)} | done.meta, log=done.log, trained=models)

    def aggregate_updates(self, server: Server, replies: Replies) -> None:
        """Weighted mean of the updates, then `server_update`; then the means of what came beside them."""
        self.average(server, replies, [prefix for prefix in self.sends if prefix != MODEL])

    # ---- the contract

    def filters(self) -> tuple[Filter, ...]:
        """Updates leave as they are."""
        return ()

    def setup(self, server: Server) -> None:
        """The common initial model.

        Raises:
            SettingsError: If noise would fall on running statistics, or a robust rule needs more replies than come.
        """
        if server.settings.robust is not None:
            check_rule(server.settings.robust, participants(len(server.trainable()), server.settings.fraction))
        tensors = server.task.initial(server.settings.seed)
        model = server.task.load(tensors)
        names = self.shared(model, server.settings.norm_sync)
        if policy_of(server.settings).is_private:
            refuse_noisy_statistics(model, names)
        server.state.tensors = {name: tensors[name] for name in names}
        server.state.meta["parameters"] = [name for name, _ in model.named_parameters() if name in set(names)]
        server.state.meta["complete"] = len(names) == len(tensors)

    def check_tensors(self, task: Task, request: Request, tensors: Tensors) -> None:
        """Updates are of the order's tensors, and there are those that the step says."""
        steps = {step.name: step.updates for step in self.round_steps()}
        needed = steps.get(request.op, ())  # a method that plans orders of its own knows what it needs
        check_updates(tensors, request.tensors, self.sends, self.sends if needed is None else needed)

    def publish(self, server: Server) -> Tensors:
        """The shared tensors."""
        return prefixed(shared_of(server), MODEL)

    def findings(self, server: Server) -> Findings:
        """Nothing beside the scores."""
        return Findings()

    def models(self, participant: Server | Site) -> dict[str, Model]:
        """The server's model where all of it is shared, otherwise each site's own; and what a site trains apart."""
        if isinstance(participant, Server):
            complete = participant.state.meta.get("complete", False)
            return {"global": Model(participant.task.network, shared_of(participant))} if complete else {}
        received = select(participant.published, MODEL)
        tensors = self.full_state(participant, received)
        kind = "global" if len(received) == len(tensors) else "personal"
        models = {kind: Model(participant.network, tensors)}
        for training in self.trainings(participant):
            if training.apart:
                models["personal"] = Model(participant.network, own_model(participant, training, tensors))
        return models

    def task_of(self, task: Task) -> Task:
        """The run's networks as they are."""
        return task

    def network_config(self, model: Model, network_def: Any) -> Any:
        """The run's network as it is."""
        return network_def

    def predictor(self, task: Task, models: list[Model]) -> nn.Module:
        """The first model as it is."""
        return task.load(models[0].tensors, models[0].network).eval()

    # ---- pieces

    def average(self, server: Server, replies: Replies, further: Sequence[str] = ()) -> None:
        """Fold the updates of the model, and what came beside them under further prefixes, by `aggregate_extra`.

        Under a robust rule its value stands in place of the mean, and nothing comes beside the updates.
        """
        if not len(replies):
            return
        if server.settings.robust is not None:
            update = robust_mean(server, replies, server.settings.robust)
            server.state.tensors |= self.server_update(server, shared_of(server), update)
            return
        weights = {MODEL: normalised(self.weights_of(server, replies.meta), replies.meta)}
        if further:
            beside = normalised(self.extra_weights(server, replies.meta), replies.meta)
            weights |= dict.fromkeys(further, beside)
        means = mean_updates(replies, weights)
        server.state.tensors |= self.server_update(server, shared_of(server), means[MODEL])
        for prefix in further:
            if means[prefix]:
                self.aggregate_extra(server, prefix, means[prefix], len(replies))


def refuse_noisy_statistics(model: nn.Module, names: list[str]) -> None:
    """Under privacy all that is shared carries noise, and a noisy running variance may fall below zero.

    Raises:
        SettingsError: If running statistics are shared.
    """
    noisy = sorted(norm_names(model) & buffer_names(model) & set(names))
    if noisy:
        raise SettingsError(
            "noisy_statistics",
            "Under a privacy setting the running statistics of normalisation layers can't be shared, got "
            f"{names_and_more(noisy, 3)}: noise would turn variances negative. Set norm_sync to 'params' or 'none', or "
            "use group norm.",
            setting="norm_sync",
            tensors=noisy,
        )
