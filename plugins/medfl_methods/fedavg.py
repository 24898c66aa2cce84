"""FedAvg: federated averaging."""

from __future__ import annotations

from typing import Literal

from medfl.contract import Capability
from medfl.toolkit.averaging import Averaging
from medfl.types import Meta


class FedAvg(Averaging):
    """Federated averaging (FedAvg): the weighted mean of the sites' locally trained models.

    In each round, the participating sites train from the global model with the task's optimiser, and send their
    updates. The server adds the weighted mean of the updates to the global model.

    Update rule:
        With w_k the model of participant k after local training from w_t, and n_k its number of training images:

            w_{t+1} = w_t + sum_k p_k (w_k - w_t),    p_k = n_k / sum_j n_j

    When to use it: First, as the baseline for every other method. It is cheap and has no parameter to tune.

    Limits: Performance drops if the sites are heterogeneous, either in class distribution or in image appearance.

    Limit cases: With one site and a new optimiser in each round, FedAvg is `centralized`.

    Attributes:
        weights: Aggregation weights p_k: ``size`` is proportional to the participants' numbers of training images,
            ``uniform`` is equal. Under a privacy setting, sites do not send their sizes and the weights are uniform.

    Source: McMahan, Moore, Ramage, Hampson, Agüera y Arcas, AISTATS 2017, Algorithm 1.
    """

    name = "fedavg"
    family = "averaging"
    paper = "McMahan et al., AISTATS 2017"
    summary = "federated averaging: the mean of the locally trained models, weighted by numbers of images"
    supports = frozenset({Capability.DP_SGD, Capability.ROBUST, Capability.EXACT_ADAPTERS})

    weights: Literal["size", "uniform"] = "size"

    def weight(self, meta: Meta) -> float:
        """Return the weight of a reply before normalisation: the site's number of training images, or 1 if uniform."""
        return super().weight(meta) if self.weights == "size" else 1.0
