"""FedDG-GA."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from medfl.contract import Findings, Replies, Request, Server
from medfl.errors import SettingsError
from medfl.toolkit.aggregation import check_validation
from medfl.toolkit.averaging import Averaging
from medfl.toolkit.fit import Fit
from medfl.training.predict import mean_loss
from medfl.types import Meta
from medfl.utils.metadata import Count, MetaField, Number

LEAST = 1e-9
"""Gaps whose deviations are smaller than this share of the largest gap count as equal."""


class FedDGGA(Averaging):
    """Averaging in which a site weighs more, the more it loses by the mean: generalisation adjustment.

    The gap of a site is the loss of the common model on its validation images, less the loss there of the model that it
    had sent to that mean. Weights a_k begin at 1/K, for all K sites with training images. After each round r of R they
    move by d_r (G_k - mean G) / max |G - mean G|, with d_r = step (1 - (r - 1) / R), are cut to [0, 1], and made to sum
    to 1. A site tells its gap with its next reply, before which the weights are changed; so a round is one exchange.
    A site whose last reply was not to the round before has no gap and keeps its a_k. Where gaps are equal nothing
    changes. Training at the sites is FedAvg's, and the first round is that of `fedavg` with ``weights = uniform``.

    These are the paper's equations. The released code differs in two ways: it does not subtract mean G, so that where
    the mean serves all sites badly all weights rise before they are made to sum to 1, and it takes a third of the step
    (1/3 (step / max |G|) G). ``gaps = raw`` with ``step = 0.2 / 3``, the preset ``code``, is the code's rule.

    Each site tells how its validation loss changes, so a run with a privacy setting refuses this method. As d_r hangs
    on the number of rounds, a run can't be continued with another one after its second round.

    When to use it: When the model shall do well at hospitals that took no part: sites that the mean serves badly are
    heard more. All need validation images.

    Attributes:
        step: How far weights move at most in the first round, in (0, 1).
        gaps: ``centred`` subtracts the mean of the gaps, as the paper does; ``raw`` does not, as in the released code.

    Source: Zhang, Xu, Yao, Zhang, Tian, Wang, CVPR 2023, equations 7 to 9 and Algorithm 1.
    """

    name = "feddg_ga"
    family = "averaging"
    paper = "Zhang et al., CVPR 2023"
    summary = "sites weigh more, the more their validation loss loses by the mean"
    supports = frozenset()

    sends_meta: ClassVar[Mapping[str, MetaField]] = {
        "size": MetaField("private", Count),
        "gap": MetaField("needed", Number | None, after=("fit",)),
    }

    presets: ClassVar[Mapping[str, Meta]] = {"paper": {}, "code": {"gaps": "raw", "step": 0.2 / 3}, "medfl": {}}

    step: float = Field(0.2, gt=0, lt=1)
    gaps: Literal["centred", "raw"] = "centred"

    # ---- the server

    def setup(self, server: Server) -> None:
        """The common initial model, and equal weights.

        Raises:
            SettingsError: If a site with training images has none for validation.
        """
        super().setup(server)
        check_validation(server, "feddg_ga weighs sites by their validation loss")
        names = server.trainable()
        server.state.meta["shares"] = dict.fromkeys(names, 1 / max(1, len(names)))

    def requests(self, server: Server) -> list[Request]:
        """As in FedAvg.

        Raises:
            SettingsError: If the run was continued with another number of rounds.
        """
        begun, rounds = server.state.meta.get("rounds"), server.settings.rounds
        if begun not in (None, rounds):
            raise SettingsError(
                "other_round_count",
                f"feddg_ga's steps hang on the number of rounds: expected {begun}, with which the run began, got "
                f"{rounds}. Start a new run.",
                expected=begun,
                found=rounds,
            )
        return super().requests(server)

    def weights_of(self, server: Server, metas: Mapping[str, Meta]) -> dict[str, float]:
        """a_k."""
        return {name: server.state.meta["shares"].get(name, 0.0) for name in metas}

    def aggregate_updates(self, server: Server, replies: Replies) -> None:
        """Adjust the weights by the gaps of the round before, then average."""
        gaps = {name: meta["gap"] for name, meta in replies.meta.items() if meta["gap"] is not None}
        length = self.step * (1 - (server.round - 2) / server.settings.rounds)
        if server.round > 2:  # before, no step hangs on the number of rounds
            server.state.meta["rounds"] = server.settings.rounds
        server.state.meta["shares"] = adjusted(server.state.meta["shares"], gaps, length, centre=self.gaps == "centred")
        super().aggregate_updates(server, replies)

    def findings(self, server: Server) -> Findings:
        """The weights of the sites."""
        return Findings({"weights": server.state.meta["shares"]})

    # ---- a site

    def before_fit(self, fit: Fit) -> None:
        """The gap of the received model to the one that was sent last, if that was a round ago."""
        last, received = fit.site.state.meta.get("sent"), validation_loss(fit)
        gap = received - last["loss"] if last is not None and last["round"] == fit.site.round - 1 else math.nan
        fit.meta["gap"] = gap if math.isfinite(gap) else None

    def after_fit(self, fit: Fit) -> None:
        """The validation loss of what is sent."""
        fit.site.state.meta["sent"] = {"round": fit.site.round, "loss": validation_loss(fit)}


def validation_loss(fit: Fit) -> float:
    """The mean loss of the model on the site's validation images."""
    task, site = fit.site.task, fit.site
    assert site.val is not None
    return mean_loss(fit.model, site.val, task.objective, task.loss, site.settings, task.device, task.inferer)


def adjusted(
    shares: Mapping[str, float], gaps: Mapping[str, float], length: float, *, centre: bool = True
) -> dict[str, float]:
    """Return the weights a + length (G - c) / max |G - c|, cut to [0, 1] and made to sum to 1.

    Args:
        shares: a, site to weight, >= 0; they sum to 1.
        gaps: G, site to gap, finite. A site without one keeps its weight, up to the sum. Where all G - c are 0, nothing
            changes.
        length: How far a weight moves at most, >= 0.
        centre: Whether c is the mean of the gaps; otherwise c is 0.
    """
    known = {name: gap for name, gap in gaps.items() if name in shares}
    middle = math.fsum(known.values()) / max(1, len(known)) if centre else 0.0
    farthest = max((abs(gap - middle) for gap in known.values()), default=0.0)
    if farthest <= LEAST * max(map(abs, known.values()), default=0.0):
        return dict(shares)
    moved = {name: share + length * (known.get(name, middle) - middle) / farthest for name, share in shares.items()}
    cut = {name: min(1.0, max(0.0, share)) for name, share in moved.items()}
    total = math.fsum(cut.values())
    return {name: share / total for name, share in cut.items()}
