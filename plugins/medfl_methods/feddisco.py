"""FedDisco: aggregation weights by size and by discrepancy of the class distribution."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import torch
from pydantic import Field

from medfl.contract import Capability, Need, ReducesTo, Server
from medfl.data.pooled import labels_of
from medfl.toolkit.averaging import Averaging
from medfl.toolkit.fit import Fit
from medfl.types import Meta
from medfl.utils.metadata import Count, MetaField, list_of

DiscrepancyMetric = Literal["kl", "l2"]
"""Distance between class distributions: Kullback-Leibler divergence or Euclidean distance."""
TargetDistribution = Literal["uniform", "global"]
"""Class distribution that sites are compared with: equal shares, or the shares of all participants together."""


class FedDisco(Averaging):
    """Averaging in which sites with a skewed class distribution get less weight (FedDisco).

    The aggregation weights combine a site's size with the discrepancy between its class distribution and a target
    distribution. Local training is the same as in `fedavg`.

    Update rule:
        With n_k the site's share of the participants' training images and d_k its discrepancy, the weight of site k is
        proportional to

            max(0, n_k - a d_k + b)

        If all weights are 0, sites are weighted by size.

    When to use it: When sites have different class distributions, some of them strongly skewed, and may disclose them.

    Limits: **Each site sends the server its number of training images per class**, that is, how many patients have
    which disease. Under a privacy setting, sites do not send these counts, so the run refuses this method. If all sites
    are equally skewed, the weights hardly change. If a rare class occurs only at a skewed site, the method can do harm,
    because that site gets less weight.

    Limit cases: If all sites have the target distribution, d is 0 and the weights are n_k + b, which is not `fedavg`.

    Attributes:
        a: Factor of the discrepancy, >= 0. Grid of the paper: 0.1 to 1.
        b: Constant added to each weight, finite. A value above 0 makes the weights more equal and keeps skewed sites in
            the mean.
        metric: Discrepancy of the site's class shares p from the target's shares q: ``kl`` is sum p log(p / q), ``l2``
            is the Euclidean distance.
        normalise: Whether the discrepancies are divided by their sum over the participants. The released code does so
            for ``kl`` only.
        target: Target distribution: ``uniform`` has equal shares of all classes, ``global`` has the shares of all
            participants together.

    Source: Ye, Xu, Wang, Xu, Chen, Wang, ICML 2023, and its released code.
    """

    name = "feddisco"
    family = "averaging"
    paper = "Ye et al., ICML 2023"
    summary = "averaging with less weight for sites whose class distribution is far from a target distribution"
    supports = frozenset({Capability.EXACT_ADAPTERS})

    needs: ClassVar[frozenset[Need]] = frozenset({"class_labels"})
    """Requirements that the task or the run must meet, otherwise the run is refused before it starts."""
    sends_meta: ClassVar[Mapping[str, MetaField]] = {
        "size": MetaField("private", Count),
        "label_counts": MetaField("needed", list_of(Count, "classes"), after=("fit",)),
    }
    """Mapping from each metadata key of a reply to its type and its rule under a privacy setting."""
    reduces_to: ClassVar[tuple[ReducesTo, ...]] = (ReducesTo("fedavg", {"a": 0.0, "b": 0.0}),)

    a: float = Field(0.5, ge=0, allow_inf_nan=False)
    b: float = Field(0.1, allow_inf_nan=False)
    metric: DiscrepancyMetric = "kl"
    normalise: bool = True
    target: TargetDistribution = "uniform"

    def after_fit(self, fit: Fit) -> None:
        """Add the site's number of training images per class to the metadata of the reply."""
        counts = torch.bincount(labels_of(fit.site.train), minlength=fit.site.task.objective.classes)
        fit.meta["label_counts"] = counts.tolist()

    def weights_of(self, server: Server, metas: Mapping[str, Meta]) -> dict[str, float]:
        """Return the weight of each site's reply before normalisation, by size and discrepancy (`disco_weights`)."""
        counts = {name: meta["label_counts"] for name, meta in metas.items()}
        distances = discrepancies(counts, self.metric, self.target, self.normalise)
        return disco_weights({name: sum(own) for name, own in counts.items()}, distances, self.a, self.b)


def disco_weights(sizes: Mapping[str, int], distances: Mapping[str, float], a: float, b: float) -> dict[str, float]:
    """Compute each site's weight, total * max(0, n - a d + b); n is the site's share of all images.

    The total cancels when the weights are normalised. With a = b = 0 the weights are exactly the sizes.

    Args:
        sizes: Mapping from each site to its number of training images.
        distances: Mapping from each site to its discrepancy d, finite.
        a: Factor of the discrepancy, >= 0.
        b: Constant added to each weight, finite.
    """
    total = sum(sizes.values())
    return {name: max(0.0, size + total * (b - a * distances[name])) for name, size in sizes.items()}


def discrepancies(
    counts: Mapping[str, Sequence[int]],
    metric: DiscrepancyMetric = "kl",
    target: TargetDistribution = "uniform",
    normalise: bool = True,
) -> dict[str, float]:
    """Return the discrepancy of each site's class distribution from the target.

    Args:
        counts: Mapping from each site to its number of images per class of the task; all lists have the same length.
        metric: ``kl`` for the Kullback-Leibler divergence, ``l2`` for the Euclidean distance.
        target: ``uniform`` for equal shares of all classes, ``global`` for the shares of all participants together.
        normalise: Whether to divide by the sum over the sites, unless the sum is 0.

    Returns:
        Mapping from each site to its discrepancy, >= 0 and finite; 0 for a site without images.
    """
    together = [sum(column) for column in zip(*counts.values(), strict=True)]
    target_shares = class_shares(together if target == "global" else [1] * len(together))
    distance = kl_divergence if metric == "kl" else math.dist
    distances = {name: distance(class_shares(own), target_shares) if sum(own) else 0.0 for name, own in counts.items()}
    total = math.fsum(distances.values())
    return {name: distance / total for name, distance in distances.items()} if normalise and total > 0 else distances


def class_shares(counts: Sequence[int]) -> list[float]:
    """Divide counts by their sum; return zeros if the sum is 0."""
    total = max(sum(counts), 1)
    return [count / total for count in counts]


def kl_divergence(own: Sequence[float], aim: Sequence[float]) -> float:
    """Return the Kullback-Leibler divergence sum p log(p / q) in nats; classes with p = 0 add 0.

    Args:
        own: Shares p of the site's classes.
        aim: Shares q of the target, positive where p is positive.
    """
    return max(0.0, math.fsum(p * math.log(p / q) for p, q in zip(own, aim, strict=True) if p > 0))
