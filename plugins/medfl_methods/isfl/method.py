"""ISFL."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from pydantic import Field

from medfl.contract import Need, Replies, Reply, Request, Server, Site
from medfl.data.pooled import labels_of
from medfl.errors import SettingsError
from medfl.privacy.policy import policy_of
from medfl.toolkit.fit import Fit
from medfl.types import Meta
from medfl.utils.metadata import Count, MetaField, list_of
from medfl_methods.fedavg import FedAvg
from medfl_methods.isfl.importance_sampling import class_lipschitz, probe_rows, sampling_distribution

logger = logging.getLogger(__name__)

COUNTS = "label_counts"
"""Meta key: training images of each class, at one site in replies, at all known sites in orders."""

LIPSCHITZ = "lipschitz"
"""Meta key of a site's state."""


class ISFL(FedAvg):
    """FedAvg with importance sampling: a site draws its images, with replacement, as often as their classes deserve.

    An image of class c is drawn in proportion to w_c = q_c / p_local_c, where p_local are the class shares of the site,
    so that class c makes up q_c of what is drawn; an epoch is as many draws as there are images. q is the target
    distribution p, moved away from classes whose gradients changed most in the site's last training
    (`medfl_methods.isfl.importance_sampling`), as far as no class falls below sigma p_local. A site's first training
    has q = p. A class that a site lacks can't be drawn: the others share its part.

    Gradients are measured anew at the end of each training, on a class-wise subsample of the site's training images.
    (The released code measures them on images drawn from the training sets of all sites, which no federation has at
    hand.) The method sets how images are drawn, so a run with ``balance = sampling`` is refused.

    When to use it: When sites hold unlike shares of many classes and every site has some images of most of them.
    Compare it with `fedavg` under ``balance = sampling``, which is what its first round does with a uniform target.
    Gamma always goes to the end of its range, so the class with the steepest gradients is hardly drawn for a round.
    **Do not use it with two classes**, or with few at a site: the slightest difference takes one of two classes down to
    sigma p_local, and accuracy may stay at chance; a `sigma` near 1 tames that.

    Attributes:
        weights: ``size`` weighs a site by its number of training images among the participants, ``uniform`` equally, as
            the paper.
        sigma: The least share of a class in what is drawn, as a part of its share at the site, in [0, 1]. 0 may leave
            a class out.
        probe: Training images, drawn anew each round and as many of each class, on which gradients are measured, >= 1;
            at least one of each class.
        target: The distribution p: ``uniform`` over the classes; or ``counts``, that of all sites' training images, for
            which sites tell the server how many images of each class they have. Until the server knows any (it does
            from the start if the run's `describe` names label_counts) p is uniform. Under a privacy setting counts stay
            at home, so ``counts`` is refused.

    Source: Zhu, Shi, Fan, Peng, Letaief, IEEE Internet of Things Journal 2024; the formula as in their released code.
    """

    name = "isfl"
    family = "averaging"
    paper = "Zhu et al., IEEE Internet of Things Journal 2024"
    summary = "FedAvg in which sites draw images as often as their classes deserve, by how gradients change"
    supports = frozenset()

    needs: ClassVar[frozenset[Need]] = frozenset({"class_labels"})
    sends_meta: ClassVar[Mapping[str, MetaField]] = {
        "size": MetaField("private", Count),
        COUNTS: MetaField("private", list_of(Count, "classes")),
    }
    presets: ClassVar[Mapping[str, Meta]] = {"paper": {"weights": "uniform", "target": "counts"}, "medfl": {}}

    sigma: float = Field(0.02, ge=0, le=1)
    probe: int = Field(1000, ge=1)
    target: Literal["uniform", "counts"] = "uniform"

    # ---- the server

    def setup(self, server: Server) -> None:
        """The common initial model, and the counts that sites told at the start.

        Raises:
            SettingsError: If the run draws images in its own way, or keeps the counts that the target needs.
        """
        if server.settings.balance == "sampling":
            raise SettingsError(
                "incompatible_settings",
                "Method 'isfl' sets how often images are drawn, and so does balance 'sampling': expected one of the "
                "two. Set balance to 'none' or 'loss', or choose another method.",
                settings=("method", "balance"),
                method="isfl",
            )
        if self.target == "counts" and not policy_of(server.settings).discloses_metadata("private"):
            raise SettingsError(
                "incompatible_settings",
                "Method 'isfl' with target 'counts' needs the sites' label counts, and a privacy setting keeps them at "
                "home. Set target to 'uniform'.",
                settings=("target", "privacy"),
                method="isfl",
            )
        if server.task.objective.classes == 2 and self.sigma < 0.5:
            logger.warning(
                "With two classes, 'isfl' draws one of them at %g of its share in each round: expect it to learn "
                "little. Raise sigma, or choose another method.",
                self.sigma,
            )
        super().setup(server)
        counts = {name: site_info[COUNTS] for name, site_info in server.site_info.items() if COUNTS in site_info}
        server.state.meta[COUNTS] = counts if self.target == "counts" else {}

    def requests(self, server: Server) -> list[Request]:
        """As in FedAvg, with the sum of the counts that the server knows."""
        requests, known = super().requests(server), server.state.meta[COUNTS].values()
        for request in requests if known else []:
            request.meta[COUNTS] = [sum(counts) for counts in zip(*known, strict=True)]
        return requests

    def aggregate_updates(self, server: Server, replies: Replies) -> None:
        """As in FedAvg; counts are kept, by site."""
        super().aggregate_updates(server, replies)
        server.state.meta[COUNTS] |= {name: meta[COUNTS] for name, meta in replies.meta.items() if COUNTS in meta}

    # ---- a site

    def train(self, site: Site, request: Request) -> Reply:
        """As in FedAvg; the counts of the order are kept for the sampling."""
        site.state.meta[COUNTS] = request.meta.get(COUNTS)
        return super().train(site, request)

    def row_weights(self, fit: Fit) -> torch.Tensor:
        """The weight of each image's class."""
        site = fit.site
        own = local_counts(site)
        known = site.state.meta[COUNTS]
        p = torch.ones_like(own) if known is None else torch.maximum(torch.tensor(known).to(own), own)
        lipschitz = torch.tensor(site.state.meta.get(LIPSCHITZ, [0.0] * len(own)))
        _, weights, _ = sampling_distribution(p / p.sum(), own / own.sum(), lipschitz, self.sigma)
        return weights[labels_of(site.train)]

    def after_fit(self, fit: Fit) -> None:
        """Measure how much gradients changed, for the next training; tell the counts where they are needed."""
        site = fit.site
        rows = probe_rows(labels_of(site.train), self.probe, site.rng("probe"))
        batches = map(site.train.batch, rows.split(site.settings.batch_size))
        constants = class_lipschitz(fit.model, site.task.loss, fit.start, batches, site.task.objective.classes)
        site.state.meta[LIPSCHITZ] = constants.tolist()
        if self.target == "counts":
            fit.meta[COUNTS] = [int(count) for count in local_counts(site)]


def local_counts(site: Site) -> torch.Tensor:
    """A site's training images of each class, shape (num_classes,), float64."""
    return torch.bincount(labels_of(site.train), minlength=site.task.objective.classes).double()
