"""FedYogi."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from pydantic import Field

from medfl.contract import Capability
from medfl.toolkit.server_optimizer import AdaptiveServer
from medfl.types import Meta


class FedYogi(AdaptiveServer):
    """Yogi at the server, on the mean update D of the sites.

    m <- beta1 m + (1 - beta1) D, v <- v - (1 - beta2) D^2 sign(v - D^2), w <- w + eta m / (sqrt(v) + tau), for each
    coordinate. m starts at 0 and v at tau^2; in the preset ``flower`` v starts at 0. The server acts so on trainable
    parameters only; the statistics of normalisation layers are averaged as in FedAvg. No setting makes this FedAvg.

    When to use it: As FedAdam, where that is unsteady because updates shrink: v then falls by steps of D^2 and not by a
    share of itself, so that the steps don't grow at once. It needs the same tuning of ``eta``.

    Attributes:
        beta2: 1 - beta2 is how much of D^2 the second moment takes or loses in a round, in [0, 1).

    Source: Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan, ICLR 2021, Algorithm 2. The paper tunes
    ``eta`` and ``tau`` for each task; its preset has 0.1, the larger end for images, and 0.001. The preset
    ``medfl`` has what `fedsdc_optimizers.yaml` chose on the validation images of unlike sites.
    """

    name = "fedyogi"
    family = "averaging"
    paper = "Reddi et al., ICLR 2021"
    summary = "Yogi at the server: FedAdam whose second moment falls slowly"
    supports = frozenset({Capability.DP_SGD, Capability.ROBUST})

    presets: ClassVar[Mapping[str, Meta]] = {
        "paper": {"eta": 0.1, "tau": 1e-3},
        "flower": {"eta": 0.01, "tau": 1e-3, "v0": "zero"},
        "medfl": {"eta": 0.03, "tau": 1e-3},
    }

    eta: float = Field(0.03, gt=0, allow_inf_nan=False)
    beta2: float = Field(0.99, ge=0, lt=1)

    def second_moment(self, kept: torch.Tensor, square: torch.Tensor) -> torch.Tensor:
        """v - (1 - beta2) D^2 sign(v - D^2)."""
        return kept - (1 - self.beta2) * square * torch.sign(kept - square)
