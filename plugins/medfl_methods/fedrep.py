"""FedRep."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

from pydantic import Field

from medfl.contract import Capability, Need, Site
from medfl.toolkit.body_sharing import MeanHead
from medfl.toolkit.trainings import Budget, Training
from medfl.types import Meta


class FedRep(MeanHead):
    """A common body, and at each site a head of its own; a site trains first its head, then the body.

    In the first phase the received body is frozen and in evaluation mode, so that its running statistics stay too; in
    the second the head is. Each phase has a fresh optimiser over what it trains. A round has the batches of a method
    without phases, and `head_share` of them are the head's. With a share between 0 and 1 each phase has at least one
    batch; a site that has one batch in a round gets it in both.

    ``head_share = 0`` never trains a head: every site keeps the one it began with. ``head_share = 1`` never trains the
    body, which is then the same in all rounds. With ``global_head = average``, and only then, a site also sends how its
    head differs from the mean head (``head/``), from which the shares of its classes can often be told.

    When to use it: Where `fedper` is of use, sites hold enough images to fit a head to, and a round is several epochs
    long: the body is trained for heads that suit the received body already. With one epoch a round or few images at a
    site, `fedper` makes more of the same time.

    Attributes:
        head_share: Share of a round's batches in which the head is trained, in [0, 1]. A half suits rounds of few
            epochs; the paper's 10 epochs for the head and 1 for the body are 10/11 in a run with ``epochs = 11``.
        global_head: ``none`` keeps heads at home, and there is no global model. With ``average`` the mean head of the
            round's participants, weighted as their bodies, and the body are the run's global model; sites go on with
            their own heads. It needs one network at all sites.

    Source: Collins, Hassani, Mokhtari, Shakkottai, ICML 2021, Algorithm 1.
    """

    name = "fedrep"
    family = "personal"
    paper = "Collins et al., ICML 2021"
    summary = "a common body, and at each site a head of its own; first the head is trained, then the body"
    supports = frozenset({Capability.DIFFERENT_HEADS, Capability.ROBUST})

    needs: ClassVar[frozenset[Need]] = frozenset({"head"})
    presets: ClassVar[Mapping[str, Meta]] = {"paper": {"head_share": 10 / 11}, "medfl": {}}

    head_share: float = Field(0.5, ge=0, le=1)

    def trainings(self, site: Site) -> Sequence[Training]:
        """The head's, if it has a share, and the body's."""
        settings, share = site.settings, self.head_share
        images = 0 if site.train is None else len(site.train)
        total = settings.steps or settings.epochs * math.ceil(images / settings.batch_size)
        if 0 < share < 1 and total:
            total = max(total, 2)
            share = max(share, 1 / total)
        head, body = Budget(steps=total).split(share)
        last = Training(budget=body, part="body")
        return (Training("head", head, part="head"), last) if head.total else (last,)
