"""ISFL as a method class: sampling of images at the sites and exchange of label counts."""

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
from medfl_methods.isfl.importance_sampling import class_lipschitz, draw_probe_rows, sampling_distribution

logger = logging.getLogger(__name__)

COUNTS = "label_counts"
"""Metadata key of the numbers of training images by class: of a site in its reply, of all known sites in requests."""

LIPSCHITZ = "lipschitz"
"""Key in the metadata of a site's state: Lipschitz constant of each class, which says how much its gradients change."""


class ISFL(FedAvg):
    """FedAvg with importance sampling: each site draws its images, with replacement, by class-dependent weights.

    The changes of gradients are measured again at the end of each training, on a subsample of the site's training
    images that is balanced by class. The released code measures them on images from the training sets of all sites,
    which no site has in a federation. The method determines how images are drawn, so a run with ``balance = sampling``
    is refused.

    Update rule:
        An image of class c is drawn with a probability proportional to w_c = q_c / p_local_c, where p_local is the
        class distribution of the site. Class c therefore makes up the fraction q_c of the drawn images. An epoch has as
        many draws as the site has images. q is the target distribution p, moved away from the classes whose gradients
        changed most in the site's last training, until a class would fall below sigma p_local:

            q = p + Gamma alpha

        with direction alpha and step Gamma (`medfl_methods.isfl.importance_sampling`).

        The first training of a site uses q = p. A class that a site lacks cannot be drawn; the other classes share its
        part.

    When to use it: Use it if there are many classes, their distribution differs between sites, and every site has some
    images of most classes. Compare it with `fedavg` under ``balance = sampling``, which equals its first round with a
    uniform target. Gamma always reaches the end of its range, so the class with the steepest gradients is almost absent
    from a round. **Do not use it with two classes**, or with few classes at a site: the smallest difference reduces one
    of two classes to sigma p_local, and accuracy may stay at chance; a `sigma` near 1 limits this effect.

    Attributes:
        weights: ``size`` weights a site by its number of training images among the participants, ``uniform`` weights
            all sites equally, as in the paper.
        sigma: Lower limit of a class in the drawn images, as a fraction of the class's share at the site, in [0, 1].
            With 0 a class may be left out.
        probe: Number of training images on which gradients are measured, >= 1; they are redrawn in each round, equally
            many and at least one of each class.
        target: Target distribution p: ``uniform`` over the classes; or ``counts``, the distribution in all sites'
            training images, for which sites report their numbers of images by class. As long as the server knows no
            counts, p is uniform; it knows them from the start if the run's `disclose` names label_counts. Under a
            privacy setting sites do not report counts, so ``counts`` is refused.

    Source: Zhu, Shi, Fan, Peng, Letaief, IEEE Internet of Things Journal 2024; the formula as in their released code.
    """

    name = "isfl"
    family = "averaging"
    paper = "Zhu et al., IEEE Internet of Things Journal 2024"
    summary = "FedAvg with importance sampling: sites draw images by class, depending on how gradients change"
    supports = frozenset()

    needs: ClassVar[frozenset[Need]] = frozenset({"class_labels"})
    """Properties that the task, its data and its networks must have for this method."""
    sends_meta: ClassVar[Mapping[str, MetaField]] = {
        "size": MetaField("private", Count),
        COUNTS: MetaField("private", list_of(Count, "classes")),
    }
    """Metadata in a site's reply: mapping from each key to its type and to whether the value is private."""
    presets: ClassVar[Mapping[str, Meta]] = {"paper": {"weights": "uniform", "target": "counts"}, "medfl": {}}

    sigma: float = Field(0.02, ge=0, le=1)
    probe: int = Field(1000, ge=1)
    target: Literal["uniform", "counts"] = "uniform"

    # ---- the server

    def setup(self, server: Server) -> None:
        """Initialise the model in the server's state, with the label counts that sites reported at the start.

        Log a warning if there are only two classes and `sigma` is small.

        Raises:
            SettingsError: If `balance` is ``sampling``, or the target needs counts that a privacy setting withholds.
        """
        if server.settings.balance == "sampling":
            raise SettingsError(
                "incompatible_settings",
                "Method 'isfl' and balance 'sampling' both determine how often images are drawn: expected only one of "
                "them. Set balance to 'none' or 'loss', or choose another method.",
                settings=("method", "balance"),
                method="isfl",
            )
        if self.target == "counts" and not policy_of(server.settings).discloses_metadata("private"):
            raise SettingsError(
                "incompatible_settings",
                "Method 'isfl' with target 'counts' needs the sites' label counts, which sites do not report under a "
                "privacy setting. Set target to 'uniform'.",
                settings=("target", "privacy"),
                method="isfl",
            )
        if server.task.objective.classes == 2 and self.sigma < 0.5:
            logger.warning(
                "With two classes, 'isfl' draws one of the classes at only %g of its share in each round, so it learns "
                "little. Raise sigma, or choose another method.",
                self.sigma,
            )
        super().setup(server)
        counts = {name: site_info[COUNTS] for name, site_info in server.site_info.items() if COUNTS in site_info}
        server.state.meta[COUNTS] = counts if self.target == "counts" else {}

    def requests(self, server: Server) -> list[Request]:
        """Return the requests to train for this round's participants: the model and the sum of known label counts."""
        requests, known = super().requests(server), server.state.meta[COUNTS].values()
        for request in requests if known else []:
            request.meta[COUNTS] = [sum(counts) for counts in zip(*known, strict=True)]
        return requests

    def aggregate_updates(self, server: Server, replies: Replies) -> None:
        """Average the models as in FedAvg, and store the label counts that sites reported."""
        super().aggregate_updates(server, replies)
        server.state.meta[COUNTS] |= {name: meta[COUNTS] for name, meta in replies.meta.items() if COUNTS in meta}

    # ---- a site

    def train(self, site: Site, request: Request) -> Reply:
        """Train the model at a site as in FedAvg, with the label counts of the request as target of the sampling."""
        site.state.meta[COUNTS] = request.meta.get(COUNTS)
        return super().train(site, request)

    def row_weights(self, fit: Fit) -> torch.Tensor:
        """Return the weight with which each training image of the site is drawn, w_c for an image of class c."""
        site = fit.site
        own = local_counts(site)
        known = site.state.meta[COUNTS]
        p = torch.ones_like(own) if known is None else torch.maximum(torch.tensor(known).to(own), own)
        lipschitz = torch.tensor(site.state.meta.get(LIPSCHITZ, [0.0] * len(own)))
        _, weights, _ = sampling_distribution(p / p.sum(), own / own.sum(), lipschitz, self.sigma)
        return weights[labels_of(site.train)]

    def after_fit(self, fit: Fit) -> None:
        """Finish a training: measure how much the gradients of each class changed, for the next training's sampling.

        Report the label counts if the target needs them.
        """
        site = fit.site
        rows = draw_probe_rows(labels_of(site.train), self.probe, site.rng("probe"))
        batches = map(site.train.batch, rows.split(site.settings.batch_size))
        constants = class_lipschitz(fit.model, site.task.loss, fit.start, batches, site.task.objective.classes)
        site.state.meta[LIPSCHITZ] = constants.tolist()
        if self.target == "counts":
            fit.meta[COUNTS] = [int(count) for count in local_counts(site)]


def local_counts(site: Site) -> torch.Tensor:
    """Return a site's number of training images of each class, shape (num_classes,), float64."""
    return torch.bincount(labels_of(site.train), minlength=site.task.objective.classes).double()
