"""FedSKD."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from pydantic import Field, field_validator
from torch import nn

from medfl.contract import Capability, Model, Need, ReducesTo, Reply, Request, Server, Site
from medfl.errors import SettingsError
from medfl.toolkit.co_training import CompanionModel, ModelPair
from medfl.toolkit.feature_hooks import check_alike, stages
from medfl.toolkit.fit import Fit
from medfl.toolkit.lending import Circulating
from medfl.toolkit.transfer import ModelInTransit, arrived, as_host
from medfl.training.loop import Batch
from medfl.training.optimizer_state import split
from medfl.types import Meta, Tensors
from medfl_methods.fedskd.regions import region_weights
from medfl_methods.fedskd.stages import Form, RegionGrids, stages_loss

logger = logging.getLogger(__name__)


class FedSKD(Circulating):
    """A site's own model learns beside a copy of another site's, on the site's own images, and the copy is forgotten.

    In each round the server draws a permutation, and every site gets a copy of the model of the site that it names. The
    site minimises CE(own) + CE(guest) + gamma L over its own model and the guest, in one backward pass. L compares what
    the stages of both models make of a batch, by the similarities between its images, between the positions of its
    feature maps, and between regions of its images (`medfl_methods.fedskd.similarity`), so networks may be unlike; only
    their numbers of stages must agree. The head of the guest stays as it is, and gradients pass through it. Nothing
    that the guest learns goes home.

    The server draws the route and holds no model: copies go from site to site. A site that the permutation maps to
    itself, or whose guest did not come, trains alone in that round. With partial participation the participants are
    permuted among themselves, and the others wait. A site without training data keeps its initial model.

    Before `start_fraction` of the rounds models circulate as in `fedcross_star`: the guest itself is trained, with all
    its parameters and its optimiser's state, and goes home. How many rounds these are is decided at the start; rounds
    that are added later come after, unless the fraction is 1.

    Class weights in both cross entropies, as in equation 1, are the run's setting ``balance = loss``: those of the site
    that trains (`medfl.training.balance`).

    With ``gamma = 0``, or where every site is left to itself, this is `local` with the same ``optimizer_state``, as
    long as all sites take part. Compare it with that one: by default the own model's optimiser goes on over the rounds,
    and that of `local` does not.

    When to use it: Where sites have unlike networks, are few, and trust each other with their models: each site's raw
    model reaches one other site in each round. By default it does N times the local work of FedAvg, for two models;
    ``p2p_scale = 1`` makes it comparable. Choose ``gamma`` on validation data.

    Attributes:
        gamma: Weight of the similarity loss, >= 0.
        skd: Its forms: ``batch``, ``pixel`` (the positions of a map; voxels in 3-D), and ``region``, which needs a task
            with `regions`.
        layers: The stages that are compared, counted from 1; None means all. Positions and regions need maps: with None
            a stage that gives vectors is compared by its ``batch`` form only, one that is named here is refused.
        start_fraction: Share of the rounds before the similarity loss begins, in [0, 1].
        freeze_ktm_header: Whether the guest's head keeps its weights.
        skd_detach: Whose features the similarity loss does not train: ``ktm``, the guest's; ``dam``, the own model's;
            or ``none``.
        optimizer_state: ``persistent`` keeps the own model's optimiser from round to round; ``reset`` starts it anew.
            The guest's is always new.
        region_mode: How regions are brought to the size of a map: ``soft`` weights lose none, ``nearest`` loses small
            ones.

    Source: Weng, Cai, Zhou, FedSKD: Aggregation-free model-heterogeneous federated learning using multi-dimensional
    similarity knowledge distillation, arXiv 2503.18981, 2025, equations 1 to 14.
    """

    name = "fedskd"
    family = "peer to peer"
    paper = "Weng et al., 2025"
    summary = "each site's model learns beside a copy of another one's, by the similarity of their features"
    supports = frozenset({Capability.DIFFERENT_NETWORKS, Capability.PEER_MESSAGES})

    needs: ClassVar[frozenset[Need]] = frozenset({"features", "head"})
    presets: ClassVar[Mapping[str, Meta]] = {
        "paper_asd": {"gamma": 1.0, "skd": ("batch", "pixel", "region")},
        "paper_skin": {"gamma": 100.0, "skd": ("batch", "pixel")},
        "medfl": {},
    }
    reduces_to: ClassVar[tuple[ReducesTo, ...]] = tuple(
        limit
        for mine, star in (("persistent", "travel"), ("reset", "reset"))
        for limit in (
            ReducesTo(
                "local",
                {"gamma": 0.0, "start_fraction": 0.0, "p2p_scale": 1, "optimizer_state": mine},
                {"optimizer_state": mine},
            ),
            ReducesTo(
                "local", {"route": "identity", "p2p_scale": 1, "optimizer_state": mine}, {"optimizer_state": mine}
            ),
            ReducesTo(
                "fedcross_star",
                {"start_fraction": 1.0, "route": "random_permutation", "p2p_scale": "N", "optimizer_state": mine},
                {"optimizer_state": star},
            ),
        )
    )

    gamma: float = Field(1.0, ge=0, allow_inf_nan=False)
    skd: tuple[Form, ...] = ("batch", "pixel")
    layers: tuple[int, ...] | None = None
    start_fraction: float = Field(0.0, ge=0, le=1)
    freeze_ktm_header: bool = True
    skd_detach: Literal["none", "ktm", "dam"] = "none"
    optimizer_state: Literal["persistent", "reset"] = "persistent"
    region_mode: Literal["soft", "nearest"] = "soft"

    @field_validator("skd", "layers")
    @classmethod
    def _no_doubles(cls, value: tuple[str | int, ...] | None) -> tuple[str | int, ...] | None:
        if value is not None and (not value or len(set(value)) < len(value)):
            raise ValueError("expected at least one, and none twice")
        return value

    @property
    def active_needs(self) -> frozenset[Need]:
        """Stages to compare, and a head where guests keep it."""
        needs: set[Need] = {"head"} if self.freeze_ktm_header else set()
        return frozenset(needs | ({"features"} if self.gamma > 0 else set()))

    @property
    def keeps_optimizer(self) -> bool:
        """Whether the optimiser goes on."""
        return self.optimizer_state == "persistent"

    # ---- the server

    def setup(self, server: Server) -> None:
        """Refuse what can't be compared, and decide in which round the similarity loss begins."""
        super().setup(server)
        self.check(server)
        server.state.meta["visits"] = math.ceil(self.start_fraction * server.settings.rounds - 1e-9)

    def guests_return(self, server: Server) -> bool:
        """Before the similarity loss begins."""
        return self.start_fraction == 1 or server.round <= int(server.state.meta["visits"])

    def check(self, server: Server) -> None:
        """Look at all networks of the run.

        Raises:
            SettingsError: If one lacks what this method needs, or the task has no regions where they are asked for.
        """
        networks = {name: server.task.build(name) for name in server.networks()}
        for name, network in networks.items():
            if self.freeze_ktm_header and not isinstance(getattr(network, "head", None), nn.Module):
                raise SettingsError(
                    "missing_head",
                    f"Network '{name}' ({type(network).__name__}) has no `head`: expected its classifier under that "
                    "name, to freeze it in guests. Add one, or set freeze_ktm_header to False.",
                    network=name,
                    type=type(network).__name__,
                )
        if self.gamma == 0:
            if self.p2p_scale != 1:
                logger.warning("With gamma = 0, 'fedskd' is 'local' with p2p_scale times the epochs: no guest teaches.")
            return
        check_alike(networks, self.layers)
        if "region" in self.skd and server.task.regions is None:
            raise SettingsError(
                "missing_regions",
                "`skd` asks for the form 'region', and the task has no regions: expected a volume of labels on the "
                "images' grid (`Task.regions`). Give the bundle an atlas, or leave 'region' out of `skd`.",
                setting="skd",
            )
        if "region" in self.skd and server.task.regions is not None:
            region_weights(server.task.regions, [1] * server.task.regions.dim())  # refuses what is no atlas

    # ---- a site

    def lent(self, site: Site, request: Request) -> Tensors:
        """The model, and its optimiser's state only if the model comes back."""
        return super().lent(site, request) if request.meta["returns"] else split(self.own(site))[0]

    def train(self, site: Site, request: Request) -> Reply:
        """Train the own model beside its guest; before the similarity loss begins, the guest itself."""
        if request.meta["returns"]:
            return super().train(site, request)
        owner = request.meta["owner"]
        guest = None if owner == site.name else arrived(site, owner, [site.round])
        host = as_host(site, site.network, request.meta["scale"])
        done, site.state.tensors = self.go_on(host, self.own(site), {"guest": guest})
        log = done.log | {"guests": float(guest is not None)}
        return Reply(
            meta={"guest": guest.owner if guest else ""}, log=log, trained={"personal": Model(site.network, done.after)}
        )

    def before_fit(self, fit: Fit) -> None:
        """Load the guest, and watch the stages of both models."""
        guest: ModelInTransit | None = fit.extra.get("guest")
        if guest is not None:
            other = CompanionModel(fit.site, split(guest.kept)[0], guest.network, self.freeze_ktm_header)
            fit.extra["pair"] = ModelPair(fit.model, other, self.compared)
            if fit.site.task.regions is not None:
                fit.extra["grids"] = RegionGrids(fit.site.task.regions, self.region_mode)

    def compared(self, model: nn.Module) -> list[nn.Module]:
        """The stages that the similarity loss looks at."""
        if self.gamma == 0:
            return []
        layers = stages(model, type(model).__name__)
        return layers if self.layers is None else [layers[layer - 1] for layer in self.layers]

    def loss(self, fit: Fit, batch: Batch) -> torch.Tensor:
        """CE of the own model; with a guest also its CE, and gamma times the similarity loss."""
        pair: ModelPair | None = fit.extra.get("pair")
        own = super().loss(fit, batch)
        if pair is None or pair.guest.sits_out(batch):
            return own
        guest = fit.site.task.loss(pair.guest(batch.images), batch.targets)
        if self.gamma == 0:
            pair.note(len(batch.rows), guest_loss=guest)
            return own + guest
        alike = self.similarity(pair.own_features, pair.guest_features, self.regions(fit, batch))
        pair.note(len(batch.rows), guest_loss=guest, similarity=alike)
        return own + guest + self.gamma * alike

    def regions(self, fit: Fit, batch: Batch) -> RegionGrids | None:
        """The regions of a batch: those that moved with its images, otherwise the task's."""
        if "region" not in self.skd:
            return None
        grids: RegionGrids = fit.extra["grids"]
        if batch.regions is not None:
            grids = RegionGrids(batch.regions, self.region_mode)
        grids.check(batch.images)
        return grids

    def similarity(
        self, own: list[torch.Tensor], guest: list[torch.Tensor], regions: RegionGrids | None
    ) -> torch.Tensor:
        """The similarity loss L between the features of the own model and the guest's, see `stages_loss`."""
        own = [feature.detach() for feature in own] if self.skd_detach == "dam" else own
        guest = [feature.detach() for feature in guest] if self.skd_detach == "ktm" else guest
        return stages_loss(own, guest, self.skd, regions, self.layers)

    def after_batch(self, fit: Fit) -> None:
        """The guest's step."""
        if "pair" in fit.extra:
            fit.extra["pair"].guest.step(self.gradient_clip)

    def after_fit(self, fit: Fit) -> None:
        """Let the guest go."""
        if "pair" in fit.extra:
            fit.log |= fit.extra["pair"].close()
