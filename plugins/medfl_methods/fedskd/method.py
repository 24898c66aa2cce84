"""FedSKD as a method class: routes, the training of a model pair, and the checks of networks and atlas."""

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
from medfl.toolkit.circulating import CirculatingModels
from medfl.toolkit.co_training import CompanionModel, ModelPair
from medfl.toolkit.feature_hooks import check_comparable_stages, network_stages
from medfl.toolkit.fit import Fit
from medfl.toolkit.model_transfer import ModelInTransit, receive_model, with_host_settings
from medfl.training.checkpoints import TrainingPart
from medfl.training.loop import Batch
from medfl.training.optimizer_state import split_optimizer_state
from medfl.types import Meta, Tensors
from medfl_methods.fedskd.regions import region_weights
from medfl_methods.fedskd.stages import RegionGrids, SimilarityKind, stages_loss

logger = logging.getLogger(__name__)


class FedSKD(CirculatingModels):
    """Each site trains its own model beside a copy of another site's model, and the two teach each other by similarity.

    Before `start_fraction` of the rounds, models circulate as in `fedcross_star`: the host trains all parameters of the
    visiting model with the optimiser state that travels with it, then returns it to its owner. The number of these
    rounds is fixed at the start of the run. Rounds that are added later come after them, unless the fraction is 1.

    The class weights in both cross entropies (equation 1) come from the run's setting ``balance = loss``. They are the
    weights of the site that trains (`medfl.training.balance`).

    With ``gamma = 0``, or if each site is mapped to itself, this is `local` with the same ``optimizer_state``, as long
    as all sites take part. Set it for the comparison: by default FedSKD keeps the optimiser of a site's own model over
    the rounds, and `local` does not.

    Update rule:
        In each round the server draws a permutation of the sites. It tells each site which other site's model it
        receives as a visiting model. The site trains its own model and the visiting model together on its own images,
        then discards the visiting model. Each batch minimises

            CE(own) + CE(visiting) + gamma L

        in one backward pass, where CE is the task's loss. L compares the features that both models compute for the
        batch, stage by stage. It compares the similarities between images, between positions of the feature maps, and
        between regions of the images (`medfl_methods.fedskd.similarity`). Networks may therefore differ; only their
        numbers of stages must agree. The head of the visiting model is frozen, and gradients pass through it.

        The server draws the route and holds no model: copies go directly from site to site. A site trains its own model
        without L if the permutation maps it to itself or if its visiting model did not arrive. With partial
        participation the permutation covers only the participating sites. A site without training data keeps its
        initial model.

    When to use it: Use it with few sites that have different networks and trust each other with their models. In each
    round each site's raw model reaches another site. By default a site does N times the local work of FedAvg, for two
    models, where N is the number of sites; the inherited setting ``p2p_scale = 1`` makes the work comparable. Choose
    ``gamma`` on validation data.

    Attributes:
        gamma: Weight of the similarity loss L, >= 0.
        skd: Kinds of similarity that L compares: ``batch`` (between images), ``pixel`` (between positions of a map,
            voxels in 3-D), and ``region`` (between regions of an atlas), which needs a task with `regions`.
        layers: Numbers of the compared stages, counted from 1; None means all. ``pixel`` and ``region`` need feature
            maps. With None, a stage that returns vectors takes part in ``batch`` only; such a stage that is listed here
            is refused.
        start_fraction: Fraction of the rounds before the similarity loss begins, in [0, 1].
        freeze_ktm_header: Whether the head of the visiting model (the knowledge transfer model, KTM, of the paper)
            keeps its weights.
        skd_detach: Model whose features get no gradient from L: ``ktm``, the visiting model; ``dam``, the site's own
            model (the paper's domain adaptation model); or ``none``.
        optimizer_state: ``persistent`` keeps the optimiser state of the site's own model from round to round; ``reset``
            starts a new optimiser in each round. The visiting model always gets a new optimiser.
        region_mode: How region masks are resized to a feature map: ``soft`` (average pooling) keeps all regions,
            ``nearest`` (sampling) can lose small ones.

    Source: Weng, Cai, Zhou, FedSKD: Aggregation-free model-heterogeneous federated learning using multi-dimensional
    similarity knowledge distillation, arXiv 2503.18981, 2025, equations 1 to 14.
    """

    name = "fedskd"
    family = "peer to peer"
    paper = "Weng et al., 2025"
    summary = "each site trains its model beside a copy of another site's; both match similarities between features"
    supports = frozenset({Capability.DIFFERENT_NETWORKS, Capability.PEER_MESSAGES})

    needs: ClassVar[frozenset[Need]] = frozenset({"features", "head", "trainable_body"})
    """Properties that the task, its data and its networks must have for this method."""
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
    skd: tuple[SimilarityKind, ...] = ("batch", "pixel")
    layers: tuple[int, ...] | None = None
    start_fraction: float = Field(0.0, ge=0, le=1)
    freeze_ktm_header: bool = True
    skd_detach: Literal["none", "ktm", "dam"] = "none"
    optimizer_state: Literal["persistent", "reset"] = "persistent"
    region_mode: Literal["soft", "nearest"] = "soft"

    @field_validator("skd", "layers")
    @classmethod
    def _validate_unique(cls, value: tuple[str | int, ...] | None) -> tuple[str | int, ...] | None:
        """Raise if the list is empty or contains a value twice."""
        if value is not None and (not value or len(set(value)) < len(value)):
            raise ValueError("expected at least one value, and no value twice")
        return value

    @property
    def active_needs(self) -> frozenset[Need]:
        """Properties that the networks must have with these settings.

        They are ``features`` if gamma > 0, and ``head`` and ``trainable_body`` if the visiting model's head is frozen.
        """
        needs: set[Need] = {"head", "trainable_body"} if self.freeze_ktm_header else set()
        return frozenset(needs | ({"features"} if self.gamma > 0 else set()))

    @property
    def keeps_optimizer(self) -> bool:
        """True if a site keeps the optimiser state of its own model from round to round."""
        return self.optimizer_state == "persistent"

    # ---- the server

    def setup(self, server: Server) -> None:
        """Prepare the server's state at the start of a run.

        Check the networks of all sites, and store the number of rounds without the similarity loss L.
        """
        super().setup(server)
        self.check(server)
        server.state.meta["visits"] = math.ceil(self.start_fraction * server.settings.rounds - 1e-9)

    def visiting_models_return(self, server: Server) -> bool:
        """Return whether visiting models return to their owners in this round, as they do before L begins."""
        return self.start_fraction == 1 or server.round <= int(server.state.meta["visits"])

    def check(self, server: Server) -> None:
        """Raise if a network or the task does not fit the settings.

        Log a warning if gamma is 0 and `p2p_scale` is not 1.

        Args:
            server: Server of the run, with its task and its networks.

        Raises:
            SettingsError: If a network has no `head` to freeze, if numbers of stages differ or a stage in `layers` does
                not exist, or if `skd` contains ``region`` and the task has no regions.
            DataError: If the task's regions are not a valid label volume.
        """
        networks = {name: server.task.build(name) for name in server.networks()}
        for name, network in networks.items():
            if self.freeze_ktm_header and not isinstance(getattr(network, "head", None), nn.Module):
                raise SettingsError(
                    "missing_head",
                    f"Network '{name}' ({type(network).__name__}) has no `head`: expected its classifier under that "
                    "name, to freeze it in visiting models. Add a head, or set freeze_ktm_header to False.",
                    network=name,
                    type=type(network).__name__,
                )
        if self.gamma == 0:
            if self.p2p_scale != 1:
                logger.warning(
                    "With gamma = 0, 'fedskd' equals 'local' with p2p_scale times the epochs: visiting models teach "
                    "nothing."
                )
            return
        check_comparable_stages(networks, self.layers)
        if "region" in self.skd and server.task.regions is None:
            raise SettingsError(
                "missing_regions",
                "`skd` contains 'region', but the task has no regions: expected a label volume on the images' grid "
                "(`Task.regions`). Add an atlas to the bundle, or remove 'region' from `skd`.",
                setting="skd",
            )
        if "region" in self.skd and server.task.regions is not None:
            region_weights(server.task.regions, [1] * server.task.regions.dim())  # raises if it is no label volume

    # ---- a site

    def sent_model(self, site: Site, request: Request) -> Tensors:
        """Return the tensors of the site's own model that the site sends to the model's host.

        The optimiser state is included only in rounds where the model returns.
        """
        return (
            super().sent_model(site, request) if request.meta["returns"] else split_optimizer_state(self.own(site))[0]
        )

    def train(self, site: Site, request: Request) -> Reply:
        """Execute the step ``train`` at a site: train the own model beside the visiting model, and store the own model.

        In rounds where models return to their owners, train the visiting model instead.
        """
        if request.meta["returns"]:
            return super().train(site, request)
        owner = request.meta["owner"]
        visiting = None if owner == site.name else receive_model(site, owner, [site.round])
        host = with_host_settings(site, site.network, request.meta["scale"])
        done, site.state.tensors = self.continue_training(host, self.own(site), {"visiting_model": visiting})
        log = done.log | {"visiting_models": float(visiting is not None)}
        return Reply(
            meta={"visiting_owner": visiting.owner if visiting else ""},
            log=log,
            trained={"personal": Model(site.network, done.after)},
        )

    def before_fit(self, fit: Fit) -> None:
        """Prepare a training: join own and visiting model to a pair, with hooks that record the compared features."""
        visiting: ModelInTransit | None = fit.extra.get("visiting_model")
        if visiting is not None:
            companion = CompanionModel(
                fit.site, split_optimizer_state(visiting.kept)[0], visiting.network, self.freeze_ktm_header
            )
            fit.extra["pair"] = ModelPair(fit.model, companion, self.compared)
            if fit.site.task.regions is not None:
                fit.extra["grids"] = RegionGrids(fit.site.task.regions, self.region_mode)

    def compared(self, model: nn.Module) -> list[nn.Module]:
        """Return the stages (submodules) of a network whose features the loss compares; none if gamma is 0."""
        if self.gamma == 0:
            return []
        layers = network_stages(model, type(model).__name__)
        return layers if self.layers is None else [layers[layer - 1] for layer in self.layers]

    def loss(self, fit: Fit, batch: Batch) -> torch.Tensor:
        """Return the loss of a batch: CE(own), with a visiting model plus CE(visiting) and gamma times L.

        A batch that is too small for the batch-norm layers of the visiting model trains the own model only.
        """
        pair: ModelPair | None = fit.extra.get("pair")
        own_loss = fit.task_loss(batch)
        if pair is None or pair.visiting.skips(batch):
            return own_loss
        visiting_loss = fit.site.task.loss(pair.visiting(batch.images), batch.targets)
        if self.gamma == 0:
            pair.note(len(batch.rows), visiting_loss=visiting_loss)
            return own_loss + visiting_loss
        similarity = self.similarity(pair.own_features, pair.visiting_features, self.regions(fit, batch))
        pair.note(len(batch.rows), visiting_loss=visiting_loss, similarity=similarity)
        return own_loss + visiting_loss + self.gamma * similarity

    def regions(self, fit: Fit, batch: Batch) -> RegionGrids | None:
        """Return the weights of the atlas regions for a batch, or None if `skd` has no ``region``.

        Label volumes that were augmented with the images of the batch take the place of the task's label volume.

        Raises:
            SettingsError: If the labels are not on the grid of the images.
        """
        if "region" not in self.skd:
            return None
        grids: RegionGrids = fit.extra["grids"]
        if batch.regions is not None:
            grids = RegionGrids(batch.regions, self.region_mode)
        grids.check(batch.images)
        return grids

    def similarity(
        self, own: list[torch.Tensor], visiting: list[torch.Tensor], regions: RegionGrids | None
    ) -> torch.Tensor:
        """Return the similarity loss L between the features of the own and the visiting model.

        Args:
            own: Features of the own model, one tensor for each compared stage.
            visiting: Features of the visiting model, in the same order.
            regions: Weights of the atlas regions, for the kind ``region``.
        """
        own = [feature.detach() for feature in own] if self.skd_detach == "dam" else own
        visiting = [feature.detach() for feature in visiting] if self.skd_detach == "ktm" else visiting
        return stages_loss(own, visiting, self.skd, regions, self.layers)

    def training_parts(self, fit: Fit) -> Mapping[str, TrainingPart]:
        """Return the pair of own and visiting model, if there is a visiting model."""
        return {"pair": fit.extra["pair"]} if "pair" in fit.extra else {}

    def after_batch(self, fit: Fit) -> None:
        """Take an optimiser step for the visiting model."""
        if "pair" in fit.extra:
            fit.extra["pair"].visiting.step(self.gradient_clip)

    def after_fit(self, fit: Fit) -> None:
        """Finish a training: remove the hooks of the model pair and add the mean losses of the pair to the log."""
        if "pair" in fit.extra:
            fit.log |= fit.extra["pair"].close()
