"""FedCE: aggregation weights from each site's estimated contribution."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Literal

from medfl.contract import Findings, Replies, Reply, Request, Server, Site
from medfl.metrics import LOWER_IS_BETTER_METRICS
from medfl.toolkit.aggregation import check_validation, mean_update, normalised_weights
from medfl.toolkit.averaging import Averaging
from medfl.toolkit.participant_state import auxiliary_state, set_auxiliary_state
from medfl.training.predict import predict
from medfl.types import MODEL_PREFIX, Meta, Tensors
from medfl.utils.metadata import MAX_COUNT, Count, MetaField, bounded_number
from medfl.utils.wire import select

LAST_MODEL_PREFIX = "last/"
"""Prefix, in a site's state, of the shared tensors as the site's last training left them."""

ZERO_TOLERANCE = 1e-12
"""Relative tolerance: a sum of updates counts as zero if it is shorter than this share of its terms."""

MIN_WEIGHT = 1e-3
"""Smallest weight of a site before the weights are normalised to sum 1, as in the released code."""

ContributionMode = Literal["plus", "times"]
"""Rule that combines a site's two shares: their sum (``plus``) or their product (``times``)."""


class FedCE(Averaging):
    """Federated averaging with weights from contribution estimation (FedCE).

    The weight g_k of a site depends on two quantities. The gradient contribution c_k is large if the site's update
    differs from the updates of the other sites. The data contribution e_k is large if the global model without the
    site's model makes many errors on the site's validation images. Local training is the same as in `fedavg`. A site
    that does not reply keeps its weight.

    Update rule:
        The weights start at g_k = 1 / K for all K sites with training images. In each round:

            c_k = max(0, 1 - mean over all rounds so far of cos(update of k, sum_{j != k} g_j update of j))
            e_k = mean over all rounds so far of the validation error of (w - g_k w_k) / (1 - g_k)
            g_k ~ c_k / sum c + e_k / sum e     (mode = plus)
            g_k ~ c_k e_k                       (mode = times)

        Here w is the received global model and w_k the model that the site sent for it. The cosine uses trainable
        parameters. The error is 1 minus the task's key metric, or the metric itself if lower is better. A round without
        an error, such as a site's first, counts as an error of 1. Weights are at least 1e-3 before normalisation, and
        are used in the same round. The participants of a round redistribute the sum of their previous weights.

    When to use it: When the contribution of each hospital is to be measured, reported and rewarded. All sites need
    validation images, and should take part in every round.

    Limits: A site reports e_k itself, so a dishonest site can raise its weight. e_k is computed from validation data,
    so a run with a privacy setting refuses this method.

    Limit cases: With a single site, this method is `fedavg`.

    Attributes:
        mode: Combination of the two shares: ``plus`` adds them, ``times`` multiplies them.

    Source: Jiang, Roth, Li, Yang, Zhao, Nath, Xu, Dou, Xu, CVPR 2023, and its code in NVIDIA FLARE.
    """

    name = "fedce"
    family = "averaging"
    paper = "Jiang et al., CVPR 2023"
    summary = "averaging with weights by contribution: dissimilar updates, and the error without the site's model"
    supports = frozenset()

    sends_meta: ClassVar[Mapping[str, MetaField]] = {
        "size": MetaField("private", Count),
        "error": MetaField("needed", bounded_number(0, MAX_COUNT), after=("fit",)),
    }
    """Mapping from each metadata key of a reply to its type and its disclosure under a privacy setting."""

    mode: ContributionMode = "plus"

    # ---- the server

    def setup(self, server: Server) -> None:
        """Set the server's state to the initial model and equal weights.

        Raises:
            SettingsError: If a site with training images has no validation images.
        """
        super().setup(server)
        check_validation(server, "fedce evaluates on them the global model without a site's model")
        names = server.trainable()
        equal: Meta = dict.fromkeys(names, 1 / max(1, len(names)))
        server.state.meta |= {"shares": equal, "cosines": {}, "last_weights": {}}

    def requests(self, server: Server) -> list[Request]:
        """Return the requests of FedAvg; each contains the site's weight in the current global model."""
        weights = server.state.meta["last_weights"]
        return [replace(request, meta={"weight": weights.get(request.to, 0.0)}) for request in super().requests(server)]

    def weights_of(self, server: Server, metas: Mapping[str, Meta]) -> dict[str, float]:
        """Return the weight g_k of each site's reply before normalisation."""
        return {name: server.state.meta["shares"].get(name, 0.0) for name in metas}

    def aggregate_updates(self, server: Server, replies: Replies) -> None:
        """Update the weights from this round's updates and errors, then average the updates."""
        if not len(replies):
            return
        meta, before = server.state.meta, self.weights_of(server, replies.meta)
        for name, cosine in cosines_to_others(replies, before, meta["parameters"]).items():
            total, rounds = meta["cosines"].get(name, [0.0, 0])
            meta["cosines"][name] = [total + cosine, rounds + 1]
        means = {name: meta["cosines"][name][0] / meta["cosines"][name][1] for name in before}
        errors = {name: reply["error"] for name, reply in replies.meta.items()}
        total_weight, shares = math.fsum(before.values()), contributions(means, errors, self.mode)
        meta["shares"] |= {name: total_weight * share for name, share in shares.items()}
        meta["last_weights"] = normalised_weights(self.weights_of(server, replies.meta), replies.meta)
        super().aggregate_updates(server, replies)

    def findings(self, server: Server) -> Findings:
        """Return results for the report at the end of the run: the weights of the sites, as ``weights``."""
        return Findings({"weights": server.state.meta["shares"]})

    # ---- a site

    def train(self, site: Site, request: Request) -> Reply:
        """Compute the site's error, then train as in FedAvg; the reply contains the mean error so far."""
        total, rounds = site.state.meta.get("errors", [0.0, 0])
        errors = [total + self.error(site, request), rounds + 1]
        reply = super().train(site, request)
        after = reply.trained["personal"].tensors
        set_auxiliary_state(
            site, LAST_MODEL_PREFIX, {name: after[name] for name in select(request.tensors, MODEL_PREFIX)}
        )
        site.state.meta["errors"] = errors
        reply.meta["error"] = errors[0] / errors[1]
        return reply

    def error(self, site: Site, request: Request) -> float:
        """Return the validation error of the global model without the site's last model.

        Returns:
            Value >= 0; 1 if there is no last model or no finite score.
        """
        last, weight, received = (
            auxiliary_state(site, LAST_MODEL_PREFIX),
            request.meta["weight"],
            select(request.tensors, MODEL_PREFIX),
        )
        if not last or weight >= 1:
            return 1.0
        task, metric = site.task, site.task.metrics[0]
        assert site.val is not None
        model = task.load(self.full_state(site, received) | remove_model(received, last, weight), site.network)
        predictions = predict(model, site.val, task.objective, (metric,), site.settings, task.device, task.inferer)
        value = task.objective.score(metric, *predictions)
        error = value if metric in LOWER_IS_BETTER_METRICS else 1 - value
        return min(error, float(MAX_COUNT)) if math.isfinite(error) else 1.0


def remove_model(mean: Tensors, own: Tensors, weight: float) -> Tensors:
    """Remove one model from a weighted mean of models: return (w - g w_k) / (1 - g).

    Args:
        mean: Mean w.
        own: Model w_k to remove.
        weight: Weight g of that model in the mean, < 1.

    Returns:
        Floating-point tensors only; integer buffers are left out.
    """
    return {
        name: ((tensor.double() - weight * own[name].double()) / (1 - weight)).to(tensor.dtype)
        for name, tensor in mean.items()
        if tensor.is_floating_point()
    }


def cosines_to_others(replies: Replies, weights: Mapping[str, float], names: list[str]) -> dict[str, float]:
    """Compute the cosine between each site's update and the weighted sum of all other updates; 0 if either is zero.

    Args:
        replies: At least one reply.
        weights: Mapping from each site to its weight in the sum, > 0.
        names: Names of the tensors that make up an update.
    """
    total, trained, cosines = mean_update(replies, dict(weights)), set(names), {}
    whole = math.fsum(float(total[name].square().sum()) for name in trained & total.keys())
    for site, tensors in replies:
        inner = own = others = 0.0
        for name, update in select(tensors, MODEL_PREFIX).items():
            if name in trained:
                update = update.double()
                rest = total[name] - weights[site] * update
                inner += float((update * rest).sum())
                own += float(update.square().sum())
                others += float(rest.square().sum())
        zero = others <= ZERO_TOLERANCE**2 * max(whole, weights[site] ** 2 * own) or own == 0
        cosines[site] = 0.0 if zero else max(-1.0, min(1.0, inner / math.sqrt(own) / math.sqrt(others)))
    return cosines


def contributions(
    cosines: Mapping[str, float], errors: Mapping[str, float], mode: ContributionMode
) -> dict[str, float]:
    """Return the new weights of the sites, which sum to 1 and are at least about `MIN_WEIGHT`.

    Args:
        cosines: Mean cosine between each site's update and the other sites' updates, in [-1, 1].
        errors: Mapping from the same sites to their errors e_k, >= 0.
        mode: Combination of the two shares: ``plus`` adds them, ``times`` multiplies them.
    """
    gradient_shares = normalise_shares({name: max(0.0, 1 - cosine) for name, cosine in cosines.items()})
    data_shares = normalise_shares(errors)
    combine = operator.add if mode == "plus" else operator.mul
    combined = normalise_shares({name: combine(gradient_shares[name], data_shares[name]) for name in cosines})
    return normalise_shares({name: max(MIN_WEIGHT, share) for name, share in combined.items()})


def normalise_shares(values: Mapping[str, float]) -> dict[str, float]:
    """Divide values >= 0 by their sum; return equal shares if all values are 0."""
    total = math.fsum(values.values())
    return {name: value / total if total > 0 else 1 / len(values) for name, value in values.items()}
