"""FedDisco."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import torch
from pydantic import Field

from medfl.contract import Need, ReducesTo, Server
from medfl.data.pooled import labels_of
from medfl.toolkit.averaging import Averaging
from medfl.toolkit.fit import Fit
from medfl.types import Meta
from medfl.utils.metadata import Count, MetaField, list_of

Metric = Literal["kl", "l2"]
Target = Literal["uniform", "global"]


class FedDisco(Averaging):
    """Averaging in which a site weighs less, the further its shares of classes are from a target's.

    A site weighs max(0, n - a d + b): n is its share of the participants' training images, d the discrepancy between
    its shares of classes and the target's. If all weights are 0, sites weigh by size. Training at the sites is
    FedAvg's. ``a = 0`` with ``b = 0`` makes this FedAvg. Where all sites have the target's shares, d is 0 and they
    weigh by n + b, which is not FedAvg.

    **Each site tells the server how many training images of each class it has**: in a federation of hospitals, how
    many patients have which disease. A run with a privacy setting keeps that at home, and so refuses this method.

    When to use it: When sites hold unlike shares of classes, some of them nearly all, and may tell which. Where all
    sites are equally skewed it changes little, and where a rare class lives at one skewed site it can do harm, as that
    site counts less.

    Attributes:
        a: How much the discrepancy lowers a weight, >= 0. The paper's grid is 0.1 to 1.
        b: Added to each weight, finite: above 0 it evens out the weights and keeps skewed sites in.
        metric: ``kl`` is sum p log(p / q) over classes, of the site's shares p and the target's q; ``l2`` their
            Euclidean distance.
        normalise: Divide the discrepancies by their sum over the participants. The released code does it for ``kl``
            only.
        target: ``uniform`` for equal shares of all classes, or ``global`` for the shares of all participants together.

    Source: Ye, Xu, Wang, Xu, Chen, Wang, ICML 2023, and its released code.
    """

    name = "feddisco"
    family = "averaging"
    paper = "Ye et al., ICML 2023"
    summary = "sites weigh less, the further their shares of classes are from a target's"
    supports = frozenset()

    needs: ClassVar[frozenset[Need]] = frozenset({"class_labels"})
    sends_meta: ClassVar[Mapping[str, MetaField]] = {
        "size": MetaField("private", Count),
        "label_counts": MetaField("needed", list_of(Count, "classes"), after=("fit",)),
    }
    reduces_to: ClassVar[tuple[ReducesTo, ...]] = (ReducesTo("fedavg", {"a": 0.0, "b": 0.0}),)

    a: float = Field(0.5, ge=0, allow_inf_nan=False)
    b: float = Field(0.1, allow_inf_nan=False)
    metric: Metric = "kl"
    normalise: bool = True
    target: Target = "uniform"

    def after_fit(self, fit: Fit) -> None:
        """The site's numbers of images of each class."""
        counts = torch.bincount(labels_of(fit.site.train), minlength=fit.site.task.objective.classes)
        fit.meta["label_counts"] = counts.tolist()

    def weights_of(self, server: Server, metas: Mapping[str, Meta]) -> dict[str, float]:
        """By size and discrepancy, in images."""
        counts = {name: meta["label_counts"] for name, meta in metas.items()}
        distances = discrepancies(counts, self.metric, self.target, self.normalise)
        return disco_weights({name: sum(own) for name, own in counts.items()}, distances, self.a, self.b)


def disco_weights(sizes: Mapping[str, int], distances: Mapping[str, float], a: float, b: float) -> dict[str, float]:
    """max(0, n - a d + b) times all images, where n is a site's share of them.

    The factor changes no weight once they are normalised, and with a = b = 0 it leaves the sizes as they are.

    Args:
        sizes: Site to training images.
        distances: Site to discrepancy, finite.
        a: How much a discrepancy takes, >= 0.
        b: What each site gets, finite.
    """
    total = sum(sizes.values())
    return {name: max(0.0, size + total * (b - a * distances[name])) for name, size in sizes.items()}


def discrepancies(
    counts: Mapping[str, Sequence[int]], metric: Metric = "kl", target: Target = "uniform", normalise: bool = True
) -> dict[str, float]:
    """How far each site's shares of classes are from the target's; 0 for a site without images.

    Args:
        counts: Site to images of each class of the task; all of one length.
        metric: ``kl`` or ``l2``.
        target: ``uniform``, or ``global`` for all sites together.
        normalise: Divide by the sum over sites, unless that is 0.

    Returns:
        Site to discrepancy, >= 0 and finite.
    """
    together = [sum(column) for column in zip(*counts.values(), strict=True)]
    aim = shares(together if target == "global" else [1] * len(together))
    distance = divergence if metric == "kl" else math.dist
    distances = {name: distance(shares(own), aim) if sum(own) else 0.0 for name, own in counts.items()}
    total = math.fsum(distances.values())
    return {name: distance / total for name, distance in distances.items()} if normalise and total > 0 else distances


def shares(counts: Sequence[int]) -> list[float]:
    """Counts divided by their sum; zeros if there are none."""
    total = max(sum(counts), 1)
    return [count / total for count in counts]


def divergence(own: Sequence[float], aim: Sequence[float]) -> float:
    """sum p log(p / q) in nats; a class that the site lacks counts 0."""
    return max(0.0, math.fsum(p * math.log(p / q) for p, q in zip(own, aim, strict=True) if p > 0))
