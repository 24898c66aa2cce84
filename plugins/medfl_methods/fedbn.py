"""FedBN: FedAvg with local normalisation layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from torch import nn

from medfl.contract import Capability, ReducesTo
from medfl.networks.norms import norm_names
from medfl.types import Meta
from medfl_methods.fedavg import FedAvg


class FedBN(FedAvg):
    """FedAvg in which the normalisation layers stay at the sites (FedBN).

    Each site keeps the affine parameters, running statistics and counters of its normalisation layers. All other
    tensors are averaged as in `fedavg`. Normalisation layers are detected by their type. There is no global model,
    because a new site has no normalisation layers of its own.

    When to use it: When images look different between sites, because of scanner, stain or protocol, and the network has
    normalisation layers.

    Limits: The method does not help against different class distributions, and yields no model for a new site.

    Limit cases: On a network without normalisation layers, this method is `fedavg` with uniform weights.

    Attributes:
        norm_types: Types of normalisation layers that stay at the sites: ``batch``, ``group``, ``layer``, ``instance``.
        weights: Aggregation weights: ``uniform`` is equal, as in the paper; ``size`` is proportional to the numbers of
            images.

    Source: Li, Jiang, Zhang, Kamp, Dou, ICLR 2021, Algorithm 1.
    """

    name = "fedbn"
    family = "personal"
    paper = "Li et al., ICLR 2021"
    summary = "FedAvg with normalisation layers that stay at the sites"
    supports = frozenset({Capability.DP_SGD, Capability.ROBUST, Capability.EXACT_ADAPTERS})

    presets: ClassVar[Mapping[str, Meta]] = {"paper": {"weights": "uniform"}, "medfl": {}}
    reduces_to: ClassVar[tuple[ReducesTo, ...]] = (
        ReducesTo(
            "fedavg", {"weights": "uniform", "norm_types": ("batch",)}, {"weights": "uniform"}, only_without_norms=True
        ),
        ReducesTo("fedavg", {"norm_types": ("batch",)}, {"weights": "uniform"}, {"norm_sync": "none"}),
    )

    norm_types: tuple[Literal["batch", "group", "layer", "instance"], ...] = ("batch",)
    weights: Literal["size", "uniform"] = "uniform"

    def shared_names(self, model: nn.Module, norm_sync: str) -> list[str]:
        """Return the state-dict names of the tensors that sites and server exchange, without normalisation layers."""
        personal = norm_names(model, self.norm_types)
        return [name for name in super().shared_names(model, norm_sync) if name not in personal]
