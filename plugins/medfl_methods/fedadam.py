"""FedAdam: Adam on the server, applied to the mean update of the sites."""

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
    """FedAdam: Adam on the server, applied to the mean update of the sites.

    Sites train as in `fedavg`. The server treats the mean update D as a gradient. Only trainable parameters are updated
    in this way; the statistics of normalisation layers are averaged as in `fedavg`.

    Update rule:
        For each coordinate, with the mean update D of the round:

            m <- beta1 m + (1 - beta1) D
            v <- beta2 v + (1 - beta2) D^2
            w <- w + eta m / (sqrt(v) + tau)

        m starts at 0 and v at tau^2, without bias correction. The preset ``flower`` reproduces Flower's FedAdam: v
        starts at 0, and in round t, counted from 1, eta is multiplied by sqrt(1 - beta2^(t+1)) / (1 - beta1^(t+1)). The
        original Adam has the exponent t.

    When to use it: When some parameters receive far smaller updates than others, as with rare classes, so that `fedavg`
    learns them slowly.

    Limits: ``eta`` needs tuning. The first step of a coordinate is (1 - beta1) eta / (sqrt(beta2 tau^2 + (1 - beta2)
    D^2) + tau) times the step of `fedavg`. While D stays constant, the steps grow to eta D / (abs(D) + tau). With the
    preset ``flower``, the first round moves every coordinate by 0.07, independent of its update, which destroys a
    pre-trained network. No setting makes this method `fedavg`.

    Attributes:
        beta2: Decay rate of the second moment v, in [0, 1).
        bias_correction: Whether ``eta`` is corrected for the start at zero, as Flower does.

    Source: Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan, ICLR 2021, Algorithm 2. The paper tunes
    ``eta`` and ``tau`` for each task; the preset ``paper`` has eta = 0.1, the larger end for images, and tau = 0.001.
    The ``eta`` of the preset ``medfl`` was chosen on the validation images of heterogeneous sites
    (studies/fedsdc_optimizers.yaml).
    """

    name = "fedadam"
    family = "averaging"
    paper = "Reddi et al., ICLR 2021"
    summary = "FedAvg with Adam as the server optimiser"
    supports = frozenset({Capability.DP_SGD, Capability.ROBUST})

    presets: ClassVar[Mapping[str, Meta]] = {
        "paper": {"eta": 0.1, "tau": 1e-3},
        "flower": {"eta": 0.1, "tau": 1e-9, "v0": "zero", "bias_correction": True},
        "medfl": {"eta": 0.03, "tau": 1e-3},
    }

    eta: float = Field(0.03, gt=0, allow_inf_nan=False)
    """Learning rate of the server, > 0."""
    beta2: float = Field(0.99, ge=0, lt=1)
    bias_correction: bool = False

    def second_moment(self, kept: torch.Tensor, square: torch.Tensor) -> torch.Tensor:
        """Compute the new second moment beta2 v + (1 - beta2) D^2 from v (`kept`) and D^2 (`square`)."""
        return self.beta2 * kept + (1 - self.beta2) * square

    def rate(self, round_: int) -> float:
        """Return the server's learning rate in a round, counted from 1: eta, corrected if `bias_correction` is set."""
        if not self.bias_correction:
            return self.eta
        return self.eta * math.sqrt(1 - self.beta2 ** (round_ + 1)) / (1 - self.beta1 ** (round_ + 1))
