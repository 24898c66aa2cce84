"""FedFed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Literal

import torch
from pydantic import Field, field_validator

from medfl.contract import Need, ReducesTo, Reply, Request, Server, Site
from medfl.data.pooled import labels_of
from medfl.privacy.release import Release
from medfl.training.loop import Batch
from medfl.types import Meta
from medfl_methods.fedfed.base import LOUDEST, FeatureSharing
from medfl_methods.fedfed.distillation import Distilling
from medfl_methods.fedfed.division import Weights
from medfl_methods.fedfed.mixup import mixup, mosaic

Skew = Literal["none", "few", "one class"]
"""How a site is unlike the others."""

FEW = 0.2
"""A site with a smaller share of the mean number of images has few."""

MOSTLY = 0.7
"""A site with a larger share of its images in one class is one of that class."""


class FedFed(FeatureSharing):
    """Sites share, under noise, the part of their images that tells the class; then FedAvg on own and shared images.

    In the first stage all sites take part in each round, and only generator and classifier are trained, not the task's
    network: a run needs `distil_rounds` more rounds than one of another method to train its network as often. A pass
    over a site's images is three: the classifier on mixed images, the generator on images glued together of unlike
    images, and both together.

    Two things are as in the released code and not in the paper. Reconstruction weighs more at first (`curriculum`);
    epochs are counted anew in each round, so with one epoch a round it always weighs ten times `reconstruction`. And
    sites that are unlike others weigh the terms of the loss otherwise (`site_weights`).

    Each image is sent in two copies under unlike noise, and a batch of the second stage has a site's own images and as
    many of either copy. Two copies of one part tell more than one, and the statement reckons with both.

    When to use it: As the ancestor that FedTPF is measured against, or where unlike class sizes hurt and sites may
    share noised residuals of their images. Without ``clip`` it promises no differential privacy, whatever its noise.

    Attributes:
        noise_std: Of the noise of each copy, > 0, in units of images in [0, 1]: the standard deviation, for Laplace
            noise as well. The released code adds one and the same noise to all images of a batch; here each image has
            its own.
        curriculum: Whether reconstruction weighs 10 times `reconstruction` before the round's tenth epoch and 5 times
            before its twentieth; on glued images before the hundredth and the two hundredth.
        site_weights: Whether a site with fewer than a fifth of the sites' mean number of images weighs reconstruction 5
            times and KL half, and one of whose larger number more than 70 % are of one class weighs all but
            reconstruction 5 times and glues no images.
        mixup: Alpha of the Beta distribution for mixing images, >= 0; 0 leaves out that pass.
        mosaic: Whether the generator also learns from images glued together.
        distil_decay: Weight decay of AdamW, >= 0.

    Source: Yang, Zhang, Zheng, Tian, Peng, Liu, Han, FedFed: Feature distillation against data heterogeneity in
    federated learning, NeurIPS 2023, and its released code.
    """

    name = "fedfed"
    family = "shared images"
    paper = "Yang et al., NeurIPS 2023"
    summary = "sites share the part of their images that tells the class, under noise, and train on all of them"
    supports = frozenset()

    needs: ClassVar[frozenset[Need]] = frozenset({"class_labels", "images_of_one_shape"})
    presets: ClassVar[Mapping[str, Meta]] = {"paper": {"latent": 2048}, "medfl": {}}
    reduces_to: ClassVar[tuple[ReducesTo, ...]] = ()

    noise_std: tuple[float, ...] = (0.15, 0.25)
    curriculum: bool = True
    site_weights: bool = True
    mixup: float = Field(2.0, ge=0, allow_inf_nan=False)
    mosaic: bool = True
    distil_decay: float = Field(1e-6, ge=0, allow_inf_nan=False)

    @field_validator("noise_std")
    @classmethod
    def _some(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if not value or not all(0 < std <= LOUDEST for std in value):
            raise ValueError(
                f"expected one standard deviation in (0, {LOUDEST:g}] for each copy; for no noise set noise to 'none'"
            )
        return value

    def releases(self) -> list[Release]:
        """One for each copy; without noise all copies would be alike, so there is one."""
        return [self.release(std**2) for std in self.noise_std[: 1 if self.silent else None]]

    def weight_decay(self) -> float:
        """`distil_decay`."""
        return self.distil_decay

    # ---- the server

    def distil_requests(self, server: Server) -> list[Request]:
        """All sites take part, and learn how many images a site has on average."""
        tensors, names = self.distiller(server), server.trainable()
        sizes = [float(server.site_info[name]["size"]) for name in names if "size" in server.site_info[name]]
        mean = sum(sizes) / max(len(sizes), 1)
        return [Request(name, "distil", tensors, {"mean_size": mean}) for name in names]

    # ---- a site

    def distil(self, site: Site, request: Request) -> Reply:
        """Train generator and classifier alone."""
        distilling, kind = self.own_distiller(site, request), self.kind_of(site, request)
        loss = torch.nan
        for epoch in range(self.distil_epochs):
            loss = self.one_pass(site, distilling, epoch, kind)
        self.keep_optimizer(site, distilling)
        return Reply(self.distiller_update(request, distilling.model), {"size": len(site.train)}, log={"loss": loss})

    def kind_of(self, site: Site, request: Request) -> Skew:
        """How a site is unlike the others."""
        size, mean = len(site.train), float(request.meta.get("mean_size", 0.0))
        if not self.site_weights or size == FEW * mean:
            return "none"
        if size < FEW * mean:
            return "few"
        return "one class" if int(labels_of(site.train).bincount().max()) > MOSTLY * size else "none"

    def one_pass(self, site: Site, distilling: Distilling, epoch: int, kind: Skew) -> float:
        """The classifier on mixed images, the generator on glued ones, then both; the loss of both."""
        model, loss, label = distilling.model, site.task.loss, f"distil {epoch}"
        if self.mixup:
            shares = site.rng(f"{label} mixup shares")

            def on_mixed(batch: Batch) -> torch.Tensor:
                mixed, first, other, share = mixup(
                    distilling.scale.raw(batch.images), batch.targets, self.mixup, shares
                )
                logits = model.classify_images(mixed)
                both: torch.Tensor = share * loss(logits, first) + (1 - share) * loss(logits, other)
                return both

            distilling.pass_over(on_mixed, f"{label} mixup")
        if self.mosaic and kind != "one class":
            crops, eased = site.rng(f"{label} mosaic crops"), self.eased(epoch, 100)

            def on_glued(batch: Batch) -> torch.Tensor:
                glued = mosaic(distilling.scale.raw(batch.images), crops, len(batch.rows))
                return self.rebuild_loss(model(glued), glued, eased)

            distilling.pass_over(on_glued, f"{label} mosaic")
        weights = weighed(self.eased(epoch, 10), kind)
        return distilling.pass_over(
            lambda batch: self.distil_loss(distilling, distilling.divide(batch), loss, weights), label
        )

    def eased(self, epoch: int, until: int) -> Weights:
        """The weights in an epoch of a round, from 0: reconstruction counts more at first."""
        number = epoch + 1  # the released code counts from 1
        factor = 1 if not self.curriculum or number >= 2 * until else 10 if number < until else 5
        return replace(self.weights, reconstruction=factor * self.reconstruction)


def weighed(weights: Weights, kind: Skew) -> Weights:
    """The weights at a site of some kind, as the released code has them."""
    if kind == "few":
        return replace(weights, reconstruction=5 * weights.reconstruction, kl=weights.kl / 2)
    if kind == "one class":
        return replace(weights, kl=5 * weights.kl, ce=5 * weights.ce, x_ce=5 * weights.x_ce)
    return weights
