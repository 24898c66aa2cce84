"""FedAdagrad."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from pydantic import Field

from medfl.contract import Capability
from medfl.toolkit.server_optimizer import AdaptiveServer
from medfl.types import Meta


class FedAdagrad(AdaptiveServer):
    """Adagrad at the server, on the mean update D of the sites.

    m <- beta1 m + (1 - beta1) D, v <- v + D^2, w <- w + eta m / (sqrt(v) + tau), for each coordinate. m starts at 0 and
    v at tau^2; in the preset ``flower`` v starts at 0. With ``beta1 = 0``, as in the paper, m is D. v only grows, so
    the steps shrink. The server acts so on trainable parameters only; the statistics of normalisation layers are
    averaged as in FedAvg. No setting makes this FedAvg.

    When to use it: When some parameters seldom get an update, and as the steadiest of the adaptive three, with no
    second moment to tune. It slows down from round to round, so ``eta`` must fit the first one: a coordinate's first
    step is eta / (sqrt(tau^2 + D^2) + tau) times FedAvg's, with ``beta1 = 0``. With 0.1 and updates of a few
    thousandths that is twenty times, which ruins random and trained weights alike; with 0.01 it is twice.

    Attributes:
        beta1: How much of the last direction is kept, in [0, 1).

    Source: Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan, ICLR 2021, Algorithm 2. The paper tunes
    ``eta`` and ``tau`` for each task; its preset has 0.1, the larger end for images, and 0.001. In the preset ``medfl``
    ``eta`` was chosen on validation images (studies/fedsdc_optimizers.yaml).
    """

    name = "fedadagrad"
    family = "averaging"
    paper = "Reddi et al., ICLR 2021"
    summary = "Adagrad at the server, on the mean update of the sites"
    supports = frozenset({Capability.DP_SGD, Capability.ROBUST})

    presets: ClassVar[Mapping[str, Meta]] = {
        "paper": {"eta": 0.1, "tau": 1e-3},
        "flower": {"eta": 0.1, "tau": 1e-9, "v0": "zero"},
        "medfl": {"eta": 0.01, "tau": 1e-3},
    }

    beta1: float = Field(0.0, ge=0, lt=1)

    def second_moment(self, kept: torch.Tensor, square: torch.Tensor) -> torch.Tensor:
        """v + D^2."""
        return kept + square
