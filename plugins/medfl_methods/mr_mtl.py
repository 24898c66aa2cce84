"""MR-MTL: mean-regularised multi-task learning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from medfl.contract import Capability, ReducesTo
from medfl.toolkit.personal import ProximalPersonalModels
from medfl.types import Meta


class MRMTL(ProximalPersonalModels):
    """Mean-regularised multi-task learning (MR-MTL): personal models, regularised towards their mean.

    Each site continues the training of its own personal model v_k; there is no global model. Unlike `ditto`, a site
    trains a single model, and that model is averaged. Buffers stay at their site. All sites start from one initial
    model. A site that has not trained yet is evaluated with the mean.

    Update rule:
        With w_t the received mean, a site minimises over its trainable parameters

            F_k(v) + (lam / 2) ||v - w_t||^2

        It sends v_k - w_t, so the new mean is the weighted mean of the participants' models.

    When to use it: When each hospital needs a model for its own patients, especially under differential privacy. Only
    one training needs noise, and a larger ``lam`` averages the noise over all sites. Choose ``lam`` on validation data.

    Limit cases: With ``lam = 0``, this method is `local` if all sites take part in every round. The larger ``lam`` is,
    the nearer the personal models are to one common model.

    Attributes:
        lam: Strength of the regulariser, >= 0. Values to try: 0.01 to 10, larger with more noise.
        weights: Weights of the mean: ``uniform`` is equal, as in the paper; ``size`` is proportional to the numbers of
            images.

    Source: Liu, Hu, Wu, Smith, NeurIPS 2022, equation 1 and Algorithm A1.
    """

    name = "mr_mtl"
    family = "personal"
    paper = "Liu, Hu, Wu, Smith, NeurIPS 2022"
    summary = "personal models, regularised towards their mean"
    supports = frozenset({Capability.DP_SGD, Capability.ROBUST})

    presets: ClassVar[Mapping[str, Meta]] = {"paper": {}, "medfl": {}}
    reduces_to: ClassVar[tuple[ReducesTo, ...]] = (ReducesTo("local", {"lam": 0.0}),)

    lam: float = Field(0.1, ge=0, allow_inf_nan=False)
    weights: Literal["size", "uniform"] = "uniform"

    @property
    def pull(self) -> float:
        """Weight of the proximal term that pulls a site's model to the mean: `lam`."""
        return self.lam

    def weight(self, meta: Meta) -> float:
        """Return the weight of a reply before normalisation: the site's number of training images, or 1 if uniform."""
        return super().weight(meta) if self.weights == "size" else 1.0
