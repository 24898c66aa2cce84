"""FedFed as a method class: distiller training with mixup, mosaic, curriculum and site-dependent loss weights.

The distiller is a generator that reconstructs an image, and a classifier of the residual (image minus reconstruction).
In stage 1 the sites train the distiller. Then each site sends the residuals of its images once, clipped and noised. In
stage 2 the sites train the task's network on their own images and on the shared residuals of all sites.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Literal

import torch
from pydantic import Field, field_validator

from medfl.contract import Need, ReducesTo, Reply, Request, Server, Site
from medfl.data.pooled import labels_of
from medfl.privacy.release import ImageRelease
from medfl.training.loop import Batch
from medfl.types import Meta
from medfl_methods.fedfed.distiller_training import DistillerTraining
from medfl_methods.fedfed.feature_distillation import LossWeights
from medfl_methods.fedfed.feature_sharing import MAX_NOISE_STD, FeatureSharing
from medfl_methods.fedfed.mixup import mixup, mosaic

Skew = Literal["none", "few", "one class"]
"""Way in which a site differs from the others: ``few`` images, most images in ``one class``, or ``none``."""

SMALL_SITE_FRACTION = 0.2
"""Fraction of the sites' mean number of images below which a site counts as a site with few images."""

ONE_CLASS_FRACTION = 0.7
"""Fraction of a site's images in the most frequent class above which the site counts as a site of one class."""


class FedFed(FeatureSharing):
    """Sites share a noised residual of their images that predicts the class, then run FedAvg on own and shared images.

    Two parts follow the released code and not the paper. Reconstruction has a larger weight at first (`curriculum`).
    Epochs are counted from 1 in each round, so with one epoch in a round the weight is always ten times
    `reconstruction`. Sites that differ from the others use other weights (`site_weights`).

    After stage 1 each site sends a noised copy of each residual for each value of `noise_std`, two by default. A batch
    of stage 2 contains a site's own images and equally many images of each copy. Several copies reveal more than one;
    the privacy statement covers them together.

    Update rule:
        A generator q reconstructs an image x. The residual x - q(x) keeps the features that the classifier f needs. In
        stage 1 all sites take part in each round and train only the distiller (q and f), not the task's network. A run
        therefore needs `distil_rounds` more rounds than a run of another method to train its network equally often. The
        distiller minimises

            reconstruction MSE(q(x), x) + kl KL + ce CE(f(x - q(x) + noise), y) + x_ce CE(f(x), y)

        Each epoch has three passes over a site's images: the classifier on mixed images (mixup), the generator on
        images composed of crops of several images (mosaic), and both networks on this loss.

    When to use it: Use it as the baseline of FedTPF, or if classes are unevenly distributed over sites
    and the sites may share noised residuals of their images. Without ``clip`` there is no differential privacy, even
    with noise.

    Attributes:
        noise_std: Standard deviation of the noise of each copy, > 0, in units of images in [0, 1], also for Laplace
            noise. The released code adds the same noise to all images of a batch; here each image has its own noise.
        curriculum: Whether reconstruction has 10 times its weight in epochs 1 to 9 of a round, and 5 times in epochs 10
            to 19. For mosaic images the limits are 99 and 199.
        site_weights: Whether some sites use other weights. A site with fewer than a fifth of the sites' mean number of
            images uses 5 times `reconstruction` and half of `kl`. A larger site with more than 70 % of its images in
            one class uses 5 times `kl`, `ce` and `x_ce`, and no mosaic.
        mixup: Parameter alpha of mixup's Beta distribution, >= 0; 0 omits the pass on mixed images.
        mosaic: Whether the generator is also trained on mosaic images.
        distil_decay: Weight decay of AdamW, >= 0.

    Source: Yang, Zhang, Zheng, Tian, Peng, Liu, Han, FedFed: Feature distillation against data heterogeneity in
    federated learning, NeurIPS 2023, and its released code.
    """

    name = "fedfed"
    family = "shared images"
    paper = "Yang et al., NeurIPS 2023"
    summary = "sites share noised residuals of their images that predict the class, and train on all of them"
    supports = frozenset()

    needs: ClassVar[frozenset[Need]] = frozenset({"class_labels", "images_of_one_shape"})
    """Properties that the task, its data and its networks must have for this method."""
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
    def _check_noise_std(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        """Raise if the list is empty or a standard deviation is out of range."""
        if not value or not all(0 < std <= MAX_NOISE_STD for std in value):
            raise ValueError(
                f"expected a standard deviation in (0, {MAX_NOISE_STD:g}] for each copy; for no noise set noise to "
                "'none'"
            )
        return value

    def releases(self) -> list[ImageRelease]:
        """Return the release mechanism (clip and noise) of each copy of a residual that a site sends.

        There is one copy for each element of `noise_std`, but a single copy if no noise is added.
        """
        return [self.release(std**2) for std in self.noise_std[: 1 if self.is_noiseless else None]]

    def weight_decay(self) -> float:
        """Return the weight decay of the distiller's optimiser: the setting `distil_decay`."""
        return self.distil_decay

    # ---- the server

    def distil_requests(self, server: Server) -> list[Request]:
        """Return the requests to train the distiller in a round of stage 1, for all sites with training data.

        Each contains the sites' mean number of images, by which a site finds out whether it has few.
        """
        tensors, names = self.distiller(server), server.trainable()
        sizes = [float(server.site_info[name]["size"]) for name in names if "size" in server.site_info[name]]
        mean = sum(sizes) / max(len(sizes), 1)
        return [Request(name, "distil", tensors, {"mean_size": mean}) for name in names]

    # ---- a site

    def distil(self, site: Site, request: Request) -> Reply:
        """Execute the step ``distil`` of stage 1: train the distiller at a site, and return its update."""
        distilling, kind = self.start_distiller_training(site, request), self.classify_skew(site, request)
        loss = torch.nan
        for epoch in range(self.distil_epochs):
            loss = self.train_epoch(site, distilling, epoch, kind)
        self.keep_optimizer(site, distilling)
        return Reply(self.distiller_update(request, distilling.model), {"size": len(site.train)}, log={"loss": loss})

    def classify_skew(self, site: Site, request: Request) -> Skew:
        """Return how the site differs from the others: ``few`` images, mostly ``one class``, or ``none``."""
        size, mean = len(site.train), float(request.meta.get("mean_size", 0.0))
        if not self.site_weights or size == SMALL_SITE_FRACTION * mean:
            return "none"
        if size < SMALL_SITE_FRACTION * mean:
            return "few"
        return "one class" if int(labels_of(site.train).bincount().max()) > ONE_CLASS_FRACTION * size else "none"

    def train_epoch(self, site: Site, distilling: DistillerTraining, epoch: int, kind: Skew) -> float:
        """Train the distiller for one epoch in three passes, and return the mean loss of the third.

        The passes are: the classifier on mixup images, the generator on mosaic images, both on the whole loss.

        Args:
            site: Site that trains.
            distilling: Training of the distiller.
            epoch: Number of the epoch in this round, from 0.
            kind: Way in which the site differs from the others.
        """
        model, loss, label = distilling.model, site.task.loss, f"distil {epoch}"
        if self.mixup:
            shares = site.rng(f"{label} mixup shares")

            def mixup_loss(batch: Batch) -> torch.Tensor:
                mixed, first, other, share = mixup(
                    distilling.scale.to_images(batch.images), batch.targets, self.mixup, shares
                )
                logits = model.classify_images(mixed)
                both: torch.Tensor = share * loss(logits, first) + (1 - share) * loss(logits, other)
                return both

            distilling.train_pass(mixup_loss, f"{label} mixup")
        if self.mosaic and kind != "one class":
            crops, curriculum_weights = site.rng(f"{label} mosaic crops"), self.curriculum_weights(epoch, 100)

            def mosaic_loss(batch: Batch) -> torch.Tensor:
                glued = mosaic(distilling.scale.to_images(batch.images), crops, len(batch.rows))
                return self.reconstruction_loss(model(glued), glued, curriculum_weights)

            distilling.train_pass(mosaic_loss, f"{label} mosaic")
        weights = skew_weights(self.curriculum_weights(epoch, 10), kind)
        return distilling.train_pass(
            lambda batch: self.distil_loss(distilling, distilling.divide(batch), loss, weights), label
        )

    def curriculum_weights(self, epoch: int, until: int) -> LossWeights:
        """Return the weights of the loss terms in an epoch; reconstruction has a larger weight in early epochs.

        Args:
            epoch: Number of the epoch in this round, from 0.
            until: Epoch, counted from 1, in which the factor changes from 10 to 5. From epoch 2 * `until` on it is 1.
        """
        number = epoch + 1  # the released code counts from 1
        factor = 1 if not self.curriculum or number >= 2 * until else 10 if number < until else 5
        return replace(self.weights, reconstruction=factor * self.reconstruction)


def skew_weights(weights: LossWeights, kind: Skew) -> LossWeights:
    """Return the weights of the loss terms, changed for a site of this kind, as in the released code."""
    if kind == "few":
        return replace(weights, reconstruction=5 * weights.reconstruction, kl=weights.kl / 2)
    if kind == "one class":
        return replace(weights, kl=5 * weights.kl, ce=5 * weights.ce, x_ce=5 * weights.x_ce)
    return weights
