"""Ditto."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from pydantic import Field

from medfl.contract import Capability, Site
from medfl.toolkit.fit import Fit
from medfl.toolkit.trainings import Budget, Training
from medfl.training.loop import Batch
from medfl.types import MODEL, Meta
from medfl.utils.wire import select
from medfl_methods.fedavg import FedAvg


class Ditto(FedAvg):
    """FedAvg, and beside it a model of each site's own, held near the received one.

    Each round a participant first trains its own model v_k by F_k(v) + (lam/2) ||v - w||^2 over the trainable
    parameters, where w is what it received this round; then it trains w as in FedAvg and sends that update alone. v_k
    stays at the site with its buffers, and begins with the model that the site receives first. Both trainings draw the
    same batches. A site that has not trained yet is scored with the common model.

    The common model is that of `fedavg`, bit by bit, whatever the settings. With ``lam = 0`` and all sites in every
    round the own models are those of `local`; the larger ``lam``, the nearer they are to the common one.

    When to use it: When each hospital wants a model for its own patients and a good common one is wanted, too, also for
    a new site. It costs twice FedAvg's computation, and no more traffic. Choose ``lam`` on validation data.

    Attributes:
        lam: How strongly the own model is held near the received one, >= 0. The paper's grid is 0.05, 0.1, 0.2, 1, 2.
        own_epochs: Epochs of the own model in a round; None trains it as long as the common one.

    Source: Li, Hu, Beirami, Smith, ICML 2021, Algorithm 1.
    """

    name = "ditto"
    family = "personal"
    paper = "Li et al., ICML 2021"
    summary = "FedAvg, and at each site a model of its own that is held near the common one"
    supports = frozenset({Capability.ROBUST})

    presets: ClassVar[Mapping[str, Meta]] = {"paper": {"weights": "uniform"}, "medfl": {}}

    lam: float = Field(1.0, ge=0, allow_inf_nan=False)
    own_epochs: int | None = Field(None, ge=1)

    def trainings(self, site: Site) -> Sequence[Training]:
        """The own model's, and the common one's."""
        return Training("own", Budget(self.own_epochs), apart=True), Training()

    def loss(self, fit: Fit, batch: Batch) -> torch.Tensor:
        """The task's loss; for the own model plus (lam/2) ||v - w||^2."""
        loss = super().loss(fit, batch)
        if not fit.training.apart or self.lam == 0:
            return loss
        common = select(fit.received, MODEL)
        terms = [(p - common[name]).square().sum() for name, p in fit.parameters() if name in common]
        return loss + 0.5 * self.lam * torch.stack(terms).sum()
