"""FedAMP."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import ClassVar

import torch
from pydantic import Field

from medfl.contract import Findings, ReducesTo, Replies, Request, Server
from medfl.errors import SettingsError
from medfl.toolkit.aggregation import add_update, sample
from medfl.toolkit.averaging import Weighting
from medfl.toolkit.kept import keep, kept, shared_of, wide
from medfl.toolkit.personal import HeldNear
from medfl.types import MODEL, Tensors
from medfl.utils.wire import prefixed, select

logger = logging.getLogger(__name__)

MODELS = "models/"
"""Where the server keeps the sites' models; then the name of the site."""

FAINT = 1e-3
"""Below this share of the largest weight that the settings allow, weights of other sites count as none."""


class FedAMP(HeldNear):
    """Each site has a model of its own, held near a mixture of all in which similar ones weigh more.

    The server keeps the last parameters w_k that each site sent. Site k receives u_k = w_k + the sum over the other
    sites j of xi_kj (w_j - w_k), with xi_kj = (alpha_k / sigma) exp(-||w_k - w_j||^2 / sigma), over trainable
    parameters. It steps along the gradient of F_k(v) + (lam / (2 alpha_k)) ||v - u_k||^2 from its own model, which
    nobody overwrites. Buffers stay at their site, and all begin with one model. A site that has sent nothing yet counts
    for nobody (ours).

    The more alike two sites' models become, the more they weigh for each other, so sites of a kind find each other. A
    site weighs its own model by 1 minus the sum of the weights of the others, which must not fall below 0; so alpha_k
    is at most sigma / (K - 1) at K sites, which is checked before a run begins.

    ``lam = 0`` is `local`, as long as all sites take part in every round.

    When to use it: When hospitals fall into groups, such as by scanner or by patients, and nobody knows which. Choose
    `sigma` near the squared distances of the sites' models: far below them each site trains alone, far above
    them all weigh alike. The server keeps a model of each site, and sees each.

    Attributes:
        lam: How strongly a site's model is held near its mixture, >= 0; the pull is lam / alpha_k.
        alpha_k: How far a mixture goes towards other models, > 0: alpha_k / sigma is the largest weight of another one.
        sigma: The squared distance at which that weight has fallen to 37 %, > 0.

    Source: Huang, Chu, Zhou, Wang, Liu, Pei, Zhang, AAAI 2021, equations 3 to 6 and Algorithm 1, with the attention
    function A(x) = 1 - exp(-x / sigma).
    """

    name = "fedamp"
    family = "personal"
    paper = "Huang et al., AAAI 2021"
    summary = "own models, each held near a mixture of all in which similar ones weigh more"
    supports = frozenset()

    reduces_to: ClassVar[tuple[ReducesTo, ...]] = (ReducesTo("local", {"lam": 0.0}),)

    lam: float = Field(1.0, ge=0, allow_inf_nan=False)
    alpha_k: float = Field(1.0, gt=0, allow_inf_nan=False)
    sigma: float = Field(10.0, gt=0, allow_inf_nan=False)

    @property
    def pull(self) -> float:
        """lam / alpha_k."""
        return self.lam / self.alpha_k

    @property
    def weighting(self) -> Weighting:
        """``method``: sites weigh by how alike their models are."""
        return "method"

    # ---- the server

    def setup(self, server: Server) -> None:
        """The common initial model.

        Raises:
            SettingsError: If the weights of the others could sum to more than 1.
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
        """To this round's participants, each with its own mixture."""
        chosen = sample(server.trainable(), server.settings.fraction, server.shared_rng("participation"))
        weights = [xi for row in self.weights_between(server).values() for xi in row.values()]
        if weights and max(weights) < FAINT * self.alpha_k / self.sigma:
            logger.warning(
                "Round %d: the sites' models are so far from each other that each trains alone (largest weight %.3g). "
                "Raise sigma.",
                server.round,
                max(weights),
            )
        return [Request(site, "fit", prefixed(u, MODEL)) for site, u in self.mixtures(server, chosen).items()]

    def aggregate_updates(self, server: Server, replies: Replies) -> None:
        """Keep what each site sent: its mixture plus its update."""
        mixtures = self.mixtures(server, list(replies.meta))
        for site, tensors in replies:
            update = {name: wide(tensor) for name, tensor in select(tensors, MODEL).items()}
            keep(server, f"{MODELS}{site}/", {name: add_update(mixtures[site][name], update[name]) for name in update})

    def publish(self, server: Server) -> Tensors:
        """Nothing: sites are scored with their own models."""
        return {}

    def findings(self, server: Server) -> Findings:
        """How much each site weighs for each other one."""
        return Findings({"weights": self.weights_between(server)})

    # ---- pieces

    def last(self, server: Server) -> dict[str, Tensors]:
        """What each site sent last; the common initial model of one that has sent nothing."""
        return {site: kept(server, f"{MODELS}{site}/") or shared_of(server) for site in server.trainable()}

    def attention(self, server: Server) -> torch.Tensor:
        """xi, (K, K); the columns of sites that have sent nothing are 0."""
        sent = [bool(kept(server, f"{MODELS}{site}/")) for site in server.trainable()]
        return attention(list(self.last(server).values()), self.alpha_k, self.sigma) * torch.tensor(sent).double()

    def weights_between(self, server: Server) -> dict[str, dict[str, float]]:
        """xi_kj by k and j, of the sites that have sent something."""
        xi, sites = self.attention(server), server.trainable()
        senders = [place for place, site in enumerate(sites) if kept(server, f"{MODELS}{site}/")]
        return {sites[k]: {sites[j]: float(xi[k, j]) for j in senders if j != k} for k in senders}

    def mixtures(self, server: Server, chosen: Sequence[str]) -> dict[str, Tensors]:
        """u_k of some sites."""
        places = [server.trainable().index(site) for site in chosen]
        models = mixed(list(self.last(server).values()), self.attention(server)[places], places)
        return dict(zip(chosen, models, strict=True))


def attention(models: Sequence[Tensors], alpha_k: float, sigma: float) -> torch.Tensor:
    """xi_kj = (alpha_k / sigma) exp(-||w_k - w_j||^2 / sigma), 0 for j = k; (K, K), float64.

    Args:
        models: Parameters of K sites, of the same names.
        alpha_k: > 0.
        sigma: > 0.
    """
    squares = torch.zeros(len(models), len(models), dtype=torch.float64)
    for name in models[0]:
        rows = torch.stack([model[name].double().flatten() for model in models])
        squares += torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist").square()
    return (alpha_k / sigma * torch.exp(-squares / sigma)).fill_diagonal_(0)


def mixed(models: Sequence[Tensors], xi: torch.Tensor, places: Sequence[int]) -> list[Tensors]:
    """w_k + sum_j xi_kj (w_j - w_k) of some sites, in float64.

    Args:
        models: Parameters of K sites, of the same names.
        xi: A row for each of these sites, (n, K).
        places: Which of the K they are, n.
    """
    shares = xi.clone()
    shares[torch.arange(len(places)), torch.tensor(places, dtype=torch.int64)] += 1 - xi.sum(dim=1)
    mixtures: list[Tensors] = [{} for _ in places]
    for name, tensor in models[0].items():
        rows = shares @ torch.stack([model[name].double().flatten() for model in models])
        for mixture, row in zip(mixtures, rows, strict=True):
            mixture[name] = row.reshape(tensor.shape).to(tensor.dtype)
    return mixtures
