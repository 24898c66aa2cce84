"""FedAdam."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import torch
from pydantic import Field

from medfl.contract import Capability
from medfl.toolkit.server_optimizer import AdaptiveServer
from medfl.types import Meta


class FedAdam(AdaptiveServer):
    """Adam at the server, on the mean update D of the sites.

    m <- beta1 m + (1 - beta1) D, v <- beta2 v + (1 - beta2) D^2, w <- w + eta m / (sqrt(v) + tau), for each coordinate.
    m starts at 0 and v at tau^2, and neither is corrected for that. The preset ``flower`` does as Flower's FedAdam: v
    starts at 0, and in round t, counted from 1, eta is multiplied by sqrt(1 - beta2^(t+1)) / (1 - beta1^(t+1)); Adam
    itself has the exponent t. The server acts so on trainable parameters only; the statistics of normalisation layers
    are averaged as in FedAvg. No setting makes this FedAvg.

    When to use it: When some parameters get far smaller updates than others, as with rare classes, and FedAvg is slow
    there. It needs tuning: a coordinate's first step is (1 - beta1) eta / (sqrt(beta2 tau^2 + (1 - beta2) D^2) + tau)
    times FedAvg's, and they grow to eta D / (abs(D) + tau) while D stays what it is. With the preset ``flower`` the
    first round moves every coordinate by 0.07, whatever its update, which destroys a pre-trained network.

    Attributes:
        beta2: How much of the second moment is kept, in [0, 1).
        bias_correction: Whether ``eta`` is corrected for the start at zero, as Flower does.

    Source: Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan, ICLR 2021, Algorithm 2. The paper tunes
    ``eta`` and ``tau`` for each task; its preset has 0.1, the larger end for images, and 0.001. The preset
    ``medfl`` has what `fedsdc_optimizers.yaml` chose on the validation images of unlike sites.
    """

    name = "fedadam"
    family = "averaging"
    paper = "Reddi et al., ICLR 2021"
    summary = "Adam at the server, on the mean update of the sites"
    supports = frozenset({Capability.DP_SGD, Capability.ROBUST})

    presets: ClassVar[Mapping[str, Meta]] = {
        "paper": {"eta": 0.1, "tau": 1e-3},
        "flower": {"eta": 0.1, "tau": 1e-9, "v0": "zero", "bias_correction": True},
        "medfl": {"eta": 0.03, "tau": 1e-3},
    }

    eta: float = Field(0.03, gt=0, allow_inf_nan=False)
    beta2: float = Field(0.99, ge=0, lt=1)
    bias_correction: bool = False

    def second_moment(self, kept: torch.Tensor, square: torch.Tensor) -> torch.Tensor:
        """beta2 v + (1 - beta2) D^2."""
        return self.beta2 * kept + (1 - self.beta2) * square

    def rate(self, round_: int) -> float:
        """eta, corrected if that is asked for."""
        if not self.bias_correction:
            return self.eta
        return self.eta * math.sqrt(1 - self.beta2 ** (round_ + 1)) / (1 - self.beta1 ** (round_ + 1))
