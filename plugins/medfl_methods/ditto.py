"""Ditto: FedAvg plus a personal model at each site, regularised towards the global model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from pydantic import Field

from medfl.contract import Capability, Site
from medfl.toolkit.fit import Fit
from medfl.toolkit.training_specs import Training, TrainingBudget
from medfl.training.loop import Batch
from medfl.types import MODEL_PREFIX, Meta
from medfl.utils.wire import select
from medfl_methods.fedavg import FedAvg


class Ditto(FedAvg):
    """Ditto: FedAvg plus a personal model at each site, regularised towards the global model.

    The global model is trained and averaged as in `fedavg`, and is bitwise equal to the global model of `fedavg` for
    all settings. Beside it, each site k trains a personal model v_k, which stays at the site with its buffers. v_k
    starts as the first model that the site receives. Both trainings draw the same batches. A site that has not trained
    yet is evaluated with the global model.

    Update rule:
        With w_t the model that the site received in this round, the personal model minimises over its trainable
        parameters

            F_k(v) + (lam / 2) ||v - w_t||^2

        Then the site trains the global model from w_t as in `fedavg`, and sends only that update.

    When to use it: When each hospital needs a model for its own patients, and a good global model is needed too, for
    example for a new site. Choose ``lam`` on validation data. Local training costs twice as much as with `fedavg`; the
    traffic is the same.

    Limit cases: With ``lam = 0`` and all sites in every round, the personal models equal the models of `local`. The
    larger ``lam`` is, the nearer they are to the global model.

    Attributes:
        lam: Strength of the regulariser, >= 0. Grid of the paper: 0.05, 0.1, 0.2, 1, 2.
        own_epochs: Epochs of the personal model in a round, >= 1; None uses the budget of the global model.

    Source: Li, Hu, Beirami, Smith, ICML 2021, Algorithm 1.
    """

    name = "ditto"
    family = "personal"
    paper = "Li et al., ICML 2021"
    summary = "FedAvg plus a personal model at each site, regularised towards the global model"
    supports = frozenset({Capability.ROBUST, Capability.EXACT_ADAPTERS})

    presets: ClassVar[Mapping[str, Meta]] = {"paper": {"weights": "uniform"}, "medfl": {}}

    lam: float = Field(1.0, ge=0, allow_inf_nan=False)
    own_epochs: int | None = Field(None, ge=1)

    def trainings(self, site: Site) -> Sequence[Training]:
        """Return the trainings of a round in their order: of the personal model, then of the global model."""
        return Training("own", TrainingBudget(self.own_epochs), apart=True), Training()

    def loss(self, fit: Fit, batch: Batch) -> torch.Tensor:
        """Return the task's loss; for the personal model plus (lam / 2) ||v - w_t||^2 (see `Ditto`)."""
        loss = fit.task_loss(batch)
        if not fit.training.apart or self.lam == 0:
            return loss
        common = select(fit.received, MODEL_PREFIX)
        terms = [(p - common[name]).square().sum() for name, p in fit.parameters() if name in common]
        return loss + 0.5 * self.lam * torch.stack(terms).sum()
