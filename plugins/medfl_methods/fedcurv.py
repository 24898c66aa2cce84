"""FedCurv."""

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
from medfl.toolkit.kept import KEPT, keep, kept
from medfl.training.loop import Batch
from medfl.types import MODEL, Meta, Tensors
from medfl.utils.wire import prefixed, select
from medfl_methods.fedavg import FedAvg

FISHER, PULL = "fisher/", "pull/"
"""What the names of u, the sum of Fisher information, and of v, the same times parameters, begin with."""


class FedCurv(FedAvg):
    """FedAvg whose sites hold parameters near those of other sites, the more, the more these depend on them.

    A site minimises its loss plus lam sum_j sum_i F_ji (w_i - w_ji)^2 over the other sites j of the last round, where
    w_j is the model that j trained and F_j the diagonal of its empirical Fisher information there. All that is needed
    of the others is u = sum F_j and v = sum F_j w_j, from which a site takes its own terms if they are in them: the
    term is sum_i (u_i w_i^2 - 2 v_i w_i). What does not depend on w is left out, also of the logged loss, so that may
    be negative. Covered are the shared parameters; buffers are not.

    The first round, one site alone, and ``lam = 0`` are FedAvg. Released code keeps the terms of every site that ever
    took part, however old, and lets sites take their own terms out of a common sum in place; here the sums are of the
    last round, and each site has its own copy.

    When to use it: When few local steps between rounds are not an option and sites with unlike data pull the model
    apart. It sends three times as much as FedAvg, and from its Fisher information more can be told of a site than from
    its update. The best ``lam`` hangs on the estimator: choose it on validation data.

    Attributes:
        lam: Weight of the term, >= 0. Worth trying: 0.001, 0.01, 0.1, 1, 10.
        fisher_samples: Most training images that a site estimates its Fisher information on, >= 1, drawn anew each
            round.
        estimator: ``per_sample`` squares each image's gradient. ``per_batch`` squares that of each batch's mean loss,
            as in released code; it is smaller by about the batch's size.

    Source: Shoham, Avidor, Keren, Israel, Benditkis, Mor-Yosef, Zeitak, arXiv 1910.07796, 2019, equations 3 and 4.
    """

    name = "fedcurv"
    family = "averaging"
    paper = "Shoham et al., 2019"
    summary = "FedAvg that holds parameters near those of the sites whose predictions hang on them"
    supports = frozenset()

    sends: ClassVar[Mapping[str, PayloadKind]] = {MODEL: "update", FISHER: "statistic", PULL: "statistic"}
    needs: ClassVar[frozenset[Need]] = frozenset({"class_logits"})
    reduces_to: ClassVar[tuple[ReducesTo, ...]] = (ReducesTo("fedavg", {"lam": 0.0}),)

    lam: float = Field(1.0, ge=0, allow_inf_nan=False)
    fisher_samples: int = Field(500, ge=1)
    estimator: Estimator = "per_sample"

    # ---- the server

    def setup(self, server: Server) -> None:
        """The common initial model, and sums of nothing."""
        super().setup(server)
        tensors = server.state.tensors
        nothing = {name: torch.zeros_like(tensors[name]) for name in server.state.meta["parameters"]}
        for prefix in (FISHER, PULL):
            keep(server, prefix, nothing)

    def extra_down(self, server: Server) -> Tensors:
        """u and v."""
        return {} if self.lam == 0 else prefixed(kept(server, FISHER), FISHER) | prefixed(kept(server, PULL), PULL)

    def requests(self, server: Server) -> list[Request]:
        """To this round's participants; each learns whether its own terms are in the sums."""
        counted = server.state.meta.get("counted", [])
        return [replace(request, meta={"counted": request.to in counted}) for request in super().requests(server)]

    def check_tensors(self, task: Task, request: Request, tensors: Tensors) -> None:
        """Updates of the model, and terms for the same parameters as the order's.

        Raises:
            RefusedError: Also if Fisher information is negative.
        """
        super().check_tensors(task, request, tensors)
        check_updates(tensors, request.tensors, {FISHER: "update", PULL: "update"})
        for name, values in select(tensors, FISHER).items():
            if bool((values < 0).any()):
                raise RefusedError(
                    "invalid_tensor_values",
                    f"Fisher information of {ascii(name)[:60]} was refused: expected values >= 0.",
                    tensor=ascii(name)[:60],
                    minimum=0,
                )

    def aggregate_updates(self, server: Server, replies: Replies) -> None:
        """As `fedavg`; the sums are those of this round alone."""
        if len(replies):
            for prefix in (FISHER, PULL):
                keep(server, prefix, {name: torch.zeros_like(old) for name, old in kept(server, prefix).items()})
            server.state.meta["counted"] = sorted(replies.meta)
        super().aggregate_updates(server, replies)

    def extra_weights(self, server: Server, metas: Mapping[str, Meta]) -> dict[str, float]:
        """Sites count alike in the sums."""
        return dict.fromkeys(metas, 1.0)

    def aggregate_extra(self, server: Server, prefix: str, mean: Tensors, replied: int) -> None:
        """The sum over the replies."""
        super().aggregate_extra(server, prefix, {name: tensor * replied for name, tensor in mean.items()}, replied)

    # ---- a site

    def train(self, site: Site, request: Request) -> Reply:
        """As `fedavg`; own terms that are not in the sums are forgotten first."""
        if not request.meta["counted"]:
            forget(site)
        return super().train(site, request)

    def before_trainings(self, site: Site, sent: Tensors) -> dict[str, Any]:
        """u and v of the other sites, where they are not zero."""
        sums = [others(select(sent, prefix), kept(site, prefix)) for prefix in (FISHER, PULL)]
        forget(site)
        if not any(bool(values.any()) for values in sums[0].values()):
            return {}
        return {"others": [{name: t.to(site.task.device) for name, t in part.items()} for part in sums]}

    def loss(self, fit: Fit, batch: Batch) -> torch.Tensor:
        """The task's loss plus lam times the term."""
        loss = super().loss(fit, batch)
        if "others" not in fit.extra:
            return loss
        u, v = fit.extra["others"]
        return loss + self.lam * penalty({name: p for name, p in fit.parameters() if name in u}, u, v)

    def extra_up(self, fit: Fit) -> Tensors:
        """F and F w, which the site keeps for the next round."""
        names = select(fit.sent, FISHER)
        if not names:
            return {}
        information = fisher_at(fit.site, fit.model, names, self.fisher_samples, self.estimator)
        pull = {name: information[name] * p.detach() for name, p in fit.model.named_parameters() if name in information}
        for prefix, terms in ((FISHER, information), (PULL, pull)):
            keep(fit.site, prefix, {name: tensor.cpu() for name, tensor in terms.items()})
        return prefixed(information, FISHER) | prefixed(pull, PULL)


def penalty(parameters: Mapping[str, torch.Tensor], u: Tensors, v: Tensors) -> torch.Tensor:
    """sum_i (u_i w_i^2 - 2 v_i w_i), whose gradient is 2 (u w - v); it may be negative.

    Args:
        parameters: w by name, at least one.
        u: Sum of Fisher information, of the same shapes.
        v: Sum of Fisher information times parameters.
    """
    return torch.stack([(w * (u[name] * w - 2 * v[name])).sum() for name, w in parameters.items()]).sum()


def others(sums: Tensors, own: Tensors) -> Tensors:
    """Sums without a site's own terms, if it has any."""
    return {name: total - own[name] if name in own else total for name, total in sums.items()}


def forget(site: Site) -> None:
    """Drop the own terms of the round before."""
    for prefix in (FISHER, PULL):
        for name in kept(site, prefix):
            del site.state.tensors[KEPT + prefix + name]
