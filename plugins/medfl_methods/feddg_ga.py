"""FedDG-GA: aggregation weights by generalisation adjustment."""

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

GAP_TOLERANCE = 1e-9
"""Relative tolerance: gaps count as equal if they deviate by less than this share of the largest gap."""


class FedDGGA(Averaging):
    """Averaging with generalisation adjustment (FedDG-GA): sites that the global model serves badly get more weight.

    The generalisation gap G_k of site k is the validation loss of the global model minus the loss of the site's own
    model of the previous round. Local training is the same as in `fedavg`.

    Update rule:
        The weights start at a_k = 1 / K for all K sites with training images. After round r of R, with step length d_r:

            d_r = step (1 - (r - 1) / R)
            a_k <- a_k + d_r (G_k - mean G) / max |G - mean G|

        Then the weights are clipped to [0, 1] and normalised to sum 1. A site reports its gap with its next reply,
        before which the weights are changed, so a round needs one exchange of messages. A site that did not reply in
        the previous round has no gap and keeps its a_k. If all gaps are equal, the weights do not change.

    When to use it: When the model should perform well at hospitals that did not take part (domain generalisation). All
    sites need validation images.

    Limits: Each site reports how its validation loss changes, so a run with a privacy setting refuses this method. d_r
    depends on the number of rounds, so after its second round a run cannot be continued with another number. The
    released code differs from the paper. It does not subtract mean G, so all weights rise before the normalisation if
    the mean serves all sites badly. It also takes a third of the step: (1/3) (step / max |G|) G. The preset ``code``
    reproduces it with ``gaps = raw`` and ``step = 0.2 / 3``.

    Limit cases: The first round equals `fedavg` with ``weights = uniform``.

    Attributes:
        step: Largest change of a weight in the first round, in (0, 1).
        gaps: ``centred`` subtracts the mean of the gaps, as in the paper; ``raw`` does not, as in the released code.

    Source: Zhang, Xu, Yao, Zhang, Tian, Wang, CVPR 2023, equations 7 to 9 and Algorithm 1.
    """

    name = "feddg_ga"
    family = "averaging"
    paper = "Zhang et al., CVPR 2023"
    summary = "averaging with more weight for sites whose validation loss the global model increases most"
    supports = frozenset()

    sends_meta: ClassVar[Mapping[str, MetaField]] = {
        "size": MetaField("private", Count),
        "gap": MetaField("needed", Number | None, after=("fit",)),
    }
    """Mapping from each metadata key of a reply to its type and its disclosure under a privacy setting."""

    presets: ClassVar[Mapping[str, Meta]] = {"paper": {}, "code": {"gaps": "raw", "step": 0.2 / 3}, "medfl": {}}

    step: float = Field(0.2, gt=0, lt=1)
    gaps: Literal["centred", "raw"] = "centred"

    # ---- the server

    def setup(self, server: Server) -> None:
        """Set the server's state to the initial model and equal weights.

        Raises:
            SettingsError: If a site with training images has no validation images.
        """
        super().setup(server)
        check_validation(server, "feddg_ga weighs sites by their validation loss")
        names = server.trainable()
        server.state.meta["shares"] = dict.fromkeys(names, 1 / max(1, len(names)))

    def requests(self, server: Server) -> list[Request]:
        """Return the requests of FedAvg.

        Raises:
            SettingsError: If the run was continued with another number of rounds.
        """
        begun, rounds = server.state.meta.get("rounds"), server.settings.rounds
        if begun not in (None, rounds):
            raise SettingsError(
                "other_round_count",
                f"feddg_ga's steps depend on the number of rounds: expected {begun}, with which the run began, got "
                f"{rounds}. Start a new run.",
                expected=begun,
                found=rounds,
            )
        return super().requests(server)

    def weights_of(self, server: Server, metas: Mapping[str, Meta]) -> dict[str, float]:
        """Return the weight a_k of each site's reply before normalisation."""
        return {name: server.state.meta["shares"].get(name, 0.0) for name in metas}

    def aggregate_updates(self, server: Server, replies: Replies) -> None:
        """Update the weights from the gaps of the previous round, then average the updates."""
        gaps = {name: meta["gap"] for name, meta in replies.meta.items() if meta["gap"] is not None}
        length = self.step * (1 - (server.round - 2) / server.settings.rounds)
        if server.round > 2:  # until then no step has depended on the number of rounds
            server.state.meta["rounds"] = server.settings.rounds
        server.state.meta["shares"] = adjust_weights(
            server.state.meta["shares"], gaps, length, centre=self.gaps == "centred"
        )
        super().aggregate_updates(server, replies)

    def findings(self, server: Server) -> Findings:
        """Return results for the report at the end of the run: the weights of the sites, as ``weights``."""
        return Findings({"weights": server.state.meta["shares"]})

    # ---- a site

    def before_fit(self, fit: Fit) -> None:
        """Prepare a training: compute the gap for the reply; None if the site sent no model in the last round."""
        last, received = fit.site.state.meta.get("sent"), validation_loss(fit)
        gap = received - last["loss"] if last is not None and last["round"] == fit.site.round - 1 else math.nan
        fit.meta["gap"] = gap if math.isfinite(gap) else None

    def after_fit(self, fit: Fit) -> None:
        """Store the validation loss of the trained model with the round."""
        fit.site.state.meta["sent"] = {"round": fit.site.round, "loss": validation_loss(fit)}


def validation_loss(fit: Fit) -> float:
    """Return the mean loss of the model on the site's validation images."""
    task, site = fit.site.task, fit.site
    assert site.val is not None
    return mean_loss(fit.model, site.val, task.objective, task.loss, site.settings, task.device, task.inferer)


def adjust_weights(
    shares: Mapping[str, float], gaps: Mapping[str, float], length: float, *, centre: bool = True
) -> dict[str, float]:
    """Adjust weights a by the gaps G: return a + length (G - c) / max |G - c|, clipped to [0, 1], with sum 1.

    Args:
        shares: Mapping from each site to its weight a, >= 0; the weights sum to 1.
        gaps: Mapping from sites to their gaps G, finite. A site without a gap keeps its weight up to the normalisation.
            If all G - c are 0, the weights do not change.
        length: Largest change of a weight, >= 0.
        centre: Whether c is the mean of the gaps; otherwise c is 0.
    """
    known = {name: gap for name, gap in gaps.items() if name in shares}
    middle = math.fsum(known.values()) / max(1, len(known)) if centre else 0.0
    farthest = max((abs(gap - middle) for gap in known.values()), default=0.0)
    if farthest <= GAP_TOLERANCE * max(map(abs, known.values()), default=0.0):
        return dict(shares)
    moved = {name: share + length * (known.get(name, middle) - middle) / farthest for name, share in shares.items()}
    cut = {name: min(1.0, max(0.0, share)) for name, share in moved.items()}
    total = math.fsum(cut.values())
    return {name: share / total for name, share in cut.items()}
