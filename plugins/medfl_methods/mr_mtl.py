"""MR-MTL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from medfl.contract import Capability, ReducesTo
from medfl.toolkit.personal import HeldNear
from medfl.types import Meta


class MRMTL(HeldNear):
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

    name = "mr_mtl"
    family = "personal"
    paper = "Liu, Hu, Wu, Smith, NeurIPS 2022"
    summary = "each site trains a model of its own, held near the mean of all sites' models"
    supports = frozenset({Capability.DP_SGD, Capability.ROBUST})

    presets: ClassVar[Mapping[str, Meta]] = {"paper": {}, "medfl": {}}
    reduces_to: ClassVar[tuple[ReducesTo, ...]] = (ReducesTo("local", {"lam": 0.0}),)

    lam: float = Field(0.1, ge=0, allow_inf_nan=False)
    weights: Literal["size", "uniform"] = "uniform"

    @property
    def pull(self) -> float:
        """`lam`."""
        return self.lam

    def weight(self, meta: Meta) -> float:
        """The site's size, or 1."""
        return super().weight(meta) if self.weights == "size" else 1.0
