"""FedMD: distillation of the sites' mean logits on public images, for networks that differ between sites."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import torch
from pydantic import Field
from torch.nn import functional as F

from medfl.contract import Capability, Model, Need, PayloadKind, ReducesTo, Replies, Reply, Request, Server, Site
from medfl.data.pooled import TensorData, all_targets
from medfl.errors import RefusedError, SettingsError
from medfl.task import Task
from medfl.toolkit.aggregation import sample_sites
from medfl.toolkit.fit import Fit
from medfl.toolkit.personal import PersonalModels
from medfl.toolkit.rounds import RoundStep
from medfl.toolkit.training_specs import Training, TrainingBudget
from medfl.training.loop import Batch
from medfl.training.predict import evaluation_batch, logits
from medfl.types import Meta, Tensors, is_augmenting
from medfl.utils.wire import prefixed, select

PUBLIC_PREFIX = "public/"
"""Prefix of the public images and targets in requests, and name of the blob (a file of tensors) that stores them at a
site."""

LOGITS = "scores/logits"
"""Name of the tensor with a site's logits of the drawn public images."""

CONSENSUS = "consensus"
"""Name of the tensor with the mean logits of the sites, in requests and in the server's state."""

DIGEST = "digest"
"""Name of the step, and label of the training, in which sites learn the mean logits."""

ROUNDING_TOLERANCE = 1e-5
"""Largest absolute difference of logits that counts as 0 in the digest phase."""


class FedMD(PersonalModels):
    """Model distillation on public images (FedMD): sites share logits only, so networks may differ.

    Each site has a personal model of any network. The server sends its public images with labels to each site once.
    Before its first round, a site trains on the public images and then on its own images. A site that missed rounds
    continues with the next mean.

    Update rule:
        In each round, the server draws public images, the same for all sites. The participants send their logits s_k
        for these images, without softmax, and the server returns the mean of the K replies:

            s = (1 / K) sum_k s_k

        In the digest phase, each site minimises the mean absolute difference of its logits to s with Adam. Differences
        up to 1e-5 count as 0, an addition of medfl: otherwise Adam would make full steps from rounding errors. In the
        revisit phase, the site trains on its own images with the task's loss for the run's epochs.

    When to use it: When hospitals need different networks and share no part of them, and there are labelled public
    images of the same task. The traffic depends on the number of public images, not on the networks.

    Limits: **A site with images of a single class pulls the mean towards that class**, because all logits have equal
    weight. Logits are no updates, so a run with a privacy setting refuses this method. The released code stops the
    first trainings by test images; here their length is set by parameters.

    Attributes:
        public_epochs: Epochs on the public images before a site's first round, >= 0.
        private_epochs: Epochs on the site's own images after that, >= 0.
        align: Number of public images drawn in a round without replacement, >= 1; all images if there are fewer.
        digest_epochs: Epochs of the digest phase in a round, >= 0.
        digest_lr: Learning rate of Adam in the digest phase, > 0.
        public_batch: Public images in a batch, >= 1.

    Source: Li, Wang, NeurIPS workshop on federated learning 2019, Algorithm 1, and its released code.
    """

    name = "fedmd"
    family = "personal"
    paper = "Li, Wang, 2019"
    summary = "personal models that learn from the sites' mean logits of public images; only logits are sent"
    supports = frozenset({Capability.DIFFERENT_NETWORKS})

    sends: ClassVar[Mapping[str, PayloadKind]] = {"scores/": "statistic"}
    """Mapping from each name prefix of sent tensors to the kind of these tensors."""
    needs: ClassVar[frozenset[Need]] = frozenset({"public_data", "soft_targets"})
    """Requirements that the task or the run must meet, otherwise the run is refused before it starts."""
    presets: ClassVar[Mapping[str, Meta]] = {"paper": {"public_epochs": 20, "private_epochs": 25}, "medfl": {}}
    preset_settings: ClassVar[Mapping[str, Meta]] = {"paper": {"rounds": 20, "epochs": 4, "batch_size": 5}}
    """Mapping from each preset to the settings of the run that belong to it."""
    reduces_to: ClassVar[tuple[ReducesTo, ...]] = (
        ReducesTo("local", {"public_epochs": 0, "private_epochs": 0, "digest_epochs": 0}),
    )

    public_epochs: int = Field(5, ge=0)
    private_epochs: int = Field(5, ge=0)
    align: int = Field(5000, ge=1)
    digest_epochs: int = Field(1, ge=0)
    digest_lr: float = Field(1e-3, gt=0, allow_inf_nan=False)
    public_batch: int = Field(256, ge=1)

    # ---- the server

    def setup(self, server: Server) -> None:
        """Set the server's state: the shape of a network's logits, and empty lists of sites.

        Raises:
            SettingsError: If public images have different shapes or change at each access.
        """
        if is_augmenting(server.public):
            raise SettingsError(
                "data_not_supported",
                "FedMD sends public images to the sites once: expected images of one shape in a prepared data set, got "
                "a bundle's own transforms. Prepare them with `medfl prep`, or choose the method 'feddf'.",
                method="fedmd",
            )
        assert server.public is not None
        image = server.public.batch(torch.arange(1))[0].shape[1:]
        server.state.meta |= {"holders": [], "scored": [], "shape": list(server.task.objective.output_shape(image))}

    def round_steps(self) -> tuple[RoundStep, ...]:
        """Return the two steps of a round: sites send logits, then train towards their mean and on their own images."""
        return (
            RoundStep("score", self.score_requests, self.score, self.aggregate_logits),
            RoundStep(DIGEST, self.digest_requests, self.digest, self.delete_mean_logits),
        )

    def drawn_rows(self, server: Server) -> torch.Tensor:
        """Return the row indices of the public images of this round."""
        assert server.public is not None
        return torch.randperm(len(server.public), generator=server.shared_rng("public"))[: self.align]

    def score_requests(self, server: Server) -> list[Request]:
        """Return requests for logits to the participants; sites without the public images receive them."""
        assert server.public is not None
        chosen = sample_sites(server.trainable(), server.settings.fraction, server.shared_rng("participation"))
        rows, public = {"rows": self.drawn_rows(server)}, Tensors()
        sites_with_images = set(server.state.meta["holders"])
        meta = {"shape": server.state.meta["shape"]}
        if set(chosen) - sites_with_images:
            images = server.public.batch(torch.arange(len(server.public)))[0]
            public = prefixed({"images": images.contiguous(), "targets": all_targets(server.public)}, PUBLIC_PREFIX)
        return [Request(name, "score", rows if name in sites_with_images else rows | public, meta) for name in chosen]

    def aggregate_logits(self, server: Server, replies: Replies) -> None:
        """Store the mean logits and the names of the sites that replied."""
        self.record_public_data_sites(server, replies)
        server.state.meta["scored"] = sorted(replies.meta)
        scores = [tensors[LOGITS].double() for _, tensors in replies]
        server.state.tensors = {CONSENSUS: consensus(scores)} if scores else {}

    def digest_requests(self, server: Server) -> list[Request]:
        """Return requests with the mean logits to the sites that sent logits."""
        tensors = {"rows": self.drawn_rows(server)} | server.state.tensors
        return [Request(name, DIGEST, tensors) for name in server.state.meta["scored"]]

    def delete_mean_logits(self, server: Server, replies: Replies) -> None:
        """Aggregate the replies of the digest step: delete the mean logits from the server's state."""
        self.record_public_data_sites(server, replies)
        server.state.tensors, server.state.meta["scored"] = {}, []

    def record_public_data_sites(self, server: Server, replies: Replies) -> None:
        """Record which sites have the public images; a site that did not reply receives the images again."""
        server.state.meta["holders"] = sorted({*server.state.meta["holders"], *replies.meta} - set(replies.missing))

    def check_tensors(self, task: Task, request: Request, tensors: Tensors) -> None:
        """Raise RefusedError unless a reply to 'score' has logits of each drawn image, and one to 'digest' nothing."""
        forms = {name: (list(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}
        shape = [len(request.tensors["rows"]), *request.meta.get("shape", [])]
        if forms != ({LOGITS: (shape, torch.float32)} if request.op == "score" else {}):
            raise RefusedError(
                "unexpected_tensors",
                f"Expected float32 logits of shape {shape} in a reply to 'score' and nothing in one to '{DIGEST}', got "
                "something else. The site needs the same bundle and version of medfl.",
                op=request.op,
                shape=shape,
            )

    # ---- a site

    def score(self, site: Site, request: Request) -> Reply:
        """Reply with the logits of the drawn images; before a site's first round, store the public images and train."""
        if received := select(request.tensors, PUBLIC_PREFIX):
            site.keep_blob(PUBLIC_PREFIX, received)
        task, log = site.task, {}
        if not site.state.tensors:
            log = self.train_before_first_round(site)
        model = task.load(self.own(site), site.network)
        data, size = public_images(site, request.tensors["rows"]), evaluation_batch(task.objective)
        return Reply({LOGITS: logits(model, data, site.settings, task.device, size)}, log=log)

    def train_before_first_round(self, site: Site) -> dict[str, float]:
        """Train on the public images, then on the site's own images; store the model and return the log."""
        log = dict[str, float]()
        public = Training("public", TrainingBudget(self.public_epochs), batch_size=self.public_batch)
        for training, data in (
            (public, public_images(site)),
            (Training("private", TrainingBudget(self.private_epochs)), site.train),
        ):
            if training.budget.total:
                done = self.fit(training.at(replace(site, train=data)), self.own(site), training=training)
                site.state.tensors = done.after
                log |= training.log(done.log)
        return log

    def digest(self, site: Site, request: Request) -> Reply:
        """Train towards the mean logits, then on the site's own images; store the model."""
        log = dict[str, float]()
        if self.digest_epochs:
            training = Training(DIGEST, TrainingBudget(self.digest_epochs), batch_size=self.public_batch)
            images = public_images(site, request.tensors["rows"]).images
            settings = site.settings.model_copy(update={"balance": "none"})  # the targets are logits, not classes
            task = replace(site.task, augmentation=None)  # the logits belong to images without augmentation
            there = replace(site, train=TensorData(images, request.tensors[CONSENSUS]), task=task, settings=settings)
            done = self.fit(training.at(there), self.own(site), training=training)
            site.state.tensors, log = done.after, training.log(done.log)
        done, site.state.tensors = self.continue_training(site, self.own(site))
        return Reply(log=log | done.log, trained={"personal": Model(site.network, done.after)})

    def make_optimizer(self, fit: Fit) -> torch.optim.Optimizer:
        """Create the optimiser of a training: Adam for the digest phase, the task's optimiser otherwise."""
        if fit.training.label != DIGEST:
            return super().make_optimizer(fit)
        return torch.optim.Adam([parameter for _, parameter in fit.parameters()], lr=self.digest_lr)

    def loss(self, fit: Fit, batch: Batch) -> torch.Tensor:
        """Return the mean absolute difference to the mean logits in the digest phase; the task's loss otherwise."""
        if fit.training.label != DIGEST:
            return fit.task_loss(batch)
        return F.threshold((fit.logits(batch).float() - batch.targets).abs(), ROUNDING_TOLERANCE, 0.0).mean()


def public_images(site: Site, rows: torch.Tensor | None = None) -> TensorData:
    """Return some or all public images with their targets from the site's blob.

    Args:
        site: Site that stores the public images.
        rows: Row indices; None returns all images.

    Raises:
        RefusedError: If the site has lost the blob.
    """
    if PUBLIC_PREFIX not in site.state.blobs:
        raise RefusedError(
            "lost_public_images",
            f"Site '{site.name}' has lost the public images; the server sends them again next time.",
            site=site.name,
        )
    public = site.blob(PUBLIC_PREFIX)
    images, targets = public["images"], public["targets"]
    return TensorData(images, targets) if rows is None else TensorData(images[rows], targets[rows])


def consensus(scores: list[torch.Tensor]) -> torch.Tensor:
    """Return the mean of the sites' logits, float32.

    Args:
        scores: Logits of each site, shape (n, C, ...), float64.
    """
    return torch.stack(scores).mean(dim=0).float()
