"""LG-FedAvg."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from torch import nn

from medfl.contract import Capability, Need
from medfl.networks.parts import head_names
from medfl.types import Meta
from medfl_methods.fedavg import FedAvg


class LGFedAvg(FedAvg):
    """Local representations, a global head: sites share the head of the network, and each keeps its own body.

    The mirror of `fedper`. Each round the participants train the received head together with their own bodies; the new
    head is the mean of theirs. All begin with one model. A site's model is its own body under the common head, and
    there is no global model. The head is a network's attribute `head`.

    From a last layer and its changes the shares of a site's classes can often be told, and here nothing else leaves a
    site. The released code starts from a finished FedAvg model, and takes each site's best round by its test images;
    neither is done here.

    When to use it: When images look unlike from site to site but mean the same, or little may be sent: a head is
    small. Bodies are trained on a site's own images alone, so sites need enough of them.

    Attributes:
        weights: ``size`` weighs a site by its number of training images among the participants, ``uniform`` equally, as
            the released code does. Under a privacy setting sizes stay at home and the weights are uniform.

    Source: Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov, Morency, arXiv 2001.01523, Algorithm 1.
    """

    name = "lg_fedavg"
    family = "personal"
    paper = "Liang et al., 2020"
    summary = "a common head, and at each site a body of its own; both are trained together"
    supports = frozenset({Capability.DP_SGD, Capability.ROBUST})

    needs: ClassVar[frozenset[Need]] = frozenset({"head"})
    presets: ClassVar[Mapping[str, Meta]] = {"paper": {"weights": "uniform"}, "medfl": {}}

    def shared(self, model: nn.Module, norm_sync: str) -> list[str]:
        """The head's tensors."""
        head = set(head_names(model, type(model).__name__))
        return [name for name in super().shared(model, norm_sync) if name in head]
