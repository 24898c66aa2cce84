"""FedDyn: dynamic regularisation, which aligns the optima of the sites' losses with the global optimum."""

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
from medfl.toolkit.participant_state import add_to_auxiliary_state, auxiliary_state, model_tensors, set_auxiliary_state
from medfl.training.loop import Batch
from medfl.types import MODEL_PREFIX, Meta, Tensors
from medfl.utils.wire import prefixed

logger = logging.getLogger(__name__)
"""Logger of this module."""

UPDATE_SUM_PREFIX = "drift/"
"""Prefix of a sum of updates in a participant's state: at a site g_k, at the server h / K (see `FedDyn`)."""

PENDING_UPDATE_PREFIX = "pending/"
"""Prefix, in a site's state, of its last update until the server confirms that it aggregated the reply."""

MEAN_MODEL_PREFIX = "mean/"
"""Prefix, in the server's state, of the mean of the participants' models."""

MAX_RELATIVE_LENGTH = 10.0
"""Threshold of a warning: length of the server's h / K (see `FedDyn`), relative to the length of the model."""


class FedDyn(Averaging):
    """Dynamic regularisation (FedDyn): each site's loss is corrected so that all sites share the global optimum.

    A linear term in each site's loss accumulates the site's past updates. At convergence, the corrected losses of all
    sites have their optimum at the server's model. Only parameters are corrected; the statistics of normalisation
    layers are averaged.

    Update rule:
        With g_k the sum of the past updates of site k (lambda_k = -alpha g_k in the paper), the site minimises

            F_k(w) + alpha <w, g_k> + (alpha / 2) ||w - w_t||^2

        With K sites with training images and h the sum of all updates of all sites, the server computes

            mean = unweighted mean of the participants' models
            w_{t+1} = mean + h / K

        The next round starts from w_{t+1}, which lies beyond the mean. By default the mean is the reported global model
        (`report`).

    When to use it: As `scaffold`, when heterogeneous sites pull the global model of `fedavg` apart. FedDyn works with
    any optimiser and has the traffic of `fedavg`.

    Limits: With few participants or a small ``alpha``, the sum of updates grows and the run becomes unstable; a warning
    reports this. No setting makes this method `fedavg`, not even an alpha near 0, because the server then still adds
    the sum of updates.

    Limit cases: In the first round, local training equals `fedprox` with ``mu = alpha``. If a reply is lost,
    neither side counts it: a site adds its update to g_k when the next request confirms that the server aggregated it
    (an addition of medfl).

    Attributes:
        alpha: Weight of both terms, > 0. Grid of the paper: 0.001, 0.01, 0.1.
        by_size: Whether site k uses alpha n / n_k, with n_k its number of training images and n the mean over the
            sites, as the authors' code does. Sites must then disclose their sizes when the run starts.
        report: Reported global model: the ``mean`` of the last participants' models, or ``start``, the start of the
            next round.

    Source: Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama, ICLR 2021, Algorithm 1.
    """

    name = "feddyn"
    family = "averaging"
    paper = "Acar et al., ICLR 2021"
    summary = "dynamic regularisation of local losses, so that all sites share the global optimum"
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
        """Set the server's state to the initial model, with a sum of updates of 0.

        Raises:
            SettingsError: If alpha depends on the sites' sizes and a site does not disclose its size.
        """
        super().setup(server)
        undisclosed = [name for name in server.trainable() if "size" not in server.site_info.get(name, {})]
        if self.by_size and (undisclosed or not policy_of(server.settings).discloses_metadata("private")):
            raise SettingsError(
                "missing_site_sizes",
                f"by_size needs the number of training images of each site, got none of {undisclosed or 'any'}: have "
                "the run's `disclose` name 'size', in a run without a privacy setting, or set by_size to false.",
                setting="by_size",
                sites=undisclosed,
            )
        shared = model_tensors(server)
        set_auxiliary_state(server, MEAN_MODEL_PREFIX, shared)
        set_auxiliary_state(
            server,
            UPDATE_SUM_PREFIX,
            {name: torch.zeros_like(shared[name]) for name in server.state.meta["parameters"]},
        )

    def weight(self, meta: Meta) -> float:
        """Return the weight of a reply before normalisation: 1, so that all participants have equal weight."""
        return 1.0

    def requests(self, server: Server) -> list[Request]:
        """Return requests with the start of the round, the site's alpha and the round of its last aggregated reply."""
        folded, start = server.state.meta.get("folded", {}), prefixed(model_tensors(server), MODEL_PREFIX)
        requests = [replace(request, tensors=start) for request in super().requests(server)]
        for request in requests:
            request.meta |= {"alpha": self.alpha_of(server, request.to), "folded": folded.get(request.to)}
        return requests

    def alpha_of(self, server: Server, site: str) -> float:
        """Return the site's alpha: `alpha`, or alpha n / n_k for `by_size`."""
        if not self.by_size:
            return self.alpha
        sizes = [server.site_info[name]["size"] for name in server.trainable()]
        return self.alpha * math.fsum(sizes) / len(sizes) / server.site_info[site]["size"]

    def aggregate_updates(self, server: Server, replies: Replies) -> None:
        """Average the updates, and record the round for each site that replied."""
        server.state.meta["folded"] = server.state.meta.get("folded", {}) | dict.fromkeys(replies.meta, server.round)
        server.state.meta["replied"] = len(replies)
        super().aggregate_updates(server, replies)

    def server_update(self, server: Server, old: Tensors, mean: Tensors) -> Tensors:
        """Compute the new shared tensors, mean + h / K; store the mean and h / K in the server's state."""
        new = super().server_update(server, old, mean)
        set_auxiliary_state(server, MEAN_MODEL_PREFIX, new)
        share = server.state.meta["replied"] / len(server.trainable())
        names = [name for name in server.state.meta["parameters"] if name in mean]
        add_to_auxiliary_state(server, UPDATE_SUM_PREFIX, {name: mean[name] * share for name in names})
        drift = auxiliary_state(server, UPDATE_SUM_PREFIX)
        if names and joint_norm(drift, names) > MAX_RELATIVE_LENGTH * joint_norm(new, names):
            logger.warning(
                "Round %d: FedDyn's sum of updates is more than %g times as long as the model. Raise alpha, or let "
                "more sites take part.",
                server.round,
                MAX_RELATIVE_LENGTH,
            )
        return new | {name: add_update(new[name], drift[name].double()) for name in names}

    def publish(self, server: Server) -> Tensors:
        """Return the tensors that every site needs for its evaluation: the model that `report` chooses."""
        return (
            prefixed(auxiliary_state(server, MEAN_MODEL_PREFIX), MODEL_PREFIX)
            if self.report == "mean"
            else super().publish(server)
        )

    def models(self, participant: Server | Site) -> dict[str, Model]:
        """Return the models of a participant by kind; ``global`` is the model that `report` chooses."""
        models = super().models(participant)
        if isinstance(participant, Server) and models and self.report == "mean":
            return {"global": Model(participant.task.network, auxiliary_state(participant, MEAN_MODEL_PREFIX))}
        return models

    # ---- a site

    def train(self, site: Site, request: Request) -> Reply:
        """Add the last update to g_k if the server aggregated it, then train."""
        if request.meta["folded"] is not None and request.meta["folded"] == site.state.meta.get("replied"):
            add_to_auxiliary_state(site, UPDATE_SUM_PREFIX, auxiliary_state(site, PENDING_UPDATE_PREFIX))
        site.state.meta |= {"alpha": request.meta["alpha"], "replied": site.round}
        return super().train(site, request)

    def before_fit(self, fit: Fit) -> None:
        """Prepare a training: load g_k to the task's device."""
        fit.extra["drift"] = {
            name: tensor.to(fit.site.task.device)
            for name, tensor in auxiliary_state(fit.site, UPDATE_SUM_PREFIX).items()
        }

    def loss(self, fit: Fit, batch: Batch) -> torch.Tensor:
        """Return the task's loss plus alpha <w, g_k> + (alpha / 2) ||w - w_t||^2."""
        drift, terms = fit.extra["drift"], []
        for name, parameter in fit.parameters():
            terms.append(0.5 * (parameter - fit.start[name]).square().sum())
            if name in drift:
                terms.append((parameter * drift[name]).sum())
        return fit.task_loss(batch) + fit.site.state.meta["alpha"] * torch.stack(terms).sum()

    def after_fit(self, fit: Fit) -> None:
        """Store the site's update until the server confirms that it aggregated the reply."""
        shared = {name for name in fit.sent if name.startswith(MODEL_PREFIX)}
        moved = {n: (p.detach() - fit.start[n]).cpu() for n, p in fit.parameters() if MODEL_PREFIX + n in shared}
        set_auxiliary_state(fit.site, PENDING_UPDATE_PREFIX, moved)


def joint_norm(tensors: Tensors, names: list[str]) -> float:
    """Return the joint L2 norm of the named tensors."""
    return math.sqrt(math.fsum(float(tensors[name].double().square().sum()) for name in names))
