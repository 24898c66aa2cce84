"""FedPer: a shared body with personal heads."""

from __future__ import annotations

from typing import ClassVar

from medfl.contract import Capability, Need
from medfl.toolkit.body_sharing import BodySharingWithMeanHead


class FedPer(BodySharingWithMeanHead):
    """Shared body with personal heads (FedPer): body and head are trained together, and only bodies are averaged.

    In each round, the participants train the received body together with their own heads. The server averages the
    bodies, weighted by the numbers of training images. A site's personal model is the global body with its own head.
    The head is the network's attribute `head`. Normalisation layers of the body follow the run's `norm_sync`.

    Update rule:
        With body b, shared by all sites, and head h_k of site k:

            (b_k, h_k) = local training from (b_t, h_k)
            b_{t+1} = b_t + sum_k p_k (b_k - b_t)

    When to use it: When sites have different class distributions or label conventions, and each needs a model for its
    own patients.

    Limits: The method yields no good model for a new site, and helps little if images look different between sites,
    because the body then differs. With ``global_head = average``, a site also sends the difference of its head to the
    mean head (``head/``). The last layer and its changes often reveal a site's class distribution. Without the head,
    that distribution still influences the body's updates, but less visibly.

    Attributes:
        global_head: ``none`` keeps heads at the sites, and there is no global model. With ``average``, the run's global
            model is the global body with the mean of the participants' heads, weighted as their bodies; sites continue
            with their own heads. This needs the same network at all sites.

    Source: Arivazhagan, Aggarwal, Singh, Choudhary, arXiv 1912.00818, Algorithms 1 and 2, with one layer personal.
    """

    name = "fedper"
    family = "personal"
    paper = "Arivazhagan et al., 2019"
    summary = "FedAvg of the body, with a personal head at each site; both are trained together"
    supports = frozenset({Capability.DIFFERENT_HEADS, Capability.DP_SGD, Capability.ROBUST})

    needs: ClassVar[frozenset[Need]] = frozenset({"head", "trainable_body"})
    """Requirements that the task or the run must meet, otherwise the run is refused before it starts."""
