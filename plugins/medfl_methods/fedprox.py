"""FedProx: FedAvg with a proximal term."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from pydantic import Field

from medfl.contract import Capability, ReducesTo
from medfl.toolkit.fit import Fit
from medfl.training.loop import Batch
from medfl.types import Meta
from medfl_methods.fedavg import FedAvg


class FedProx(FedAvg):
    """FedAvg with a proximal term that keeps the local models near the global model (FedProx).

    Update rule:
        With w_t the received model, a site minimises over its trainable parameters

            F(w) + (mu / 2) ||w - w_t||^2

        Buffers are not in the term. The server averages as in `fedavg`.

    When to use it: When `fedavg` is unstable because sites train for many steps on heterogeneous data, or on very
    different amounts of it.

    Limits: A large ``mu`` also slows learning, so choose it on validation data. The gain over `fedavg` is often small.

    Attributes:
        mu: Weight of the proximal term, >= 0. Grid of the paper: 0.001, 0.01, 0.1, 1.

    Source: Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, MLSys 2020, equation 2.
    """

    name = "fedprox"
    family = "averaging"
    paper = "Li et al., MLSys 2020"
    summary = "FedAvg with a proximal term that keeps local models near the global model"
    supports = frozenset({Capability.DP_SGD, Capability.ROBUST, Capability.EXACT_ADAPTERS})

    presets: ClassVar[Mapping[str, Meta]] = {"paper": {"mu": 1.0}, "medfl": {"mu": 0.01}}
    reduces_to: ClassVar[tuple[ReducesTo, ...]] = (ReducesTo("fedavg", {"mu": 0.0}),)

    mu: float = Field(0.01, ge=0, allow_inf_nan=False)

    def loss(self, fit: Fit, batch: Batch) -> torch.Tensor:
        """Return the task's loss plus (mu / 2) ||w - w_t||^2."""
        loss = fit.task_loss(batch)
        if self.mu == 0:
            return loss
        return loss + 0.5 * self.mu * squared_distance(fit)


def squared_distance(fit: Fit) -> torch.Tensor:
    """Return ||w - w_t||^2 over the trainable parameters of the model in training."""
    terms = [(p - fit.start[name]).square().sum() for name, p in fit.model.named_parameters() if p.requires_grad]
    return torch.stack(terms).sum()
