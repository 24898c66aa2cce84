"""FedAMP: attentive message passing, personal models regularised towards a similarity-weighted mixture."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import ClassVar

import torch
from pydantic import Field

from medfl.contract import Findings, ReducesTo, Replies, Request, Server
from medfl.errors import SettingsError
from medfl.toolkit.aggregation import add_update, sample_sites
from medfl.toolkit.averaging import Weighting
from medfl.toolkit.participant_state import as_float64, auxiliary_state, model_tensors, set_auxiliary_state
from medfl.toolkit.personal import ProximalPersonalModels
from medfl.types import MODEL_PREFIX, Tensors
from medfl.utils.wire import prefixed, select

logger = logging.getLogger(__name__)
"""Logger of this module."""

MODELS_PREFIX = "models/"
"""Prefix of the sites' models in the server's state; the name of the site follows."""

NEGLIGIBLE_WEIGHT = 1e-3
"""Threshold of a warning, as a share of the largest weight that the settings allow.

If the weights of all other sites are below the threshold, each site effectively trains alone.
"""


class FedAMP(ProximalPersonalModels):
    """Attentive message passing (FedAMP): each site's model is pulled towards a mixture that favours similar models.

    Each site has a personal model; there is no global model. The server keeps the last parameters w_k that each site
    sent, and computes a mixture u_k for each site. The more similar the models of two sites become, the more weight
    they have for each other, so similar sites form groups. Buffers stay at their site. All sites start from one initial
    model. A site that has sent no update yet has weight 0 for the other sites (an addition of medfl).

    Update rule:
        The server computes over the trainable parameters, for sites k and j != k,

            xi_kj = (alpha_k / sigma) exp(-||w_k - w_j||^2 / sigma)
            u_k = w_k + sum_j xi_kj (w_j - w_k)

        Site k continues the training of its own model v, and minimises

            F_k(v) + (lam / (2 alpha_k)) ||v - u_k||^2

    When to use it: When hospitals fall into unknown groups, for example by scanner or by patient population. Choose
    `sigma` near the squared distances between the sites' models. If it is far below them, each site trains alone; if it
    is far above, all models have equal weight.

    Limits: A site's weight for its own model is 1 minus the sum of its weights for the others, and must not be
    negative. Therefore alpha_k must be at most sigma / (K - 1) for K sites; the run is refused otherwise. The server
    stores a model of each site, and sees each.

    Limit cases: With ``lam = 0``, this method is `local` if all sites take part in every round.

    Attributes:
        lam: Strength of the regulariser, >= 0; the weight of the squared distance is lam / (2 alpha_k).
        alpha_k: Step of a mixture towards the other models, > 0. alpha_k / sigma is the largest weight of another
            model.
        sigma: Scale of the squared distances, > 0. At a squared distance of sigma, the weight has fallen to 37 % of its
            maximum.

    Source: Huang, Chu, Zhou, Wang, Liu, Pei, Zhang, AAAI 2021, equations 3 to 6 and Algorithm 1, with the attention
    function A(x) = 1 - exp(-x / sigma).
    """

    name = "fedamp"
    family = "personal"
    paper = "Huang et al., AAAI 2021"
    summary = "personal models, each regularised towards a mixture in which similar models have more weight"
    supports = frozenset()

    reduces_to: ClassVar[tuple[ReducesTo, ...]] = (ReducesTo("local", {"lam": 0.0}),)

    lam: float = Field(1.0, ge=0, allow_inf_nan=False)
    alpha_k: float = Field(1.0, gt=0, allow_inf_nan=False)
    sigma: float = Field(10.0, gt=0, allow_inf_nan=False)

    @property
    def pull(self) -> float:
        """Weight of the proximal term that pulls a site's model to its mixture: lam / alpha_k."""
        return self.lam / self.alpha_k

    @property
    def weighting(self) -> Weighting:
        """Weighting of the sites' models: ``method``, because the weights depend on the similarity of the models."""
        return "method"

    # ---- the server

    def setup(self, server: Server) -> None:
        """Set the server's state to the initial model.

        Raises:
            SettingsError: If the weights of the other sites could sum to more than 1.
        """
        super().setup(server)
        others = len(server.trainable()) - 1
        if others * self.alpha_k > self.sigma:
            raise SettingsError(
                "setting_out_of_range",
                f"In FedAMP the weights of the other {others} sites, each at most alpha_k / sigma, must not sum to "
                f"more than 1: expected alpha_k at most {self.sigma / others:g}, got {self.alpha_k:g}. Lower alpha_k, "
                "or raise sigma.",
                setting="alpha_k",
                sites=others,
                maximum=self.sigma / others,
                found=self.alpha_k,
            )

    def requests(self, server: Server) -> list[Request]:
        """Return a request for each participant with its mixture; log a warning if all weights are negligible."""
        chosen = sample_sites(server.trainable(), server.settings.fraction, server.shared_rng("participation"))
        weights = [xi for row in self.weights_between(server).values() for xi in row.values()]
        if weights and max(weights) < NEGLIGIBLE_WEIGHT * self.alpha_k / self.sigma:
            logger.warning(
                "Round %d: the sites' models are so different that each site effectively trains alone (largest weight "
                "%.3g). Raise sigma.",
                server.round,
                max(weights),
            )
        return [Request(site, "fit", prefixed(u, MODEL_PREFIX)) for site, u in self.mixtures(server, chosen).items()]

    def aggregate_updates(self, server: Server, replies: Replies) -> None:
        """Store each participant's model (its mixture plus its update) in the server's state."""
        mixtures = self.mixtures(server, list(replies.meta))
        for site, tensors in replies:
            update = {name: as_float64(tensor) for name, tensor in select(tensors, MODEL_PREFIX).items()}
            set_auxiliary_state(
                server,
                f"{MODELS_PREFIX}{site}/",
                {name: add_update(mixtures[site][name], update[name]) for name in update},
            )

    def publish(self, server: Server) -> Tensors:
        """Return the tensors that every site needs for its evaluation: none, because each has its personal model."""
        return {}

    def findings(self, server: Server) -> Findings:
        """Return results for the report at the end of the run: the weight of each site's model for each other site."""
        return Findings({"weights": self.weights_between(server)})

    # ---- pieces

    def last_models(self, server: Server) -> dict[str, Tensors]:
        """Return the last model of each site; the initial model for a site that has sent no update."""
        return {
            site: auxiliary_state(server, f"{MODELS_PREFIX}{site}/") or model_tensors(server)
            for site in server.trainable()
        }

    def attention(self, server: Server) -> torch.Tensor:
        """Return the weights xi_kj of all K sites, shape (K, K); 0 for sites j that have sent no update."""
        sent = [bool(auxiliary_state(server, f"{MODELS_PREFIX}{site}/")) for site in server.trainable()]
        return (
            attention(list(self.last_models(server).values()), self.alpha_k, self.sigma) * torch.tensor(sent).double()
        )

    def weights_between(self, server: Server) -> dict[str, dict[str, float]]:
        """Return the weights xi_kj by name of site k, then by name of site j, for sites that have sent an update."""
        xi, sites = self.attention(server), server.trainable()
        senders = [index for index, site in enumerate(sites) if auxiliary_state(server, f"{MODELS_PREFIX}{site}/")]
        return {sites[k]: {sites[j]: float(xi[k, j]) for j in senders if j != k} for k in senders}

    def mixtures(self, server: Server, chosen: Sequence[str]) -> dict[str, Tensors]:
        """Return the mixture u_k of each of the given sites."""
        indices = [server.trainable().index(site) for site in chosen]
        models = mix_models(list(self.last_models(server).values()), self.attention(server)[indices], indices)
        return dict(zip(chosen, models, strict=True))


def attention(models: Sequence[Tensors], alpha_k: float, sigma: float) -> torch.Tensor:
    """Compute the weights xi_kj = (alpha_k / sigma) exp(-||w_k - w_j||^2 / sigma), with zeros on the diagonal.

    Args:
        models: Parameters of K sites, with the same names.
        alpha_k: Step of a mixture towards the other models, > 0.
        sigma: Scale of the squared distances, > 0.

    Returns:
        Matrix of shape (K, K), float64.
    """
    squares = torch.zeros(len(models), len(models), dtype=torch.float64)
    for name in models[0]:
        rows = torch.stack([model[name].double().flatten() for model in models])
        squares += torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist").square()
    return (alpha_k / sigma * torch.exp(-squares / sigma)).fill_diagonal_(0)


def mix_models(models: Sequence[Tensors], xi: torch.Tensor, indices: Sequence[int]) -> list[Tensors]:
    """Compute the mixture w_k + sum_j xi_kj (w_j - w_k) of some sites k; the sums are in float64.

    Args:
        models: Parameters of K sites, with the same names.
        xi: Weights, one row for each site k, shape (n, K).
        indices: Indices of the n sites k among the K sites.
    """
    shares = xi.clone()
    shares[torch.arange(len(indices)), torch.tensor(indices, dtype=torch.int64)] += 1 - xi.sum(dim=1)
    mixtures: list[Tensors] = [{} for _ in indices]
    for name, tensor in models[0].items():
        rows = shares @ torch.stack([model[name].double().flatten() for model in models])
        for mixture, row in zip(mixtures, rows, strict=True):
            mixture[name] = row.reshape(tensor.shape).to(tensor.dtype)
    return mixtures
