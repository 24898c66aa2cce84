"""FedBABU: the sites train and average only the body under a fixed head, and fine-tune once in the last round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Literal

import torch
from pydantic import Field

from medfl.contract import Capability, Model, Need, Server, Site
from medfl.networks.parts import names_without_head
from medfl.task import Task
from medfl.toolkit.body_sharing import BodySharing
from medfl.toolkit.fit import Fit, FitResult
from medfl.toolkit.participant_state import model_tensors
from medfl.toolkit.personal import FinalAdaptation
from medfl.toolkit.training_specs import TrainedPart, Training, TrainingBudget
from medfl.types import MODEL_PREFIX, Meta, Tensors
from medfl.utils.wire import select

FINE_TUNING = "tuned"
"""Label of the fine-tuning among a site's trainings."""


class FedBABU(FinalAdaptation, BodySharing):
    """Body aggregation and body update (FedBABU): train only the body in the rounds, and fine-tune in the last round.

    All sites use the head of the initial model, which is neither trained nor sent during the rounds. The sites train
    and average the body as in `fedavg`. In the last round, each site with training images fine-tunes the global model
    on them. The result is its personal model. Before that, and for a site that did not reply, the personal model is the
    global model. If a finished run is continued with more rounds, the new last round fine-tunes again from the global
    model.

    The global model is the body with the initial head. It is not reported if a site uses another network, or if the
    run's `norm_sync` keeps parts of the body at the sites.

    When to use it: When sites have different class distributions, each needs a model for its own patients, and a global
    model is useful too.

    Limits: Fine-tuning happens once, so all scores before the last round belong to the global model.

    Limit cases: With ``finetune_epochs = 0`` and no ``finetune_steps``, there is only the global model.

    Attributes:
        weights: Aggregation weights: ``size`` is proportional to the participants' numbers of training images;
            ``uniform`` is equal, as in the released code.
        finetune: Part of the network that is fine-tuned: ``all``, ``head`` or ``body``.
        finetune_epochs: Epochs of the fine-tuning, >= 0.
        finetune_steps: Batches of the fine-tuning, >= 1, instead of epochs; None uses `finetune_epochs`. Fine-tuning is
            additional to the run's rounds. For a comparison with equal budgets, reduce the run by as many batches.
        finetune_lr: Learning rate of the fine-tuning, > 0; None uses the run's learning rate.

    Source: Oh, Kim, Yun, ICLR 2022, Algorithm 1.
    """

    name = "fedbabu"
    family = "personal"
    paper = "Oh, Kim, Yun, ICLR 2022"
    summary = "the body is trained and averaged under a fixed head; each site fine-tunes in the last round"
    supports = frozenset({Capability.DIFFERENT_HEADS, Capability.ROBUST})

    needs: ClassVar[frozenset[Need]] = frozenset({"head", "trainable_body"})
    """Requirements that the task or the run must meet, otherwise the run is refused before it starts."""
    presets: ClassVar[Mapping[str, Meta]] = {"paper": {"weights": "uniform"}, "medfl": {}}

    weights: Literal["size", "uniform"] = "size"
    finetune: TrainedPart = "all"
    finetune_epochs: int = Field(5, ge=0)
    finetune_steps: int | None = Field(None, ge=1)
    finetune_lr: float | None = Field(None, gt=0, allow_inf_nan=False)

    def weight(self, meta: Meta) -> float:
        """Return the weight of a reply before normalisation: the site's number of training images, or 1 if uniform."""
        return super().weight(meta) if self.weights == "size" else 1.0

    # ---- a site

    def trainings(self, site: Site) -> Sequence[Training]:
        """Return the trainings of a round in their order: a single one, of the body."""
        return (Training(part="body"),)

    @property
    def adapts(self) -> bool:
        """True if the last round has a fine-tuning."""
        return self.finetune_epochs > 0 or self.finetune_steps is not None

    def adapt(self, site: Site, start: Tensors, sent: Tensors) -> FitResult:
        """Fine-tune the global model on the site's training images and return the result."""
        training = Training(FINE_TUNING, TrainingBudget(self.finetune_epochs, self.finetune_steps), self.finetune)
        done = self.fit(training.at(site), start, training=training, sent=sent)
        return replace(done, log=training.log(done.log))

    def make_optimizer(self, fit: Fit) -> torch.optim.Optimizer:
        """Create the optimiser of a training: the task's, in the fine-tuning with the learning rate `finetune_lr`."""
        optimizer = super().make_optimizer(fit)
        if fit.training.label == FINE_TUNING and self.finetune_lr is not None:
            for group in optimizer.param_groups:
                group["lr"] = self.finetune_lr
        return optimizer

    # ---- models

    def models(self, participant: Server | Site) -> dict[str, Model]:
        """Return a participant's models by kind: ``global`` if it has all of it, and a site's ``personal``."""
        models, task = super().models(participant), participant.task
        if isinstance(participant, Server):
            common = model_tensors(participant)
            full = task.initial(participant.settings.seed) | common
        else:
            common = select(participant.published, MODEL_PREFIX)
            full = self.full_state(participant, common)
        if (isinstance(participant, Server) or participant.network == task.network) and is_whole_body(
            task, full, common
        ):
            models["global"] = Model(task.network, full)
        return models


def is_whole_body(task: Task, full: Tensors, common: Tensors) -> bool:
    """Return True if the shared tensors are the whole body of the task's own network.

    Args:
        task: Task of the run.
        full: All tensors of the network.
        common: Shared tensors.
    """
    return set(names_without_head(task.load(full), list(full))) <= common.keys()
