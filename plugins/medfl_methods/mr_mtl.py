"""MR-MTL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import nn

from medfl.contract import Model, ReducesTo, Server, Site
from medfl.methods.averaging import Averaging
from medfl.methods.fit import Fit
from medfl.methods.kept import keep, kept
from medfl.methods.local_training import cpu_state
from medfl.networks.norms import buffer_names
from medfl.training.loop import Batch
from medfl.types import MODEL, Meta, Tensors
from medfl.utils.wire import select

OWN = "own/"
"""Where a site keeps its model."""


class MRMTL(Averaging):
    """Mean-regularised multi-task learning: each site trains a model of its own, held near the mean of all.

    A site steps along the gradient of F_k(v) + (lam/2) ||v - w||^2 over its trainable parameters, where v is its own
    model, which nobody overwrites, and w the mean that it receives. It sends v - w, so that the new mean is that of the
    participants' models, whoever they are. Unlike `ditto` it trains one model, and that is the one that is averaged.
    Buffers stay at their site. All begin with one model. A site that has not trained yet is scored with the mean.

    ``lam = 0`` is `local`, as long as all sites take part in every round: the mean has no effect. The larger ``lam``,
    the nearer the sites are to one common model.

    When to use it: When each hospital wants a model for its own patients, above all under privacy noise: there is one
    training to hide, and a larger ``lam`` averages the noise of all sites out. Choose it on validation data.

    Attributes:
        lam: How strongly a site's model is held near the mean, >= 0. Worth trying: 0.01 to 10, more under more noise.
        weights: ``uniform`` weighs the participants alike, as in the paper; ``size`` by their numbers of images.

    Source: Liu, Hu, Wu, Smith, NeurIPS 2022, equation 1 and Algorithm A1.
    """

    presets: ClassVar[Mapping[str, Meta]] = {"paper": {}, "medfl": {}}
    reduces_to: ClassVar[tuple[ReducesTo, ...]] = (ReducesTo("local", {"lam": 0.0}),)

    supports_dp_sgd: ClassVar[bool] = True
    supports_robust: ClassVar[bool] = True

    lam: float = Field(0.1, ge=0, allow_inf_nan=False)
    weights: Literal["size", "uniform"] = "uniform"

    def weight(self, meta: Meta) -> float:
        """The site's size, or 1."""
        return super().weight(meta) if self.weights == "size" else 1.0

    def shared(self, model: nn.Module, norm_sync: str) -> list[str]:
        """Parameters."""
        buffers = buffer_names(model)
        return [name for name in super().shared(model, norm_sync) if name not in buffers]

    def start(self, site: Site, received: Tensors) -> Tensors:
        """The site's own model, at first the initial one."""
        return kept(site, OWN) or site.task.initial(site.settings.seed, site.network)

    def loss(self, fit: Fit, batch: Batch) -> torch.Tensor:
        """The task's loss plus (lam/2) ||v - w||^2."""
        loss = super().loss(fit, batch)
        if self.lam == 0:
            return loss
        mean = select(fit.received, MODEL)
        terms = [(p - mean[name]).square().sum() for name, p in fit.parameters() if name in mean]
        return loss + 0.5 * self.lam * torch.stack(terms).sum()

    def after_fit(self, fit: Fit) -> None:
        """The site keeps its model."""
        keep(fit.site, OWN, cpu_state(fit.model))

    def models(self, holder: Server | Site) -> dict[str, Model]:
        """Each site's own; the mean is nobody's."""
        if isinstance(holder, Server):
            return {}
        tensors = kept(holder, OWN) or self.full_state(holder, select(holder.published, MODEL))
        return {"personal": Model(holder.network, tensors)}
