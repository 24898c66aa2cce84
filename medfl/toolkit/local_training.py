"""Local training at a site: the trainings of a round, and the hooks by which a method changes them."""

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
from medfl.toolkit.participant_state import auxiliary_state, model_tensors, set_auxiliary_state
from medfl.toolkit.training_specs import Training, freeze_other_part
from medfl.training.checkpoints import ModelPart, TrainingCheckpoint, TrainingPart
from medfl.training.loop import Batch, TrainResult, train
from medfl.training.optimizer_state import read_state, write_state
from medfl.types import Tensors
from medfl.utils.wire import digest


class LocalTraining(BaseModel):
    """Base class for the site's part of a method: runs the round's trainings with the method's loss.

    Attributes:
        gradient_clip: Maximum L2 norm of a batch's gradient over all parameters jointly, > 0. A longer gradient is
            scaled down to it. None disables clipping. It stabilises training and gives no privacy.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    """Configuration of pydantic: a method object is frozen and refuses unknown settings."""

    gradient_clip: float | None = Field(None, gt=0, allow_inf_nan=False)

    # ---- methods to override

    def start(self, site: Site, received: Tensors) -> Tensors:
        """Return all tensors of the model that the first training starts from, given the received shared tensors.

        The site's update is the difference to the received tensors, not to these.
        """
        return self.full_state(site, received)

    def trainings(self, site: Site) -> Sequence[Training]:
        """Return the trainings of a round in their order. Each starts from the result of the one before.

        Also called when a site is evaluated; `Site.train` may be None then.
        """
        return (Training(),)

    def before_trainings(self, site: Site, sent: Tensors) -> dict[str, Any]:
        """Return values that all trainings of a request find in `Fit.extra`.

        Called once per request, before the first training.

        Args:
            site: The site in its state before the first training.
            sent: Tensors of the request.
        """
        return {}

    def make_optimizer(self, fit: Fit) -> torch.optim.Optimizer:
        """Create the optimiser of a training. Called for each training, after `before_fit`."""
        return fit.site.task.make_optimizer(fit.model, [parameter for _, parameter in fit.parameters()])

    def loss(self, fit: Fit, batch: Batch) -> torch.Tensor:
        """Compute the loss of a batch, which the training minimises."""
        return fit.task_loss(batch)

    def before_fit(self, fit: Fit) -> None:
        """Prepare a training, after the model is loaded and before the optimiser is created; by default do nothing."""

    def after_batch(self, fit: Fit) -> None:
        """Do additional work after an optimiser step. Called after each step; does nothing by default."""

    def after_fit(self, fit: Fit) -> None:
        """Do additional work after a training. Called before the update is computed; does nothing by default."""

    def can_continue(self, fit: Fit) -> bool:
        """Return whether a killed training can continue from a checkpoint, instead of starting at the beginning.

        True by default. Return False if the training changes something besides `Fit.model`, `Fit.optimizer`, `Fit.log`,
        the global random generators and the objects of `training_parts`.
        """
        return True

    def training_parts(self, fit: Fit) -> Mapping[str, TrainingPart]:
        """Return the objects that a training changes besides the model, by name, such as a second model.

        They become part of the training's checkpoint. Called after `before_fit` and `make_optimizer`; by default none.
        """
        return {}

    def row_weights(self, fit: Fit) -> torch.Tensor | None:
        """Return the sampling weights of the training images, shape (n,), >= 0, for draws with replacement.

        None uses the run's settings.
        """
        return None

    def extra_reply_tensors(self, fit: Fit) -> Tensors:
        """Return tensors for the server besides the update, with prefixes declared in `sends`; by default none.

        Called after `after_fit` of the last training whose model leaves the site, if it took at least one step.
        """
        return {}

    # ---- helpers for subclasses

    def begin_checkpoint(self, fit: Fit, generators: Mapping[str, torch.Generator]) -> TrainingCheckpoint | None:
        """Continue a killed training in place, and return its checkpoint.

        Returns None if the site writes no checkpoints, or if the method's training can't be continued.

        Args:
            fit: The training, with its optimiser.
            generators: Random generators of the training by name, besides the global ones.
        """
        if fit.site.checkpoints is None or not self.can_continue(fit):
            return None
        checkpoint = fit.site.checkpoints.next_training()
        parts = {"own": ModelPart(fit.model, fit.optimizer), **self.training_parts(fit)}
        checkpoint.begin(parts, generators, fit.log)
        fit.steps = checkpoint.position.steps
        return checkpoint

    def full_state(self, site: Site, received: Tensors) -> Tensors:
        """Return all tensors of a site's model: its own or the initial ones, overwritten by the received tensors."""
        own = model_tensors(site)
        if not own and len(received) < len(site.task.names(site.network)):
            own = site.task.initial(site.settings.seed, site.network)
        return own | received

    def run_trainings(self, site: Site, sent: Tensors, start: Tensors) -> tuple[FitResult, dict[str, Model]]:
        """Run all trainings of a round, and store separately trained personal models in the site's state.

        Args:
            site: The site with its data, network and settings.
            sent: Tensors of the request.
            start: Tensors that the first training starts from.

        Returns:
            The result of the trainings whose model leaves the site, with the logs of all trainings; and the models for
            `Reply.trained` by kind.

        Raises:
            ContractError: If there are several trainings in a run with the privacy unit ``sample``, whose privacy
                accounting assumes one.
        """
        # 1. Plan the trainings of the round, and let the method prepare them.
        trainings = self.trainings(site)
        policy_of(site.settings).check_trainings(site.name, len(trainings))
        extra = self.before_trainings(site, sent)
        last_shared = max((number for number, training in enumerate(trainings) if not training.apart), default=None)

        # 2. Run them in order. A separate personal model has its own start and random numbers, and is stored.
        unlabelled_log, labelled_log = dict[str, float](), dict[str, float]()
        result, personal = FitResult(start, {}, {}), dict[str, Model]()
        for number, training in enumerate(trainings):
            begin = stored_personal_model(site, training, start) if training.apart else result.after
            with torch.random.fork_rng(gpu_devices(site), enabled=training.apart):
                done = self.fit(
                    training.at(site), begin, extra=extra, training=training, sent=sent, leaves=number == last_shared
                )
            (labelled_log if training.label else unlabelled_log).update(training.log(done.log))
            if training.apart:
                set_auxiliary_state(site, training.place, done.after)
                personal = {"personal": Model(site.network, done.after)}
            else:
                result = replace(done, meta=result.meta | done.meta)

        # 3. Return the result that leaves the site, with all logs, and the models to evaluate.
        shared = Model(site.network, result.after)
        models = {"global": shared} | personal if personal else {"personal": shared}
        return replace(result, log=unlabelled_log | labelled_log), models

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
        """Train a model with this method's `loss`, starting from `tensors`.

        Args:
            site: The site with its data, network and settings.
            tensors: Tensors of the model at the start.
            optimizer: `FitResult.optimizer` of the previous training, or an empty dict, to carry the optimiser's state
                from one training to the next. None starts with a new optimiser and returns no state.
            extra: Initial values of `Fit.extra`.
            phase: Label of the random streams, so that a second training draws other batches; None uses the training's
                label.
            training: Specification of the training; None means `Training()`.
            sent: Tensors of the request, for `Fit.received`.
            leaves: Whether the result leaves the site, so that `extra_reply_tensors` is called at the end.
        """
        # 1. Load the model, and freeze the parts that are not trained.
        model, training = site.task.load(tensors, site.network), training or Training()
        phase = training.streams if phase is None else phase
        start = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}
        fit = Fit(site, model, start, dict(extra or {}), training=training, sent=sent or {})
        frozen = freeze_other_part(model, training.part)

        # 2. Let the method prepare the training, and create its optimiser.
        self.before_fit(fit)
        fit.optimizer = self.make_optimizer(fit)
        write_state(fit.optimizer, model, optimizer or {})

        # 3. Train with the method's loss.
        trained = self._run_training(fit, frozen, phase)

        # 4. Let the method finish the training, and collect its results.
        self.after_fit(fit)
        return FitResult(
            after=cpu_state(model),
            log=fit.log | {"loss": trained.loss, "seconds": trained.seconds},
            extra=on_cpu(self.extra_reply_tensors(fit)) if leaves and fit.steps else {},
            optimizer={} if optimizer is None else read_state(fit.optimizer, model),
            meta=fit.meta,
        )

    def _run_training(self, fit: Fit, frozen: Sequence[nn.Module], phase: str) -> TrainResult:
        """Train the model of `fit` in place with the method's loss and callbacks, from its checkpoint if there is one.

        Args:
            fit: The training, with its optimiser.
            frozen: Modules that stay in evaluation mode.
            phase: Label of the random streams.
        """
        site, task = fit.site, fit.site.task

        def loss(batch: Batch) -> torch.Tensor:
            for module in frozen:
                module.training = False
            return self.loss(fit, batch)

        def after_batch() -> None:
            fit.count_step()
            self.after_batch(fit)

        weights, augmentation = self.row_weights(fit), site.rng("augment" + phase)
        steps = policy_of(site.settings).steps(
            fit.model, fit.optimizer, site, lambda: digest(cpu_state(fit.model)), self.gradient_clip
        )
        return train(
            fit.model,
            site.train,
            loss,
            fit.optimizer,
            site.settings,
            site.rng("batches" + phase),
            task.device,
            weights=weights,
            after_batch=after_batch,
            gradient_clip=self.gradient_clip,
            augment=task.augment(augmentation),
            steps=steps,
            smallest=task.objective.smallest_batch,
            before_epoch=task.epoch_rates,
            before_batch=task.step_rates,
            checkpoint=self.begin_checkpoint(fit, {"augment": augmentation}),
        )


def stored_personal_model(site: Site, training: Training, start: Tensors) -> Tensors:
    """Return the model that a separate personal training stored at the site, or `start` before the first training."""
    return auxiliary_state(site, training.place) or start


def gpu_devices(site: Site) -> list[torch.device]:
    """Return the GPU that a site trains on as a list of one device, or an empty list on the CPU.

    `torch.random.fork_rng` needs it, since a GPU has its own random generator.
    """
    device = torch.device(site.task.device)
    return [device] if device.type == "cuda" else []


def cpu_state(model: nn.Module) -> Tensors:
    """Return a contiguous CPU copy of a model's state dict."""
    return on_cpu(model.state_dict())


def on_cpu(tensors: Mapping[str, torch.Tensor]) -> Tensors:
    """Return contiguous CPU copies of the tensors."""
    return {
        name: tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }
