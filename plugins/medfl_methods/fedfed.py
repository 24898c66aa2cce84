"""FedFed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from pydantic import Field, field_validator

from medfl.contract import Limit, Meta, Order, Reply, Site
from medfl.distilling import Distilling
from medfl.feature_sharing import LOUDEST, FeatureSharing
from medfl.mixing import mixup, mosaic
from medfl.privacy.release import Release
from medfl.training import Batch


class FedFed(FeatureSharing):
    """Sites share, under noise, the part of their images that tells the class; then FedAvg on own and shared images.

    In the first stage only generator and classifier are trained, not the task's network: a run needs
    `distil_rounds` more rounds than one of another method to train its network as often. A pass over a site's images is
    three: the classifier on mixed images, the generator on images glued together of unlike images, and both together.

    Each image is sent in two copies under unlike noise, and a batch of the second stage has a site's own images and as
    many of either copy. Two copies of one part tell more than one, and the statement reckons with both.

    When to use it: As the ancestor that FedTPF is measured against, or where unlike class sizes hurt and sites may
    share noised residuals of their images. Without ``clip`` it promises no differential privacy, whatever its noise.

    Attributes:
        noise_std: Of the noise of each copy, > 0, in units of images in [0, 1]: the standard deviation, for Laplace
            noise as well. The released code adds one and the same noise to all images of a batch; here each image has
            its own.
        mixup: Alpha of the Beta distribution for mixing images, >= 0; 0 leaves out that pass.
        mosaic: Whether the generator also learns from images glued together.
        distil_decay: Weight decay of AdamW, >= 0.

    Source: Yang, Zhang, Yu, Zhang, Liu et al., FedFed: Feature distillation against data heterogeneity in federated
    learning, NeurIPS 2023, and its released code.
    """

    presets: ClassVar[Mapping[str, Meta]] = {"paper": {"latent": 2048}, "medfl": {}}
    limits: ClassVar[tuple[Limit, ...]] = ()

    noise_std: tuple[float, ...] = (0.15, 0.25)
    mixup: float = Field(2.0, ge=0, allow_inf_nan=False)
    mosaic: bool = True
    distil_decay: float = Field(1e-6, ge=0, allow_inf_nan=False)

    @field_validator("noise_std")
    @classmethod
    def _some(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if not value or not all(0 < one <= LOUDEST for one in value):
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

    def distil(self, site: Site, order: Order) -> Reply:
        """Train generator and classifier alone."""
        distilling = self.own_distiller(site, order)
        loss = torch.nan
        for epoch in range(self.distil_epochs):
            loss = self.one_pass(site, distilling, f"distil {epoch}")
        self.keep_optimizer(site, distilling)
        return Reply(self.distiller_update(order, distilling.model), {"size": len(site.train)}, log={"loss": loss})

    def one_pass(self, site: Site, distilling: Distilling, label: str) -> float:
        """The classifier on mixed images, the generator on glued ones, then both; the loss of both."""
        model, loss = distilling.model, site.task.loss
        if self.mixup:
            shares = site.rng(f"{label} mixup shares")

            def on_mixed(batch: Batch) -> torch.Tensor:
                mixed, one, other, share = mixup(distilling.scale.raw(batch.images), batch.labels, self.mixup, shares)
                logits = model.classify_images(mixed)
                both: torch.Tensor = share * loss(logits, one) + (1 - share) * loss(logits, other)
                return both

            distilling.pass_over(on_mixed, f"{label} mixup")
        if self.mosaic:
            crops = site.rng(f"{label} mosaic crops")

            def on_glued(batch: Batch) -> torch.Tensor:
                glued = mosaic(distilling.scale.raw(batch.images), crops, len(batch.labels))
                return self.rebuild_loss(model(glued), glued)

            distilling.pass_over(on_glued, f"{label} mosaic")
        return distilling.pass_over(lambda batch: self.distil_loss(distilling, distilling.divide(batch), loss), label)
