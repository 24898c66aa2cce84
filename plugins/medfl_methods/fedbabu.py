"""FedBABU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Literal

import torch
from pydantic import Field

from medfl.contract import Capability, Model, Need, Server, Site
from medfl.networks.parts import without_head
from medfl.task import Task
from medfl.toolkit.body_sharing import BodySharing
from medfl.toolkit.fit import Fit, FitResult
from medfl.toolkit.kept import shared_of
from medfl.toolkit.personal import LastStep
from medfl.toolkit.trainings import Budget, Part, Training
from medfl.types import MODEL, Meta, Tensors
from medfl.utils.wire import select

TUNED = "tuned"
"""Names the fine-tuning."""


class FedBABU(LastStep, BodySharing):
    """Body aggregation and body update: only the body is trained and averaged, under one head that nobody changes.

    The head is that of the initial model, the same at all sites with one network, and is never sent. In the last round
    there is a further step: each site with training images fine-tunes the common model on them and keeps what comes
    out. That is its personal model; before, and where it was away, the common model stands in. A run that is continued
    with more rounds fine-tunes anew in its last one, from the common model.

    The common model is the body under the initial head. There is none to report where sites have other networks, or
    where the run's `norm_sync` keeps parts of the body at home.

    When to use it: When sites hold unlike shares of the classes and each wants a model for its own patients, while a
    common one is of use, too. The fine-tuning comes once, so scores of rounds before the last are those of the common
    model.

    Attributes:
        weights: ``size`` weighs a site by its number of training images among the participants, ``uniform`` equally, as
            the released code does.
        finetune: What is fine-tuned: ``all``, ``head`` or ``body``.
        finetune_epochs: Epochs of it, >= 0; with 0 the common model is all that there is.
        finetune_steps: Batches of it, >= 1, in place of epochs; None leaves it to `finetune_epochs`. Fine-tuning comes
            on top of the run's rounds: in a comparison with equal budgets give the run that many batches fewer.
        finetune_lr: Learning rate of it, > 0; None takes the run's.

    Source: Oh, Kim, Yun, ICLR 2022, Algorithm 1.
    """

    name = "fedbabu"
    family = "personal"
    paper = "Oh, Kim, Yun, ICLR 2022"
    summary = "a common body trained under a head that nobody changes; each site fine-tunes it in the end"
    supports = frozenset({Capability.DIFFERENT_HEADS, Capability.ROBUST})

    needs: ClassVar[frozenset[Need]] = frozenset({"head"})
    presets: ClassVar[Mapping[str, Meta]] = {"paper": {"weights": "uniform"}, "medfl": {}}

    weights: Literal["size", "uniform"] = "size"
    finetune: Part = "all"
    finetune_epochs: int = Field(5, ge=0)
    finetune_steps: int | None = Field(None, ge=1)
    finetune_lr: float | None = Field(None, gt=0, allow_inf_nan=False)

    def weight(self, meta: Meta) -> float:
        """The site's size, or 1."""
        return super().weight(meta) if self.weights == "size" else 1.0

    # ---- a site

    def trainings(self, site: Site) -> Sequence[Training]:
        """The body's."""
        return (Training(part="body"),)

    @property
    def adapts(self) -> bool:
        """Whether there is any fine-tuning."""
        return self.finetune_epochs > 0 or self.finetune_steps is not None

    def adapt(self, site: Site, start: Tensors, sent: Tensors) -> FitResult:
        """Fine-tune the common model."""
        training = Training(TUNED, Budget(self.finetune_epochs, self.finetune_steps), self.finetune)
        done = self.fit(training.at(site), start, training=training, sent=sent)
        return replace(done, log=training.log(done.log))

    def make_optimizer(self, fit: Fit) -> torch.optim.Optimizer:
        """The run's; in the fine-tuning with its learning rate."""
        optimizer = super().make_optimizer(fit)
        if fit.training.label == TUNED and self.finetune_lr is not None:
            for group in optimizer.param_groups:
                group["lr"] = self.finetune_lr
        return optimizer

    # ---- models

    def models(self, participant: Server | Site) -> dict[str, Model]:
        """A common model, and at each site its own."""
        models, task = super().models(participant), participant.task
        if isinstance(participant, Server):
            common = shared_of(participant)
            full = task.initial(participant.settings.seed) | common
        else:
            common = select(participant.published, MODEL)
            full = self.full_state(participant, common)
        if (isinstance(participant, Server) or participant.network == task.network) and covers(task, full, common):
            models["global"] = Model(task.network, full)
        return models


def covers(task: Task, full: Tensors, common: Tensors) -> bool:
    """Whether what is common is the whole body of the task's own network."""
    return set(without_head(task.load(full), list(full))) <= common.keys()
