"""A site's part of most methods: its trainings, and all that a method may change about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import nn

from medfl.contract import Model, Site
from medfl.privacy.policy import policy_of
from medfl.toolkit.fit import Fit, FitResult
from medfl.toolkit.kept import keep, kept, shared_of
from medfl.toolkit.trainings import Training, freeze_rest
from medfl.training.loop import Batch, train
from medfl.training.optimizer_state import read_state, write_state
from medfl.types import Tensors
from medfl.utils.wire import digest


class LocalTraining(BaseModel):
    """What a site does in a round: one or more trainings, each with the method's loss.

    Attributes:
        gradient_clip: Largest L2 norm of a batch's gradient, over all parameters jointly, > 0; a longer one is scaled
            down to it. None clips nothing. It steadies training and gives no privacy.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    gradient_clip: float | None = Field(None, gt=0, allow_inf_nan=False)

    # ---- what a method overrides

    def start(self, site: Site, received: Tensors) -> Tensors:
        """All tensors that a site's first training begins from; the update is taken against the received ones."""
        return self.full_state(site, received)

    def trainings(self, site: Site) -> Sequence[Training]:
        """The trainings of a round, in turn, each from where the one before ended.

        Also called when a site is evaluated; it may have no training data at hand then (`Site.train` is None).
        """
        return (Training(),)

    def before_trainings(self, site: Site, sent: Tensors) -> dict[str, Any]:
        """Called once per order, before its first training: what all its trainings find in `Fit.extra`.

        Args:
            site: As it begins.
            sent: The order's tensors.
        """
        return {}

    def make_optimizer(self, fit: Fit) -> torch.optim.Optimizer:
        """What takes the steps of a training, anew each time; made after `before_fit`."""
        return fit.site.task.optimizer(parameter for _, parameter in fit.parameters())

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

    def extra_up(self, fit: Fit) -> Tensors:
        """What goes to the server beside the update, under prefixes in `sends`, which say how it is treated.

        Called after `after_fit` of the last training that leaves the site, if that took any step.
        """
        return {}

    # ---- pieces

    def full_state(self, site: Site, received: Tensors) -> Tensors:
        """All tensors of a site's model: the received ones over its own, or over the initial ones at first."""
        own = shared_of(site)
        if not own and len(received) < len(site.task.names(site.network)):
            own = site.task.initial(site.settings.seed, site.network)
        return own | received

    def train_in_turn(self, site: Site, sent: Tensors, start: Tensors) -> tuple[FitResult, dict[str, Model]]:
        """All trainings of a round.

        Args:
            site: Gives data, network and settings.
            sent: The order's tensors.
            start: What the first training begins from.

        Returns:
            What leaves the site, with the logs of all trainings, and the models for `Reply.trained`.

        Raises:
            ContractError: If there are several in a run that hides single images: its account reckons with one.
        """
        trainings, plain, labelled = self.trainings(site), dict[str, float](), dict[str, float]()
        policy_of(site.settings).check_trainings(site.name, len(trainings))
        extra = self.before_trainings(site, sent)
        leaving, own = FitResult(start, start, {}, {}), dict[str, Model]()
        last = max((number for number, training in enumerate(trainings) if not training.apart), default=None)
        for number, training in enumerate(trainings):
            begin = own_model(site, training, start) if training.apart else leaving.after
            with torch.random.fork_rng(gpus_of(site), enabled=training.apart):
                here, leaves = training.at(site), number == last
                done = self.fit(here, begin, extra=extra, training=training, sent=sent, leaves=leaves)
            (labelled if training.label else plain).update(training.log(done.log))
            if training.apart:
                keep(site, training.place, done.after)
                own = {"personal": Model(site.network, done.after)}
            else:
                leaving = replace(done, before=start, meta=leaving.meta | done.meta)
        shared = Model(site.network, leaving.after)
        return replace(leaving, log=plain | labelled), {"global": shared} | own if own else {"personal": shared}

    def fit(
        self,
        site: Site,
        tensors: Tensors,
        optimizer: Tensors | None = None,
        extra: Mapping[str, Any] | None = None,
        phase: str | None = None,
        training: Training | None = None,
        sent: Tensors | None = None,
        leaves: bool = False,
    ) -> FitResult:
        """Train a model that starts from `tensors` with this method's `loss`.

        Args:
            site: Gives data, network and settings.
            tensors: Of the model.
            optimizer: `FitResult.optimizer` of the training before, or empty, to keep the optimiser's state from one
                training to the next; None starts anew and keeps nothing (rule G-7).
            extra: For `Fit.extra`.
            phase: Names the random streams, so that a second training draws other batches; None asks `training`.
            training: For `Fit.training`; what it freezes is frozen.
            sent: The order's tensors, for `Fit.received`.
            leaves: Whether `extra_up` is called in the end.
        """
        model, training = site.task.load(tensors, site.network), training or Training()
        phase = training.streams if phase is None else phase
        start = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}
        fit = Fit(site, model, start, dict(extra or {}), training=training, sent=sent or {})
        before, frozen = cpu_state(model), freeze_rest(model, training.part)
        self.before_fit(fit)
        fit.optimizer = self.make_optimizer(fit)
        write_state(fit.optimizer, model, optimizer or {})

        def loss(batch: Batch) -> torch.Tensor:
            for module in frozen:
                module.training = False
            return self.loss(fit, batch)

        def after_batch() -> None:
            fit.count_step()
            self.after_batch(fit)

        trained = train(
            model,
            site.train,
            loss,
            fit.optimizer,
            site.settings,
            site.rng("batches" + phase),
            site.task.device,
            weights=self.row_weights(fit),
            after_batch=after_batch,
            gradient_clip=self.gradient_clip,
            augment=site.task.augment(site.rng("augment" + phase)),
            steps=policy_of(site.settings).steps(
                model, fit.optimizer, site, lambda: digest(cpu_state(model)), self.gradient_clip
            ),
            smallest=site.task.objective.smallest_batch,
            before_epoch=site.task.epoch_rates,
        )
        self.after_fit(fit)
        after, log = cpu_state(model), fit.log | {"loss": trained.loss, "seconds": trained.seconds}
        beside = on_cpu(self.extra_up(fit)) if leaves and fit.steps else {}
        memory = {} if optimizer is None else read_state(fit.optimizer, model)
        return FitResult(before, after, log, fit.meta, memory, beside)


def own_model(site: Site, training: Training, start: Tensors) -> Tensors:
    """The model of a training apart, as the site kept it; at first that which the site's training begins from."""
    return kept(site, training.place) or start


def gpus_of(site: Site) -> list[torch.device]:
    """The GPU that a site trains on, if any: its generator is another one than the CPU's."""
    device = torch.device(site.task.device)
    return [device] if device.type == "cuda" else []


def cpu_state(model: nn.Module) -> Tensors:
    """A contiguous CPU copy of a model's state dict."""
    return on_cpu(model.state_dict())


def on_cpu(tensors: Mapping[str, torch.Tensor]) -> Tensors:
    """Contiguous CPU copies."""
    return {
        name: tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }
