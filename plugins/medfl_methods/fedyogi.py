"""FedYogi: Yogi on the server, applied to the mean update of the sites."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from pydantic import Field

from medfl.contract import Capability
from medfl.toolkit.server_optimizer import AdaptiveServer
from medfl.types import Meta


class FedYogi(AdaptiveServer):
    """FedYogi: Yogi on the server, applied to the mean update of the sites.

    Sites train as in `fedavg`. The server treats the mean update D as a gradient. Only trainable parameters are updated
    in this way; the statistics of normalisation layers are averaged as in `fedavg`.

    Update rule:
        For each coordinate, with the mean update D of the round:

            m <- beta1 m + (1 - beta1) D
            v <- v - (1 - beta2) D^2 sign(v - D^2)
            w <- w + eta m / (sqrt(v) + tau)

        m starts at 0 and v at tau^2; with ``v0 = zero`` (preset ``flower``), v starts at 0.

    When to use it: As `fedadam`, when that is unstable because updates shrink. v then falls by steps of D^2 and not by
    a constant factor, so the steps do not grow suddenly.

    Limits: ``eta`` needs the same tuning as in `fedadam`. No setting makes this method `fedavg`.

    Attributes:
        beta2: Decay rate of the second moment, in [0, 1): v changes by (1 - beta2) D^2 per round.

    Source: Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan, ICLR 2021, Algorithm 2. The paper tunes
    ``eta`` and ``tau`` for each task; the preset ``paper`` has eta = 0.1, the larger end for images, and tau = 0.001.
    The ``eta`` of the preset ``medfl`` was chosen on the validation images of heterogeneous sites
    (studies/fedsdc_optimizers.yaml).
    """

    name = "fedyogi"
    family = "averaging"
    paper = "Reddi et al., ICLR 2021"
    summary = "FedAvg with Yogi as the server optimiser (FedAdam with a slowly falling second moment)"
    supports = frozenset({Capability.DP_SGD, Capability.ROBUST})

    presets: ClassVar[Mapping[str, Meta]] = {
        "paper": {"eta": 0.1, "tau": 1e-3},
        "flower": {"eta": 0.01, "tau": 1e-3, "v0": "zero"},
        "medfl": {"eta": 0.03, "tau": 1e-3},
    }

    eta: float = Field(0.03, gt=0, allow_inf_nan=False)
    """Learning rate of the server, > 0."""
    beta2: float = Field(0.99, ge=0, lt=1)

    def second_moment(self, kept: torch.Tensor, square: torch.Tensor) -> torch.Tensor:
        """Compute the new second moment v - (1 - beta2) D^2 sign(v - D^2) from v (`kept`) and D^2 (`square`)."""
        return kept - (1 - self.beta2) * square * torch.sign(kept - square)
