"""The base of most methods: sites train from the server's model and reply with updates; the server averages them.

A method overrides what it changes: `shared` (what is exchanged), `loss`, `before_fit`, `after_batch`, `after_fit`,
`row_weights`, `weight`, `weights_of`, `server_update`. As it stands this is FedAvg (McMahan et al., AISTATS 2017).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import nn

from medfl.contract import Findings, Kind, Limit, Model, Order, Plan, Replies, Reply, Server, Site
from medfl.errors import SettingsError
from medfl.methods.aggregation import add_update, check_updates, mean_update, normalised, sample, subtract
from medfl.methods.fit import Fit, Fitted
from medfl.networks.norms import buffer_names, norm_names
from medfl.privacy.samples import PrivateSteps
from medfl.task import Task
from medfl.training.loop import Batch, Steps, train
from medfl.training.optimizer_state import read_state, write_state
from medfl.types import MODEL, Meta, Tensors
from medfl.utils.tells import Tell, count
from medfl.utils.wire import digest, prefixed, select

KEPT = "kept/"
"""What the names of tensors begin with that a holder's state has beside its model, such as an optimiser's memory: they
go nowhere."""


class Averaging(BaseModel):
    """Averaging of the updates of participating sites, each weighted by its number of training images.

    Under a privacy setting sizes stay at home and the weights are uniform.

    A class that says ``by_sample = True`` itself, not by its parent, promises that all that its updates hold of a
    site's data comes in through `loss`, in one `fit` a round: DP-SGD, which hides single images, makes these gradients
    private and nothing else. A second `fit` in a step is refused then. A class that overrides more than `loss` and the
    server's side should think twice.

    Attributes:
        gradient_clip: Largest L2 norm of a batch's gradient, over all parameters jointly, > 0; a longer one is scaled
            down to it. None clips nothing. It steadies training and gives no privacy.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    sends: ClassVar[Mapping[str, Kind]] = {MODEL: "update"}
    tells: ClassVar[Mapping[str, Tell]] = {"size": Tell("private", count())}
    unlike_networks: ClassVar[bool] = False
    unlike_heads: ClassVar[bool] = False
    posts_parcels: ClassVar[bool] = False
    needs_public: ClassVar[bool] = False
    pools_data: ClassVar[bool] = False
    presets: ClassVar[Mapping[str, Meta]] = {"paper": {}, "medfl": {}}
    preset_settings: ClassVar[Mapping[str, Meta]] = {}
    limits: ClassVar[tuple[Limit, ...]] = ()

    gradient_clip: float | None = Field(None, gt=0, allow_inf_nan=False)

    # ---- what a method overrides

    def shared(self, model: nn.Module, norm_sync: str) -> list[str]:
        """State-dict names that are exchanged, by the policy for normalisation layers (rule G-2)."""
        norms = norm_names(model)
        personal = {"none": norms, "params": norms & buffer_names(model)}.get(norm_sync, set())
        return [name for name in model.state_dict() if name not in personal]

    def loss(self, fit: Fit, batch: Batch) -> torch.Tensor:
        """What a site minimises."""
        return fit.ce(batch)

    def before_fit(self, fit: Fit) -> None:
        """Called when the model is loaded and before its training."""

    def after_batch(self, fit: Fit) -> None:
        """Called after each step of the optimiser."""

    def after_fit(self, fit: Fit) -> None:
        """Called after the training and before the update is taken."""

    def row_weights(self, fit: Fit) -> torch.Tensor | None:
        """How often each training image is drawn, shape (n,), >= 0, with replacement; None leaves it to the run."""
        return None

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

    # ---- the contract

    def setup(self, server: Server) -> None:
        """The common initial model."""
        tensors = server.task.initial(server.settings.seed)
        model = server.task.load(tensors)
        names = self.shared(model, server.settings.norm_sync)
        if server.settings.privacy is not None:
            refuse_noisy_statistics(model, names)
        server.state.tensors = {name: tensors[name] for name in names}
        server.state.meta["parameters"] = [name for name, _ in model.named_parameters() if name in set(names)]
        server.state.meta["complete"] = len(names) == len(tensors)

    def plan(self, server: Server) -> Plan | None:
        """A round is one step: this round's participants train from the server's model."""
        if server.rounds_done >= server.settings.rounds:
            return None
        chosen = sample(server.trainable(), server.settings.fraction, server.shared_rng("participation"))
        tensors = self.publish(server)
        orders = [Order(name, "fit", tensors) for name in chosen]
        return Plan(server.round, orders, quorum=min(server.settings.min_replies, max(len(orders), 1)))

    def work(self, site: Site, order: Order) -> Reply:
        """Train from the received tensors, keep the personal ones, reply with the update of the shared ones."""
        received = select(order.tensors, MODEL)
        done = self.fit(site, self.full_state(site, received))
        personal = {name: done.after[name] for name in done.after if name not in received}
        site.state.tensors = prefixed(select(site.state.tensors, KEPT), KEPT) | personal
        update = prefixed({name: subtract(done.after[name], done.before[name]) for name in received}, MODEL)
        tells = {"size": len(site.train)} | done.tells
        return Reply(update, tells, log=done.log, trained=Model(site.network, done.after))

    def check_tensors(self, task: Task, order: Order, tensors: Tensors) -> None:
        """Updates are of the order's tensors."""
        check_updates(tensors, order.tensors, self.sends)

    def fold(self, server: Server, replies: Replies) -> None:
        """Weighted mean of the updates, then `server_update`."""
        if not len(replies):
            return
        weights = normalised(self.weights_of(server, replies.meta), replies.meta)
        server.state.tensors |= self.server_update(server, shared_of(server), mean_update(replies, weights))

    def publish(self, server: Server) -> Tensors:
        """The shared tensors."""
        return prefixed(shared_of(server), MODEL)

    def findings(self, server: Server) -> Findings:
        """Nothing beside the scores."""
        return Findings()

    def models(self, holder: Server | Site) -> dict[str, Model]:
        """The server's model where all of it is shared; otherwise each site's own."""
        if isinstance(holder, Server):
            complete = holder.state.meta.get("complete", False)
            return {"global": Model(holder.task.network, shared_of(holder))} if complete else {}
        received = select(holder.published, MODEL)
        tensors = self.full_state(holder, received)
        kind = "global" if len(received) == len(tensors) else "personal"
        return {kind: Model(holder.network, tensors)}

    def predictor(self, task: Task, models: list[Model]) -> nn.Module:
        """The first model as it is."""
        return task.load(models[0].tensors, models[0].network).eval()

    # ---- pieces

    def full_state(self, site: Site, received: Tensors) -> Tensors:
        """All tensors of a site's model: the received ones over its own, or over the initial ones at first."""
        own = shared_of(site)
        if not own and len(received) < len(site.task.names(site.network)):
            own = site.task.initial(site.settings.seed, site.network)
        return own | received

    def fit(
        self,
        site: Site,
        tensors: Tensors,
        optimizer: Tensors | None = None,
        extra: Mapping[str, Any] | None = None,
        phase: str = "",
    ) -> Fitted:
        """Train a model that starts from `tensors` with this method's `loss`.

        Args:
            site: Gives data, network and settings.
            tensors: Of the model.
            optimizer: `Fitted.optimizer` of the training before, or empty, to keep the optimiser's state from one
                training to the next; None starts anew and keeps nothing (rule G-7).
            extra: For `Fit.extra`.
            phase: Names the streams of a second training in one round, so that it draws other batches than the first.
        """
        model = site.task.load(tensors, site.network)
        start = {name: p.detach().clone() for name, p in model.named_parameters()}
        fit, before = Fit(site, model, start, dict(extra or {})), cpu_state(model)
        self.before_fit(fit)
        steps = site.task.optimizer(p for p in model.parameters() if p.requires_grad)
        write_state(steps, model, optimizer or {})
        trained = train(
            model,
            site.train,
            lambda batch: self.loss(fit, batch),
            steps,
            site.settings,
            site.rng("batches" + phase),
            site.task.device,
            weights=self.row_weights(fit),
            after_batch=lambda: self.after_batch(fit),
            gradient_clip=self.gradient_clip,
            augment=site.task.augment(site.rng("augment" + phase)),
            steps=self.private_steps(model, steps, site),
        )
        self.after_fit(fit)
        log = fit.log | {"loss": trained.loss, "seconds": trained.seconds}
        return Fitted(before, cpu_state(model), log, fit.tells, {} if optimizer is None else read_state(steps, model))

    def private_steps(self, model: nn.Module, optimizer: torch.optim.Optimizer, site: Site) -> Steps | None:
        """DP-SGD where the run hides single images; None where the plain steps do."""
        if site.settings.privacy is None or site.settings.privacy.unit != "sample":
            return None
        return PrivateSteps(model, optimizer, site, digest(cpu_state(model)), self.gradient_clip)


def shared_of(holder: Server | Site) -> Tensors:
    """The tensors of a holder's model: at the server those that the sites get, at a site its personal ones."""
    return {name: tensor for name, tensor in holder.state.tensors.items() if not name.startswith(KEPT)}


def refuse_noisy_statistics(model: nn.Module, names: list[str]) -> None:
    """Under privacy all that is shared carries noise, and a noisy running variance may fall below zero.

    Raises:
        SettingsError: If running statistics are shared.
    """
    noisy = sorted(norm_names(model) & buffer_names(model) & set(names))
    if noisy:
        raise SettingsError(
            f"Under a privacy setting the running statistics of normalisation layers can't be shared, got {noisy[:3]}: "
            "noise would turn variances negative. Set norm_sync to 'params' or 'none', or use group norm."
        )


def cpu_state(model: nn.Module) -> Tensors:
    """A contiguous CPU copy of a model's state dict."""
    return {
        name: tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        for name, tensor in model.state_dict().items()
    }
