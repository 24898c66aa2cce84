"""FedRep: a shared body with personal heads, trained one after the other."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

from pydantic import Field

from medfl.contract import Capability, Need, Site
from medfl.toolkit.body_sharing import BodySharingWithMeanHead
from medfl.toolkit.training_specs import Training, TrainingBudget
from medfl.types import Meta


class FedRep(BodySharingWithMeanHead):
    """Shared representation (FedRep): a site first trains its personal head, then the shared body.

    A site trains in two phases, each with a new optimiser. In the first phase, the received body is frozen and in
    evaluation mode, so its running statistics do not change. In the second phase, the head is frozen. The server
    averages the bodies as `fedper` does. A round has as many batches as a method with one phase; `head_share` of them
    train the head.

    Update rule:
        With body b, shared by all sites, and head h_k of site k:

            h_k <- training of the head under the fixed body b_t
            b_k = training of the body under the fixed head h_k, from b_t
            b_{t+1} = b_t + sum_k p_k (b_k - b_t)

    When to use it: Where `fedper` is useful, sites have enough images to fit a head, and a round has several epochs.
    The body is then trained for heads that already suit the received body. With one epoch per round or few images per
    site, `fedper` uses the time better.

    Limits: With ``global_head = average``, a site also sends the difference of its head to the mean head (``head/``),
    which often reveals its class distribution.

    Limit cases: With ``head_share = 0``, every site keeps its initial head. With ``head_share = 1``, the body stays the
    initial one in all rounds. With a share between 0 and 1, each phase has at least one batch; a site with a single
    batch per round uses it in both phases.

    Attributes:
        head_share: Share of a round's batches that train the head, in [0, 1]. 0.5 suits rounds of few epochs. The
            paper's 10 epochs for the head and 1 for the body are 10/11 in a run with ``epochs = 11``.
        global_head: ``none`` keeps heads at the sites, and there is no global model. With ``average``, the run's global
            model is the global body with the mean of the participants' heads, weighted as their bodies; sites continue
            with their own heads. This needs the same network at all sites.

    Source: Collins, Hassani, Mokhtari, Shakkottai, ICML 2021, Algorithm 1.
    """

    name = "fedrep"
    family = "personal"
    paper = "Collins et al., ICML 2021"
    summary = "FedAvg of the body, with a personal head at each site; the head is trained first, then the body"
    supports = frozenset({Capability.DIFFERENT_HEADS, Capability.ROBUST})

    needs: ClassVar[frozenset[Need]] = frozenset({"head", "trainable_body"})
    """Requirements that the task or the run must meet, otherwise the run is refused before it starts."""
    presets: ClassVar[Mapping[str, Meta]] = {"paper": {"head_share": 10 / 11}, "medfl": {}}

    head_share: float = Field(0.5, ge=0, le=1)

    def trainings(self, site: Site) -> Sequence[Training]:
        """Return the trainings of a round in their order: of the head, if it has any batches, and of the body."""
        settings, share = site.settings, self.head_share
        images = 0 if site.train is None else len(site.train)
        total = settings.steps or settings.epochs * math.ceil(images / settings.batch_size)
        if 0 < share < 1 and total:
            total = max(total, 2)
            share = max(share, 1 / total)
        head, body = TrainingBudget(steps=total).split(share)
        last = Training(budget=body, part="body")
        return (Training("head", head, part="head"), last) if head.total else (last,)
