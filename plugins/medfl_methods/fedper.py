"""FedPer."""

from __future__ import annotations

from typing import ClassVar

from medfl.contract import Capability, Need
from medfl.toolkit.body_sharing import MeanHead


class FedPer(MeanHead):
    """A common body, and at each site a head of its own; both are trained together.

    Each round the participants train the received body jointly with their own heads; the new body is the mean of
    theirs, weighted by their numbers of training images. A site's model is the common body under its own head. The head
    is a network's attribute `head`; normalisation layers of the body are shared as the run's `norm_sync` says.

    With ``global_head = average``, and only then, a site also sends how its head differs from the mean head
    (``head/``). From a last layer and its changes the shares of a site's classes can often be told. Without it they are
    still felt in the body, but nothing shows them as plainly.

    When to use it: When sites hold unlike shares of the classes, or mean unlike things by them, and each wants a model
    for its own patients. It leaves no good model for a new site, and helps little where the images look unlike: then
    the body is what differs.

    Attributes:
        global_head: ``none`` keeps heads at home, and there is no global model. With ``average`` the mean head of the
            round's participants, weighted as their bodies, and the body are the run's global model; sites go on with
            their own heads. It needs one network at all sites.

    Source: Arivazhagan, Aggarwal, Singh, Choudhary, arXiv 1912.00818, Algorithms 1 and 2, with one layer personal.
    """

    name = "fedper"
    family = "personal"
    paper = "Arivazhagan et al., 2019"
    summary = "a common body, and at each site a head of its own; both are trained together"
    supports = frozenset({Capability.DIFFERENT_HEADS, Capability.DP_SGD, Capability.ROBUST})

    needs: ClassVar[frozenset[Need]] = frozenset({"head"})
