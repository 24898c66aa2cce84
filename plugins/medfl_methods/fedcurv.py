"""FedCurv: FedAvg with elastic weight consolidation across sites, by their Fisher information."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
from pydantic import Field

from medfl.contract import Need, PayloadKind, ReducesTo, Replies, Reply, Request, Server, Site
from medfl.errors import RefusedError
from medfl.task import Task
from medfl.toolkit.aggregation import check_updates
from medfl.toolkit.fisher import Estimator, fisher_at
from medfl.toolkit.fit import Fit
from medfl.toolkit.participant_state import AUXILIARY_PREFIX, auxiliary_state, set_auxiliary_state
from medfl.training.loop import Batch
from medfl.types import MODEL_PREFIX, Meta, Tensors
from medfl.utils.wire import prefixed, select
from medfl_methods.fedavg import FedAvg

FISHER_PREFIX = "fisher/"
"""Prefix of u, the sum of the sites' Fisher information, in messages and in the state."""

WEIGHTED_PREFIX = "pull/"
"""Prefix of v, the sum of the sites' Fisher information times their parameters, in messages and in the state."""


class FedCurv(FedAvg):
    """FedAvg with a penalty that keeps parameters important to other sites near their values (FedCurv).

    The importance of a parameter for a site is the diagonal of the empirical Fisher information after local training.
    FedCurv applies elastic weight consolidation across sites: a site is penalised for moving parameters that are
    important to the sites of the previous round. The penalty covers the shared parameters, not the buffers.

    Update rule:
        With w_j the locally trained model of site j in the previous round and F_j its Fisher information, a site
        minimises

            F(w) + lam sum over other sites j, sum over parameters i of F_ji (w_i - w_ji)^2

        The server sends two sums, u = sum_j F_j and v = sum_j F_j w_j. A site subtracts its own terms if the sums
        contain them. Up to a constant, the penalty is

            lam sum_i (u_i w_i^2 - 2 v_i w_i)

        The constant is also omitted from the logged loss, which may therefore be negative.

    When to use it: When local training must be long and heterogeneous sites pull the global model apart.

    Limits: The traffic is three times as large as with `fedavg`. The Fisher information reveals more about a site's
    data than an update does. The best ``lam`` depends on the estimator; choose it on validation data. Released code
    keeps the terms of every site that ever took part, however old, and lets each site subtract its terms from one sum
    in place. Here the sums cover the previous round only, and each site works on its own copy.

    Limit cases: The first round, and a run with a single site, are `fedavg`.

    Attributes:
        lam: Weight of the penalty, >= 0. Values to try: 0.001, 0.01, 0.1, 1, 10.
        fisher_samples: Maximum number of training images for the estimate of the Fisher information, >= 1; drawn again
            in each round.
        estimator: ``per_sample`` squares the gradient of each image. ``per_batch`` squares the gradient of each batch's
            mean loss, as in released code; its values are smaller by about the batch size.

    Source: Shoham, Avidor, Keren, Israel, Benditkis, Mor-Yosef, Zeitak, arXiv 1910.07796, 2019, equations 3 and 4.
    """

    name = "fedcurv"
    family = "averaging"
    paper = "Shoham et al., 2019"
    summary = "FedAvg with a Fisher-weighted penalty that protects parameters important to other sites"
    supports = frozenset()

    sends: ClassVar[Mapping[str, PayloadKind]] = {
        MODEL_PREFIX: "update",
        FISHER_PREFIX: "statistic",
        WEIGHTED_PREFIX: "statistic",
    }
    """Mapping from each name prefix of sent tensors to the kind of these tensors."""
    needs: ClassVar[frozenset[Need]] = frozenset({"class_logits"})
    """Requirements that the task or the run must meet, otherwise the run is refused before it starts."""
    reduces_to: ClassVar[tuple[ReducesTo, ...]] = (ReducesTo("fedavg", {"lam": 0.0}),)

    lam: float = Field(1.0, ge=0, allow_inf_nan=False)
    fisher_samples: int = Field(500, ge=1)
    estimator: Estimator = "per_sample"

    # ---- the server

    def setup(self, server: Server) -> None:
        """Set the server's state to the initial model, with u and v equal to 0."""
        super().setup(server)
        tensors = server.state.tensors
        zeros = {name: torch.zeros_like(tensors[name]) for name in server.state.meta["parameters"]}
        for prefix in (FISHER_PREFIX, WEIGHTED_PREFIX):
            set_auxiliary_state(server, prefix, zeros)

    def extra_request_tensors(self, server: Server) -> Tensors:
        """Return the tensors of each request besides the model: u and v, or none for ``lam = 0``."""
        if self.lam == 0:
            return {}
        weighted = prefixed(auxiliary_state(server, WEIGHTED_PREFIX), WEIGHTED_PREFIX)
        return prefixed(auxiliary_state(server, FISHER_PREFIX), FISHER_PREFIX) | weighted

    def requests(self, server: Server) -> list[Request]:
        """Return the requests of FedAvg; each tells the site whether u and v contain its own terms."""
        counted = server.state.meta.get("counted", [])
        return [replace(request, meta={"counted": request.to in counted}) for request in super().requests(server)]

    def check_tensors(self, task: Task, request: Request, tensors: Tensors) -> None:
        """Raise RefusedError unless a reply has updates and non-negative Fisher terms of the requested parameters."""
        super().check_tensors(task, request, tensors)
        check_updates(tensors, request.tensors, {FISHER_PREFIX: "update", WEIGHTED_PREFIX: "update"})
        for name, values in select(tensors, FISHER_PREFIX).items():
            if bool((values < 0).any()):
                raise RefusedError(
                    "invalid_tensor_values",
                    f"Fisher information of {ascii(name)[:60]} was refused: expected values >= 0.",
                    tensor=ascii(name)[:60],
                    minimum=0,
                )

    def aggregate_updates(self, server: Server, replies: Replies) -> None:
        """Aggregate as `fedavg` does; restart u and v, so that they contain the terms of this round only."""
        if len(replies):
            for prefix in (FISHER_PREFIX, WEIGHTED_PREFIX):
                set_auxiliary_state(
                    server,
                    prefix,
                    {name: torch.zeros_like(old) for name, old in auxiliary_state(server, prefix).items()},
                )
            server.state.meta["counted"] = sorted(replies.meta)
        super().aggregate_updates(server, replies)

    def extra_weights(self, server: Server, metas: Mapping[str, Meta]) -> dict[str, float]:
        """Return the weight of each site's tensors besides the model, before normalisation: equal weights."""
        return dict.fromkeys(metas, 1.0)

    def aggregate_extra(self, server: Server, prefix: str, mean: Tensors, replied: int) -> None:
        """Aggregate the sites' terms of u or v: add their sum (the mean times the number of replies) to the state."""
        super().aggregate_extra(server, prefix, {name: tensor * replied for name, tensor in mean.items()}, replied)

    # ---- a site

    def train(self, site: Site, request: Request) -> Reply:
        """Delete the site's own terms if u and v do not contain them, then train as `fedavg` does."""
        if not request.meta["counted"]:
            delete_own_terms(site)
        return super().train(site, request)

    def before_trainings(self, site: Site, sent: Tensors) -> dict[str, Any]:
        """Return values for `Fit.extra`: u and v without the site's own terms; delete the stored own terms."""
        sums = [
            subtract_own_terms(select(sent, prefix), auxiliary_state(site, prefix))
            for prefix in (FISHER_PREFIX, WEIGHTED_PREFIX)
        ]
        delete_own_terms(site)
        if not any(bool(values.any()) for values in sums[0].values()):
            return {}
        return {"others": [{name: t.to(site.task.device) for name, t in part.items()} for part in sums]}

    def loss(self, fit: Fit, batch: Batch) -> torch.Tensor:
        """Return the task's loss plus lam times the penalty."""
        loss = fit.task_loss(batch)
        if "others" not in fit.extra:
            return loss
        u, v = fit.extra["others"]
        return loss + self.lam * penalty({name: p for name, p in fit.parameters() if name in u}, u, v)

    def extra_reply_tensors(self, fit: Fit) -> Tensors:
        """Return the tensors for the server besides the update, F and F w, and store them in the site's state."""
        names = select(fit.sent, FISHER_PREFIX)
        if not names:
            return {}
        information = fisher_at(fit.site, fit.model, names, self.fisher_samples, self.estimator)
        weighted = {
            name: information[name] * p.detach() for name, p in fit.model.named_parameters() if name in information
        }
        for prefix, terms in ((FISHER_PREFIX, information), (WEIGHTED_PREFIX, weighted)):
            set_auxiliary_state(fit.site, prefix, {name: tensor.cpu() for name, tensor in terms.items()})
        return prefixed(information, FISHER_PREFIX) | prefixed(weighted, WEIGHTED_PREFIX)


def penalty(parameters: Mapping[str, torch.Tensor], u: Tensors, v: Tensors) -> torch.Tensor:
    """Compute the penalty sum_i (u_i w_i^2 - 2 v_i w_i) of parameters w, with gradient 2 (u w - v); may be negative.

    Args:
        parameters: Mapping from each name to the parameter w; at least one.
        u: Sum of the Fisher information, of the same shapes.
        v: Sum of the Fisher information times the parameters, of the same shapes.
    """
    return torch.stack([(w * (u[name] * w - 2 * v[name])).sum() for name, w in parameters.items()]).sum()


def subtract_own_terms(sums: Tensors, own: Tensors) -> Tensors:
    """Return sums (u or v) minus a site's own terms, for the tensors for which the site has terms."""
    return {name: total - own[name] if name in own else total for name, total in sums.items()}


def delete_own_terms(site: Site) -> None:
    """Delete the site's own terms of the previous round from its state."""
    for prefix in (FISHER_PREFIX, WEIGHTED_PREFIX):
        for name in auxiliary_state(site, prefix):
            del site.state.tensors[AUXILIARY_PREFIX + prefix + name]
