"""FedCE."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Literal

from medfl.contract import Findings, Replies, Reply, Request, Server, Site
from medfl.metrics import LOWER_IS_BETTER
from medfl.toolkit.aggregation import check_validation, mean_update, normalised
from medfl.toolkit.averaging import Averaging
from medfl.toolkit.kept import keep, kept
from medfl.training.predict import predict
from medfl.types import MODEL, Meta, Tensors
from medfl.utils.metadata import LARGEST, Count, MetaField, number
from medfl.utils.wire import select

LAST = "last/"
"""Where a site keeps what it sent last: the shared tensors as its training left them."""

ZERO = 1e-12
"""A sum of updates that is shorter than this share of what was added up counts as zero."""

FLOOR = 1e-3
"""Smallest weight of a site, before weights are made to sum to 1; as in the released code."""

Mode = Literal["plus", "times"]


class FedCE(Averaging):
    """Averaging in which a site weighs by what it contributes: an update unlike the others', and how bad the mean
    would be without it.

    Weights g_k begin at 1/K, for all K sites with training images. Each round the server computes the cosine of each
    update and the sum of the others', weighted by g, over trainable parameters; c_k is 1 less the mean of these cosines
    in all rounds so far, but not below 0. Before it trains, a site scores the mean without its own last model,
    (w - g_k theta_k) / (1 - g_k), on its validation images, by the task's key metric; e_k is the mean over its rounds
    of 1 less this score, or of the metric itself where lower is better. A round without such a score counts as an error
    of 1, such as a site's first. Then g_k is as c_k / sum c + e_k / sum e, or as the product c_k e_k, at least 1e-3,
    and used at once. A site that is away keeps its weight. Training at the sites is FedAvg's; with a single site this
    is `fedavg`.

    e_k is what a site says of itself: who claims a large one weighs more. As it is a function of validation data, a run
    with a privacy setting refuses this method.

    When to use it: When a fair share for each hospital matters, and what it contributed is to be shown. All need
    validation images, and should take part in each round.

    Attributes:
        mode: Whether the shares of both are added (``plus``) or multiplied (``times``).

    Source: Jiang, Roth, Li, Yang, Zhao, Nath, Xu, Dou, Xu, CVPR 2023, and its code in NVIDIA FLARE.
    """

    name = "fedce"
    family = "averaging"
    paper = "Jiang et al., CVPR 2023"
    summary = "sites weigh by what they contribute: unlike updates, and how bad the mean is without them"
    supports = frozenset()

    sends_meta: ClassVar[Mapping[str, MetaField]] = {
        "size": MetaField("private", Count),
        "error": MetaField("needed", number(0, LARGEST), after=("fit",)),
    }

    mode: Mode = "plus"

    # ---- the server

    def setup(self, server: Server) -> None:
        """The common initial model, and equal weights.

        Raises:
            SettingsError: If a site with training images has none for validation.
        """
        super().setup(server)
        check_validation(server, "fedce scores on them what the mean would be without a site")
        names = server.trainable()
        equal: Meta = dict.fromkeys(names, 1 / max(1, len(names)))
        server.state.meta |= {"shares": equal, "cosines": {}, "last_weights": {}}

    def requests(self, server: Server) -> list[Request]:
        """As in FedAvg; each participant learns how much of the mean is its own."""
        weights = server.state.meta["last_weights"]
        return [replace(request, meta={"weight": weights.get(request.to, 0.0)}) for request in super().requests(server)]

    def weights_of(self, server: Server, metas: Mapping[str, Meta]) -> dict[str, float]:
        """g_k."""
        return {name: server.state.meta["shares"].get(name, 0.0) for name in metas}

    def aggregate_updates(self, server: Server, replies: Replies) -> None:
        """Adjust the weights by this round's updates and errors, then average."""
        if not len(replies):
            return
        meta, before = server.state.meta, self.weights_of(server, replies.meta)
        for name, cosine in cosines_to_others(replies, before, meta["parameters"]).items():
            total, rounds = meta["cosines"].get(name, [0.0, 0])
            meta["cosines"][name] = [total + cosine, rounds + 1]
        means = {name: meta["cosines"][name][0] / meta["cosines"][name][1] for name in before}
        errors = {name: facts["error"] for name, facts in replies.meta.items()}
        taken, shares = math.fsum(before.values()), contributions(means, errors, self.mode)
        meta["shares"] |= {name: taken * share for name, share in shares.items()}
        meta["last_weights"] = normalised(self.weights_of(server, replies.meta), replies.meta)
        super().aggregate_updates(server, replies)

    def findings(self, server: Server) -> Findings:
        """The weights of the sites: their contributions."""
        return Findings({"weights": server.state.meta["shares"]})

    # ---- a site

    def train(self, site: Site, request: Request) -> Reply:
        """As in FedAvg, after the mean without the own last model is scored."""
        total, rounds = site.state.meta.get("errors", [0.0, 0])
        errors = [total + self.error(site, request), rounds + 1]
        reply = super().train(site, request)
        after = reply.trained["personal"].tensors
        keep(site, LAST, {name: after[name] for name in select(request.tensors, MODEL)})
        site.state.meta["errors"] = errors
        reply.meta["error"] = errors[0] / errors[1]
        return reply

    def error(self, site: Site, request: Request) -> float:
        """Of the mean without the own last model, on validation images: >= 0, and 1 where there is no score."""
        last, weight, received = kept(site, LAST), request.meta["weight"], select(request.tensors, MODEL)
        if not last or weight >= 1:
            return 1.0
        task, metric = site.task, site.task.metrics[0]
        assert site.val is not None
        model = task.load(self.full_state(site, received) | without(received, last, weight), site.network)
        judged = predict(model, site.val, task.objective, (metric,), site.settings, task.device, task.inferer)
        value = task.objective.score(metric, *judged)
        error = value if metric in LOWER_IS_BETTER else 1 - value
        return min(error, float(LARGEST)) if math.isfinite(error) else 1.0


def without(mean: Tensors, own: Tensors, weight: float) -> Tensors:
    """(w - g theta) / (1 - g): a mean without a model that weighs g < 1 in it. Integer buffers stay the mean's."""
    return {
        name: ((tensor.double() - weight * own[name].double()) / (1 - weight)).to(tensor.dtype)
        for name, tensor in mean.items()
        if tensor.is_floating_point()
    }


def cosines_to_others(replies: Replies, weights: Mapping[str, float], names: list[str]) -> dict[str, float]:
    """Site to the cosine of its update and the weighted sum of the others'; 0 where either is zero.

    Args:
        replies: At least one.
        weights: Of the updates in the sum, by site, > 0.
        names: Of the tensors that make up an update.
    """
    total, trained, cosines = mean_update(replies, dict(weights)), set(names), {}
    whole = math.fsum(float(total[name].square().sum()) for name in trained & total.keys())
    for site, tensors in replies:
        inner = own = others = 0.0
        for name, update in select(tensors, MODEL).items():
            if name in trained:
                update = update.double()
                rest = total[name] - weights[site] * update
                inner += float((update * rest).sum())
                own += float(update.square().sum())
                others += float(rest.square().sum())
        zero = others <= ZERO**2 * max(whole, weights[site] ** 2 * own) or own == 0
        cosines[site] = 0.0 if zero else max(-1.0, min(1.0, inner / math.sqrt(own) / math.sqrt(others)))
    return cosines


def contributions(cosines: Mapping[str, float], errors: Mapping[str, float], mode: Mode) -> dict[str, float]:
    """Weights of sites, >= about `FLOOR`, that sum to 1.

    Args:
        cosines: The mean cosine of each site's update and the others', in [-1, 1].
        errors: e_k of the same sites, >= 0.
        mode: As in `FedCE`.
    """
    unlike, needed = shares({name: max(0.0, 1 - cosine) for name, cosine in cosines.items()}), shares(errors)
    both = {name: unlike[name] + needed[name] if mode == "plus" else unlike[name] * needed[name] for name in cosines}
    return shares({name: max(FLOOR, share) for name, share in shares(both).items()})


def shares(values: Mapping[str, float]) -> dict[str, float]:
    """Values >= 0 divided by their sum; equal ones where all are 0."""
    total = math.fsum(values.values())
    return {name: value / total if total > 0 else 1 / len(values) for name, value in values.items()}
