"""FedDyn."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Literal

import torch
from pydantic import Field

from medfl.contract import Capability, Model, Replies, Reply, Request, Server, Site
from medfl.errors import SettingsError
from medfl.privacy.policy import policy_of
from medfl.toolkit.aggregation import add_update
from medfl.toolkit.averaging import Averaging
from medfl.toolkit.fit import Fit
from medfl.toolkit.kept import add_to_kept, keep, kept, shared_of
from medfl.training.loop import Batch
from medfl.types import MODEL, Meta, Tensors
from medfl.utils.wire import prefixed

logger = logging.getLogger(__name__)

DRIFT, PENDING, MEAN = "drift/", "pending/", "mean/"
"""What is kept: a site's sum of updates, or the server's; what a site adds once its reply was taken; the mean model."""

FAR = 10.0
"""The server's sum of updates is warned of where it is so many times as long as the model."""


class FedDyn(Averaging):
    """Sites whose loss is bent in each round so that all have their optimum where the server's model has it.

    A site minimises F(w) + alpha <w, g_k> + (alpha/2) ||w - w_t||^2, where g_k is the sum of its own updates so far (in
    the paper's words lambda_k = -alpha g_k). The server's model is the plain mean of the participants' models plus
    1/K of the sum of all updates of all K sites with training data; so it lies beyond the mean, and the mean is what is
    reported (`report`). Parameters only: statistics of normalisation layers are averaged.

    A site takes its update into g_k when it learns, with the next order, that the server took it in, too (ours): a
    reply that is lost counts at neither side. In the first round a site trains as in `fedprox` with mu = alpha. No
    setting makes this FedAvg, also not an alpha near 0: then the server steps by the sum of all updates.

    When to use it: As `scaffold`: where unlike sites pull FedAvg's model apart, with any optimiser and no more traffic.
    With few participants or a small alpha the sum of updates grows long and the run unsteady; a warning says so.

    Attributes:
        alpha: Weight of both terms, > 0. The paper's grid is 0.001, 0.01, 0.1.
        by_size: Take alpha n / n_k at a site of n_k training images, where n is the mean over sites, as the authors'
            code does. Sites then have to tell their sizes at the start.
        report: Which model is the global one: the ``mean`` of the last participants' models, or ``start``, from which
            the next round starts.

    Source: Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama, ICLR 2021, Algorithm 1.
    """

    name = "feddyn"
    family = "averaging"
    paper = "Acar et al., ICLR 2021"
    summary = "each site's loss is bent by the sum of its updates, until all agree on one optimum"
    supports = frozenset({Capability.DP_SGD, Capability.ROBUST})

    presets: ClassVar[Mapping[str, Meta]] = {
        "paper": {"alpha": 0.01, "by_size": True, "gradient_clip": 10.0},
        "medfl": {},
    }

    alpha: float = Field(0.1, gt=0, allow_inf_nan=False)
    by_size: bool = False
    report: Literal["mean", "start"] = "mean"

    # ---- the server

    def setup(self, server: Server) -> None:
        """The common initial model, and a sum of updates of zeros.

        Raises:
            SettingsError: If alpha hangs on sizes that sites don't tell.
        """
        super().setup(server)
        silent = [name for name in server.trainable() if "size" not in server.site_info.get(name, {})]
        if self.by_size and (silent or not policy_of(server.settings).discloses_metadata("private")):
            raise SettingsError(
                "missing_site_sizes",
                f"by_size needs the number of training images of each site, got none of {silent or 'any'}: have the "
                "run's `describe` name 'size', in a run without a privacy setting, or set by_size to false.",
                setting="by_size",
                sites=silent,
            )
        shared = shared_of(server)
        keep(server, MEAN, shared)
        keep(server, DRIFT, {name: torch.zeros_like(shared[name]) for name in server.state.meta["parameters"]})

    def weight(self, meta: Meta) -> float:
        """All sites weigh alike."""
        return 1.0

    def requests(self, server: Server) -> list[Request]:
        """With the start of the round, the site's alpha, and the round of its last reply that was taken in."""
        folded, start = server.state.meta.get("folded", {}), prefixed(shared_of(server), MODEL)
        requests = [replace(request, tensors=start) for request in super().requests(server)]
        for request in requests:
            request.meta |= {"alpha": self.alpha_of(server, request.to), "folded": folded.get(request.to)}
        return requests

    def alpha_of(self, server: Server, site: str) -> float:
        """alpha, or alpha n / n_k."""
        if not self.by_size:
            return self.alpha
        sizes = [server.site_info[name]["size"] for name in server.trainable()]
        return self.alpha * math.fsum(sizes) / len(sizes) / server.site_info[site]["size"]

    def aggregate_updates(self, server: Server, replies: Replies) -> None:
        """The mean, and whose replies are in it."""
        server.state.meta["folded"] = server.state.meta.get("folded", {}) | dict.fromkeys(replies.meta, server.round)
        server.state.meta["replied"] = len(replies)
        super().aggregate_updates(server, replies)

    def server_update(self, server: Server, old: Tensors, mean: Tensors) -> Tensors:
        """The mean model, which is kept, plus the sum of all updates divided by the number of all sites."""
        new = super().server_update(server, old, mean)
        keep(server, MEAN, new)
        share = server.state.meta["replied"] / len(server.trainable())
        names = [name for name in server.state.meta["parameters"] if name in mean]
        add_to_kept(server, DRIFT, {name: mean[name] * share for name in names})
        drift = kept(server, DRIFT)
        if names and length(drift, names) > FAR * length(new, names):
            logger.warning(
                "Round %d: FedDyn's sum of updates is more than %g times as long as the model. Raise alpha, or let "
                "more sites take part.",
                server.round,
                FAR,
            )
        return new | {name: add_update(new[name], drift[name].double()) for name in names}

    def publish(self, server: Server) -> Tensors:
        """The model that is reported."""
        return prefixed(kept(server, MEAN), MODEL) if self.report == "mean" else super().publish(server)

    def models(self, participant: Server | Site) -> dict[str, Model]:
        """The model that is reported."""
        models = super().models(participant)
        if isinstance(participant, Server) and models and self.report == "mean":
            return {"global": Model(participant.task.network, kept(participant, MEAN))}
        return models

    # ---- a site

    def train(self, site: Site, request: Request) -> Reply:
        """Settle what became of the last reply, then train."""
        if request.meta["folded"] is not None and request.meta["folded"] == site.state.meta.get("replied"):
            add_to_kept(site, DRIFT, kept(site, PENDING))
        site.state.meta |= {"alpha": request.meta["alpha"], "replied": site.round}
        return super().train(site, request)

    def before_fit(self, fit: Fit) -> None:
        """The sum of own updates, on the task's device."""
        fit.extra["drift"] = {name: tensor.to(fit.site.task.device) for name, tensor in kept(fit.site, DRIFT).items()}

    def loss(self, fit: Fit, batch: Batch) -> torch.Tensor:
        """The task's loss plus alpha <w, g_k> + (alpha/2) ||w - w_t||^2."""
        drift, terms = fit.extra["drift"], []
        for name, parameter in fit.parameters():
            terms.append(0.5 * (parameter - fit.start[name]).square().sum())
            if name in drift:
                terms.append((parameter * drift[name]).sum())
        return super().loss(fit, batch) + fit.site.state.meta["alpha"] * torch.stack(terms).sum()

    def after_fit(self, fit: Fit) -> None:
        """The site's update, which waits for the server's word."""
        shared = {name for name in fit.sent if name.startswith(MODEL)}
        moved = {n: (p.detach() - fit.start[n]).cpu() for n, p in fit.parameters() if MODEL + n in shared}
        keep(fit.site, PENDING, moved)


def length(tensors: Tensors, names: list[str]) -> float:
    """The L2 norm of some tensors together."""
    return math.sqrt(math.fsum(float(tensors[name].double().square().sum()) for name in names))
