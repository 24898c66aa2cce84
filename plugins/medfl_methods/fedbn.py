"""FedBN."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from torch import nn

from medfl.contract import Capability, ReducesTo
from medfl.networks.norms import norm_names
from medfl.types import Meta
from medfl_methods.fedavg import FedAvg


class FedBN(FedAvg):
    """FedAvg in which every site keeps its own normalisation layers: affine parameters, statistics and counters.

    Layers are found by type. A site's model is its own normalisation over the common rest; there is no global model,
    since an unseen site has no normalisation of its own. On a network without such layers this is FedAvg with uniform
    weights.

    When to use it: When the images of the sites look unlike, by scanner, stain or protocol, and the network has
    normalisation layers. It does not help against unlike shares of classes, and leaves no model for a new site.

    Attributes:
        norm_types: Kinds of layers that stay: ``batch``, ``group``, ``layer``, ``instance``.
        weights: ``uniform`` weighs the participants alike, as in the paper; ``size`` by their numbers of images.

    Source: Li, Jiang, Zhang, Kamp, Dou, ICLR 2021, Algorithm 1.
    """

    name = "fedbn"
    family = "personal"
    paper = "Li et al., ICLR 2021"
    summary = "FedAvg in which each site keeps its own normalisation layers"
    supports = frozenset({Capability.DP_SGD, Capability.ROBUST})

    presets: ClassVar[Mapping[str, Meta]] = {"paper": {"weights": "uniform"}, "medfl": {}}
    reduces_to: ClassVar[tuple[ReducesTo, ...]] = (
        ReducesTo(
            "fedavg", {"weights": "uniform", "norm_types": ("batch",)}, {"weights": "uniform"}, only_without_norms=True
        ),
        ReducesTo("fedavg", {"norm_types": ("batch",)}, {"weights": "uniform"}, {"norm_sync": "none"}),
    )

    norm_types: tuple[Literal["batch", "group", "layer", "instance"], ...] = ("batch",)
    weights: Literal["size", "uniform"] = "uniform"

    def shared(self, model: nn.Module, norm_sync: str) -> list[str]:
        """Everything but the normalisation layers."""
        personal = norm_names(model, self.norm_types)
        return [name for name in super().shared(model, norm_sync) if name not in personal]
