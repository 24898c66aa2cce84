"""Federated averaging, and the base class of most methods.

Sites train from the server's model and reply with updates; the server averages the updates. As it is, `Averaging` is
FedAvg (McMahan et al., AISTATS 2017). A method is a subclass that overrides some of these methods:

* at a site, the hooks of `medfl.toolkit.local_training.LocalTraining`, such as `loss`;
* for the exchanged tensors and their aggregation, `shared_names`, `weight`, `weights_of` and `server_update`;
* for tensors besides the model, `extra_request_tensors`, `extra_weights` and `aggregate_extra`;
* for rounds of several steps, `round_steps` and `remaining_steps` (`medfl.toolkit.rounds`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from torch import nn

from medfl.contract import (
    Capability,
    Filter,
    Findings,
    Method,
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
from medfl.hooks import UNINHERITED_CAPABILITIES
from medfl.networks.norms import buffer_names, norm_names
from medfl.networks.transfer.adapters.tensors import is_residual
from medfl.privacy.policy import policy_of
from medfl.settings import participant_count
from medfl.task import Task
from medfl.toolkit.aggregation import (
    add_update,
    check_factors,
    check_updates,
    mean_residuals,
    mean_updates,
    moving_average,
    normalised_weights,
    sample_sites,
    subtract,
)
from medfl.toolkit.local_training import LocalTraining, stored_personal_model
from medfl.toolkit.participant_state import (
    AUXILIARY_PREFIX,
    add_to_auxiliary_state,
    auxiliary_state,
    model_tensors,
    set_auxiliary_state,
)
from medfl.toolkit.robust.rule import check_rule, robust_mean
from medfl.toolkit.rounds import MultiStepMethod, RoundStep
from medfl.types import MODEL_PREFIX, Meta, Tensors
from medfl.utils.metadata import Count, MetaField
from medfl.utils.text import names_and_more
from medfl.utils.wire import prefixed, select

Weighting = Literal["size", "uniform", "method", "none"]
"""Weighting of the sites' models at the server.

``size`` weights by the number of training images, ``uniform`` weights all sites equally, ``method`` uses weights that
the method computes, and ``none`` means that the server averages no models.
"""

AVERAGE_PREFIX = "ema/"
"""Prefix, in the server's auxiliary state, of the moving average of the shared tensors."""


class Averaging(MultiStepMethod, LocalTraining):
    """Federated averaging of the participating sites' updates, weighted by their numbers of training images.

    Under a privacy setting the sizes don't leave the sites, and the weights are uniform.

    A class declares its capabilities in `supports`. Three of them are promises, which a subclass does not inherit:

    * `Capability.DP_SGD`: a site's data enter the updates only through `loss`, in one `fit` per round. DP-SGD makes
      only these gradients private, so a second `fit` in a step is refused. Check this promise carefully in a class that
      overrides more than `loss` and the server's part.
    * `Capability.ROBUST`: the server computes one mean of the updates, weighted by sizes or uniformly, which a robust
      rule (``settings.robust``) can replace. Check this promise in a class that overrides `sends`, `weight`,
      `weights_of`, `round_steps`, `plan`, `aggregate_updates`, `average`, `aggregate`, `extra_weights` or
      `aggregate_extra`.
    * `Capability.EXACT_ADAPTERS`: each site trains from the received tensors, and the server adds the weighted mean of
      the updates. Check this promise in a class that overrides `start`, `server_update`, `round_steps`, `plan`,
      `train`, `aggregate_updates`, `average` or `aggregate`.
    """

    name: ClassVar[str]
    """Name of the method as users type it. Each method declares its own name, family, paper and summary."""
    family: ClassVar[str]
    """Heading under which lists group similar methods, for example ``averaging`` or ``personal``."""
    paper: ClassVar[str]
    """Publication, for example ``McMahan et al., AISTATS 2017``; may be empty."""
    summary: ClassVar[str]
    """Summary of the method in one line, for lists of methods."""

    sends: ClassVar[Mapping[str, PayloadKind]] = {MODEL_PREFIX: "update"}
    """Mapping from each name prefix of sent tensors to the kind of these tensors."""
    sends_meta: ClassVar[Mapping[str, MetaField]] = {"size": MetaField("private", Count)}
    """Mapping from each metadata key of a reply to its type and its disclosure under a privacy setting."""
    supports: ClassVar[frozenset[Capability]] = frozenset({Capability.ROBUST})
    """Capabilities of the method, such as DP-SGD or robust rules."""
    needs: ClassVar[frozenset[Need]] = frozenset()
    """Requirements that the task or the run must meet, for example class labels."""
    presets: ClassVar[Mapping[str, Meta]] = {"paper": {}, "medfl": {}}
    """Mapping from each preset, a named set of values such as ``paper``, to settings of the method."""
    preset_settings: ClassVar[Mapping[str, Meta]] = {}
    """Mapping from each preset to the settings of the run that belong to it."""
    reduces_to: ClassVar[tuple[ReducesTo, ...]] = ()
    """Limit cases in which the method equals another one."""

    @property
    def active_supports(self) -> frozenset[Capability]:
        """Capabilities with the current settings: `supports`, without uninherited ones that a parent class declared."""
        return self.supports if "supports" in vars(type(self)) else self.supports - UNINHERITED_CAPABILITIES

    @property
    def active_needs(self) -> frozenset[Need]:
        """Requirements of the method with its current settings; by default `needs` of the class."""
        return self.needs

    @property
    def weighting(self) -> Weighting:
        """Weighting of the sites' models with the current settings, derived from `weight` and `weights_of`."""
        if MODEL_PREFIX not in self.sends:
            return "none"
        if type(self).weights_of is not Averaging.weights_of:
            return "method"
        alike = dict.fromkeys([*self.sends_meta, "size"], 1.0)
        once = self.weight(alike)
        if any(self.weight(alike | {key: 3.0}) != once for key in alike if key != "size"):
            return "method"
        return "uniform" if self.weight(alike | {"size": 3.0}) == once else "size"

    # ---- methods to override

    def shared_names(self, model: nn.Module, norm_sync: str) -> list[str]:
        """Return the state-dict names of the tensors that sites and server exchange.

        Args:
            model: A network of the run.
            norm_sync: Setting of the run that excludes all tensors (``none``) or the buffers (``params``) of
                normalisation layers.
        """
        norms = norm_names(model)
        personal = {"none": norms, "params": norms & buffer_names(model)}.get(norm_sync, set())
        return [name for name in model.state_dict() if name not in personal]

    def weight(self, meta: Meta) -> float:
        """Return the weight of a reply before normalisation, >= 0.

        Args:
            meta: Metadata of the reply, without the fields that the site's policy withholds.
        """
        return float(meta.get("size", 1.0))

    def weights_of(self, server: Server, metas: Mapping[str, Meta]) -> dict[str, float]:
        """Return the weight of each site's reply before normalisation.

        Override this instead of `weight` if a site's weight depends on the other replies.

        Args:
            server: The server.
            metas: Mapping from each site to the metadata of its reply.
        """
        return {name: self.weight(meta) for name, meta in metas.items()}

    def server_update(self, server: Server, old: Tensors, mean: Tensors) -> Tensors:
        """Compute the new shared tensors from the old ones and the mean update; by default their sum.

        Args:
            server: The server. Its state's metadata list the trainable ``parameters``. Its state's tensors may store
                the memory of a server optimiser under names that start with `AUXILIARY_PREFIX`.
            old: Shared tensors that the sites started from.
            mean: Mean update, in float64 for floating tensors; for integer buffers the largest update.
        """
        return {name: add_update(tensor, mean[name]) if name in mean else tensor for name, tensor in old.items()}

    # ---- tensors besides the model

    def extra_request_tensors(self, server: Server) -> Tensors:
        """Return tensors for each request besides the published ones. Sites find them in `Fit.received`."""
        return {}

    def extra_weights(self, server: Server, metas: Mapping[str, Meta]) -> dict[str, float]:
        """Return the weight of each site's tensors besides the model; by default the weight of its update.

        Args:
            server: The server.
            metas: Metadata of the replies by site.
        """
        return self.weights_of(server, metas)

    def aggregate_extra(self, server: Server, prefix: str, mean: Tensors, replied: int) -> None:
        """Aggregate tensors of the replies besides the model; by default add their mean to the auxiliary state.

        The auxiliary state consists of tensors that are saved with the state and never sent.

        Args:
            server: The server, after `server_update`.
            prefix: Prefix of the tensors in `sends`, other than the model's.
            mean: Mean tensors, float64, by names without the prefix. A site that sent no such tensors counts as zeros.
            replied: Number of sites that replied.
        """
        add_to_auxiliary_state(server, prefix, mean)

    # ---- the step of a round

    def round_steps(self) -> tuple[RoundStep, ...]:
        """Return the only step of a round, ``fit``: participants train, and the server averages their updates."""
        return (RoundStep("fit", self.requests, self.train, self.aggregate_updates),)

    def requests(self, server: Server) -> list[Request]:
        """Return requests with the server's model to the sites that are drawn for this round."""
        chosen = sample_sites(server.trainable(), server.settings.fraction, server.shared_rng("participation"))
        tensors = self.publish(server) | self.extra_request_tensors(server)
        if auxiliary_state(server, AVERAGE_PREFIX):  # sites train from the model, not from its published average
            tensors |= prefixed(model_tensors(server), MODEL_PREFIX)
        return [Request(name, "fit", tensors) for name in chosen]

    def train(self, site: Site, request: Request) -> Reply:
        """Train from the received tensors, and reply with the update of the shared tensors.

        Stores the personal tensors in the site's state.
        """
        received = select(request.tensors, MODEL_PREFIX)
        done, models = self.run_trainings(site, request.tensors, self.start(site, received))
        personal = {name: done.after[name] for name in done.after if name not in received}
        site.state.tensors = prefixed(select(site.state.tensors, AUXILIARY_PREFIX), AUXILIARY_PREFIX) | personal
        sent = {name: old for name, old in received.items() if not is_residual(name)}
        update = prefixed({name: subtract(done.after[name], old) for name, old in sent.items()}, MODEL_PREFIX)
        return Reply(update | done.extra, {"size": len(site.train)} | done.meta, log=done.log, trained=models)

    def aggregate_updates(self, server: Server, replies: Replies) -> None:
        """Average the updates, apply `server_update`, and aggregate the further tensors of the replies."""
        self.average(server, replies, [prefix for prefix in self.sends if prefix != MODEL_PREFIX])

    # ---- the contract

    def filters(self) -> tuple[Filter, ...]:
        """Return the filters that encode replies before they leave a site: none, updates are sent unchanged."""
        return ()

    def setup(self, server: Server) -> None:
        """Store the initial shared tensors in the server's state.

        Raises:
            SettingsError: If noise would be added to running statistics, or a robust rule needs more replies than a
                round has.
        """
        if server.settings.robust is not None:
            check_rule(server.settings.robust, participant_count(len(server.trainable()), server.settings.fraction))
        tensors = server.task.initial(server.settings.seed)
        model = server.task.load(tensors)
        names = self.shared_names(model, server.settings.norm_sync)
        if policy_of(server.settings).is_private:
            refuse_noisy_statistics(model, names)
        server.state.tensors = {name: tensors[name] for name in names}
        server.state.meta["parameters"] = [name for name, _ in model.named_parameters() if name in set(names)]
        server.state.meta["complete"] = len(names) == len(tensors)

    def check_tensors(self, task: Task, request: Request, tensors: Tensors) -> None:
        """Raise if a reply's updates don't fit the request's tensors, or the step's required updates are missing."""
        steps = {step.name: step.updates for step in self.round_steps()}
        needed = steps.get(request.op, ())  # a method that overrides `plan` checks its own requests
        check_updates(tensors, request.tensors, self.sends, self.sends if needed is None else needed)
        check_factors(tensors, request.tensors)

    def publish(self, server: Server) -> Tensors:
        """Return the tensors that every site needs for its evaluation and export: the shared tensors or their average.

        They are a moving average over the rounds if the setting ``optimization.ema`` asks for it.
        """
        return prefixed(_evaluated_tensors(server), MODEL_PREFIX)

    def findings(self, server: Server) -> Findings:
        """Return results for the report at the end of the run, besides the scores: none."""
        return Findings()

    def models(self, participant: Server | Site) -> dict[str, Model]:
        """Return the models of a participant for evaluation and export, by kind.

        The server has a ``global`` model if all tensors are shared. A site has a ``global`` model if it received all
        tensors, otherwise a ``personal`` one, and a ``personal`` model from a separate personal training.
        """
        if isinstance(participant, Server):
            complete = participant.state.meta.get("complete", False)
            return {"global": Model(participant.task.network, _evaluated_tensors(participant))} if complete else {}
        received = select(participant.published, MODEL_PREFIX)
        tensors = self.full_state(participant, received)
        kind = "global" if len(received) == len(tensors) else "personal"
        models = {kind: Model(participant.network, tensors)}
        for training in self.trainings(participant):
            if training.apart:
                models["personal"] = Model(participant.network, stored_personal_model(participant, training, tensors))
        return models

    def task_of(self, task: Task) -> Task:
        """Return the task with the method's own networks or heads: the task unchanged."""
        return task

    def network_config(self, model: Model, network_def: Any) -> Any:
        """Return the MONAI configuration of the network in an exported bundle: `network_def`, unchanged."""
        return network_def

    def predictor(self, task: Task, models: list[Model]) -> nn.Module:
        """Return a network that predicts with the models: the first model's network in evaluation mode."""
        return task.load(models[0].tensors, models[0].network).eval()

    # ---- helpers for subclasses

    def average(self, server: Server, replies: Replies, further: Sequence[str] = ()) -> None:
        """Average the model's updates and the tensors with further prefixes, and update the server's state in place.

        With a robust rule, the rule's result replaces the mean of the updates, and further tensors are ignored. Without
        replies nothing changes.

        Args:
            server: The server.
            replies: Replies of the sites.
            further: Prefixes of the further tensors to average, besides the model's.
        """
        if not len(replies):
            return
        if server.settings.robust is not None:
            update = robust_mean(server, replies, server.settings.robust)
            server.state.tensors |= self.server_update(server, model_tensors(server), update)
            _update_average(server)
            return
        weights = {MODEL_PREFIX: normalised_weights(self.weights_of(server, replies.meta), replies.meta)}
        if further:
            extra_weights = normalised_weights(self.extra_weights(server, replies.meta), replies.meta)
            weights |= dict.fromkeys(further, extra_weights)
        means, old = mean_updates(replies, weights), model_tensors(server)
        new = self.server_update(server, old, means[MODEL_PREFIX])
        server.state.tensors |= new | mean_residuals(old, new, replies, weights[MODEL_PREFIX])
        _update_average(server)
        for prefix in further:
            if means[prefix]:
                self.aggregate_extra(server, prefix, means[prefix], len(replies))


def publishes_average(method: Method) -> bool:
    """Return True if a method supports the setting ``optimization.ema``, a moving average of the global model.

    That requires a method whose server averages the updates into one model, which it publishes, and which every site
    trains from and evaluates. A subclass that overrides a function with which `Averaging` does this is not supported.
    """
    names = ("requests", "publish", "models", "aggregate_updates", "average", "round_steps", "plan")
    return isinstance(method, Averaging) and all(getattr(type(method), n) is getattr(Averaging, n) for n in names)


def _evaluated_tensors(server: Server) -> Tensors:
    """Return the shared tensors that are evaluated: their moving average if the run has one, or the latest ones."""
    return auxiliary_state(server, AVERAGE_PREFIX) or model_tensors(server)


def _update_average(server: Server) -> None:
    """Add the shared tensors to their moving average in the server's state, if the settings ask for one."""
    recipe = server.settings.optimization
    if recipe is not None and recipe.ema is not None:
        average = moving_average(auxiliary_state(server, AVERAGE_PREFIX), model_tensors(server), recipe.ema)
        set_auxiliary_state(server, AVERAGE_PREFIX, average)


def refuse_noisy_statistics(model: nn.Module, names: list[str]) -> None:
    """Raise if running statistics of normalisation layers are shared in a run with a privacy setting.

    All shared tensors get noise in such a run, and noise can make a running variance negative.

    Args:
        model: The network.
        names: State-dict names of the shared tensors.

    Raises:
        SettingsError: If running statistics are among the names.
    """
    noisy = sorted(norm_names(model) & buffer_names(model) & set(names))
    if noisy:
        raise SettingsError(
            "noisy_statistics",
            "Under a privacy setting the running statistics of normalisation layers can't be shared, got "
            f"{names_and_more(noisy, 3)}: noise could make variances negative. Set norm_sync to 'params' or 'none', or "
            "use group norm.",
            setting="norm_sync",
            tensors=noisy,
        )
