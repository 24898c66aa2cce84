"""LG-FedAvg: a shared head with personal bodies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from torch import nn

from medfl.contract import Capability, Need
from medfl.networks.parts import head_names
from medfl.types import Meta
from medfl_methods.fedavg import FedAvg


class LGFedAvg(FedAvg):
    """Local representations with a global head (LG-FedAvg): only the heads are averaged.

    The method is the mirror image of `fedper`. The participants train the received head together with their own bodies.
    The server averages the heads. All sites start from one initial model. A site's personal model is its own body with
    the global head; there is no global model. The head is the network's attribute `head`.

    Update rule:
        With head h, shared by all sites, and body b_k of site k:

            (b_k, h_k) = local training from (b_k, h_t)
            h_{t+1} = h_t + sum_k p_k (h_k - h_t)

    When to use it: When images look different between sites but the classes mean the same, or when traffic must be
    small, because a head is small.

    Limits: Each body is trained on one site's images only, so sites need enough of them. The last layer and its changes
    often reveal a site's class distribution, although nothing else leaves a site. The released code starts from a
    trained FedAvg model, and takes each site's best round by its test images; this implementation does neither.

    Attributes:
        weights: Aggregation weights: ``size`` is proportional to the participants' numbers of training images;
            ``uniform`` is equal, as in the released code. Under a privacy setting, sites do not send their sizes and
            the weights are uniform.

    Source: Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov, Morency, arXiv 2001.01523, Algorithm 1.
    """

    name = "lg_fedavg"
    family = "personal"
    paper = "Liang et al., 2020"
    summary = "FedAvg of the head, with a personal body at each site; both are trained together"
    supports = frozenset({Capability.DP_SGD, Capability.ROBUST})

    needs: ClassVar[frozenset[Need]] = frozenset({"head"})
    """Requirements that the task or the run must meet, otherwise the run is refused before it starts."""
    presets: ClassVar[Mapping[str, Meta]] = {"paper": {"weights": "uniform"}, "medfl": {}}

    def shared_names(self, model: nn.Module, norm_sync: str) -> list[str]:
        """Return the state-dict names of the tensors that sites and server exchange: of the head."""
        head = set(head_names(model, type(model).__name__))
        return [name for name in super().shared_names(model, norm_sync) if name in head]
