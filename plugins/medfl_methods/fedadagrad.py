"""FedAdagrad: Adagrad on the server, applied to the mean update of the sites."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from pydantic import Field

from medfl.contract import Capability
from medfl.toolkit.server_optimizer import AdaptiveServer
from medfl.types import Meta


class FedAdagrad(AdaptiveServer):
    """FedAdagrad: Adagrad on the server, applied to the mean update of the sites.

    Sites train as in `fedavg`. The server treats the mean update D as a gradient. Only trainable parameters are updated
    in this way; the statistics of normalisation layers are averaged as in `fedavg`.

    Update rule:
        For each coordinate, with the mean update D of the round:

            m <- beta1 m + (1 - beta1) D
            v <- v + D^2
            w <- w + eta m / (sqrt(v) + tau)

        m starts at 0 and v at tau^2; with ``v0 = zero`` (preset ``flower``), v starts at 0. With ``beta1 = 0``, as in
        the paper, m equals D. v only grows, so the steps shrink over the rounds.

    When to use it: When some parameters rarely receive an update. It is the most stable of the three adaptive methods
    `fedadagrad`, `fedadam` and `fedyogi`, and has no decay rate of the second moment to tune.

    Limits: ``eta`` must suit the first round, because later steps are smaller. With ``beta1 = 0``, the first step of a
    coordinate is eta / (sqrt(tau^2 + D^2) + tau) times the step of `fedavg`. For updates of a few thousandths, this
    factor is about 20 with eta = 0.1, which destroys random and pre-trained weights alike; with eta = 0.01 it is about
    2. No setting makes this method `fedavg`.

    Attributes:
        beta1: Decay rate of the first moment m, in [0, 1).

    Source: Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan, ICLR 2021, Algorithm 2. The paper tunes
    ``eta`` and ``tau`` for each task; the preset ``paper`` has eta = 0.1, the larger end for images, and tau = 0.001.
    The ``eta`` of the preset ``medfl`` was chosen on validation images (studies/fedsdc_optimizers.yaml).
    """

    name = "fedadagrad"
    family = "averaging"
    paper = "Reddi et al., ICLR 2021"
    summary = "FedAvg with Adagrad as the server optimiser"
    supports = frozenset({Capability.DP_SGD, Capability.ROBUST})

    presets: ClassVar[Mapping[str, Meta]] = {
        "paper": {"eta": 0.1, "tau": 1e-3},
        "flower": {"eta": 0.1, "tau": 1e-9, "v0": "zero"},
        "medfl": {"eta": 0.01, "tau": 1e-3},
    }

    beta1: float = Field(0.0, ge=0, lt=1)

    def second_moment(self, kept: torch.Tensor, square: torch.Tensor) -> torch.Tensor:
        """Compute the new second moment v + D^2 from v (`kept`) and D^2 (`square`)."""
        return kept + square
