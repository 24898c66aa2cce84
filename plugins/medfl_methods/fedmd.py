"""FedMD."""

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
from medfl.toolkit.aggregation import sample
from medfl.toolkit.fit import Fit
from medfl.toolkit.personal import Personal
from medfl.toolkit.rounds import Step
from medfl.toolkit.trainings import Budget, Training
from medfl.training.loop import Batch
from medfl.training.predict import evaluation_batch, logits
from medfl.types import Meta, Tensors, Visited
from medfl.utils.wire import prefixed, select

PUBLIC = "public/"
"""What the names of public images and targets begin with in orders; also the blob that holds them at a site."""

SCORES, CONSENSUS = "scores/logits", "consensus"
"""Names of tensors: what a site says of the drawn public images, and what all say on average."""

DIGEST = "digest"
"""The label of the training towards the consensus."""

ROUNDING = 1e-5
"""Differences of logits up to this count as none."""


class FedMD(Personal):
    """Every site has a model of its own, of any network; shared is what the models say of public images.

    All sites get the server's public images once, with labels. A site begins by training on them, and then on its own
    images. In each round the server draws some public images, the same for all sites. Participants send their logits
    of these, before any softmax, and get the plain mean of all. Each digests it: it trains to reduce the mean absolute
    difference of its logits to that mean, by Adam; differences up to 1e-5 count as none (ours: Adam would make full
    steps of what is rounding). Then it revisits its own images, for the run's epochs, by the task's loss. A site that
    was away goes on with the next mean.

    With ``public_epochs = 0``, ``private_epochs = 0`` and ``digest_epochs = 0`` this is `local`, as long as all sites
    take part in each round.

    **Sites with images of a single class pull the mean to that class**, as all logits count alike. The released code
    ends the first trainings by test images; here they are as long as the settings say.

    When to use it: Where hospitals want unlike networks and share no part of them, and there are public images with the
    same labels. What is sent hangs on the number of public images and not on the networks. As logits are no updates, a
    run with a privacy setting refuses this method.

    Attributes:
        public_epochs: Epochs on public images before a site's first round, >= 0.
        private_epochs: Epochs on its own images after them, >= 0.
        align: Public images that are drawn in a round, >= 1, without replacement; all if there are fewer.
        digest_epochs: Epochs on these in a round, >= 0.
        digest_lr: Learning rate of the Adam of these, > 0.
        public_batch: Public images in a batch, >= 1.

    Source: Li, Wang, NeurIPS workshop on federated learning 2019, Algorithm 1, and its released code.
    """

    name = "fedmd"
    family = "personal"
    paper = "Li, Wang, 2019"
    summary = "own models, held together by what all say of public images, which is all that is sent"
    supports = frozenset({Capability.DIFFERENT_NETWORKS})

    sends: ClassVar[Mapping[str, PayloadKind]] = {"scores/": "statistic"}
    needs: ClassVar[frozenset[Need]] = frozenset({"public_data", "soft_targets"})
    presets: ClassVar[Mapping[str, Meta]] = {"paper": {"public_epochs": 20, "private_epochs": 25}, "medfl": {}}
    preset_settings: ClassVar[Mapping[str, Meta]] = {"paper": {"rounds": 20, "epochs": 4, "batch_size": 5}}
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
        """Nothing but the shape of what a network says of an image.

        Raises:
            SettingsError: If public images are of unlike shapes, or change whenever they are looked at.
        """
        if isinstance(server.public, Visited):
            raise SettingsError(
                "data_not_supported",
                "FedMD sends public images to the sites once: expected images of one shape in a prepared data set, got "
                "a bundle's own transforms. Prepare them with `medfl prep`, or choose the method 'feddf'.",
                method="fedmd",
            )
        assert server.public is not None
        image = server.public.batch(torch.arange(1))[0].shape[1:]
        server.state.meta |= {"holders": [], "scored": [], "shape": list(server.task.objective.output_shape(image))}

    def round_steps(self) -> tuple[Step, ...]:
        """Sites score public images; then they digest what all say, and revisit their own."""
        return (
            Step("score", self.score_requests, self.score, self.aggregate_scores),
            Step(DIGEST, self.digest_requests, self.digest, self.aggregate_digested),
        )

    def drawn(self, server: Server) -> torch.Tensor:
        """This round's rows of the public images."""
        assert server.public is not None
        return torch.randperm(len(server.public), generator=server.shared_rng("public"))[: self.align]

    def score_requests(self, server: Server) -> list[Request]:
        """To this round's participants; whoever takes part for the first time gets the public images, once."""
        assert server.public is not None
        chosen = sample(server.trainable(), server.settings.fraction, server.shared_rng("participation"))
        rows, public, holders = {"rows": self.drawn(server)}, Tensors(), set(server.state.meta["holders"])
        meta = {"shape": server.state.meta["shape"]}
        if set(chosen) - holders:
            images = server.public.batch(torch.arange(len(server.public)))[0]
            public = prefixed({"images": images.contiguous(), "targets": all_targets(server.public)}, PUBLIC)
        return [Request(name, "score", rows if name in holders else rows | public, meta) for name in chosen]

    def aggregate_scores(self, server: Server, replies: Replies) -> None:
        """The mean of all scores, and who has the public images now."""
        self.note_holders(server, replies)
        server.state.meta["scored"] = sorted(replies.meta)
        scores = [tensors[SCORES].double() for _, tensors in replies]
        server.state.tensors = {CONSENSUS: consensus(scores)} if scores else {}

    def digest_requests(self, server: Server) -> list[Request]:
        """To the sites whose scores came, with the mean."""
        tensors = {"rows": self.drawn(server)} | server.state.tensors
        return [Request(name, DIGEST, tensors) for name in server.state.meta["scored"]]

    def aggregate_digested(self, server: Server, replies: Replies) -> None:
        """Forget the mean."""
        self.note_holders(server, replies)
        server.state.tensors, server.state.meta["scored"] = {}, []

    def note_holders(self, server: Server, replies: Replies) -> None:
        """Who replied has the public images; who is missing may have lost them, and gets them again."""
        server.state.meta["holders"] = sorted({*server.state.meta["holders"], *replies.meta} - set(replies.missing))

    def check_tensors(self, task: Task, request: Request, tensors: Tensors) -> None:
        """Logits of each image that was drawn, after 'score' and not after 'digest'."""
        forms = {name: (list(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}
        shape = [len(request.tensors["rows"]), *request.meta.get("shape", [])]
        if forms != ({SCORES: (shape, torch.float32)} if request.op == "score" else {}):
            raise RefusedError(
                "unexpected_tensors",
                f"Expected float32 logits of shape {shape} in a reply to 'score' and nothing in one to '{DIGEST}', got "
                "something else. The site needs the same bundle and version of medfl.",
                op=request.op,
                shape=shape,
            )

    # ---- a site

    def score(self, site: Site, request: Request) -> Reply:
        """What the own model says of the drawn images; before a site's first round it is trained."""
        if received := select(request.tensors, PUBLIC):
            site.keep_blob(PUBLIC, received)
        task, log = site.task, {}
        if not site.state.tensors:
            log = self.begin(site)
        model = task.load(self.own(site), site.network)
        data, size = public_part(site, request.tensors["rows"]), evaluation_batch(task.objective)
        return Reply({SCORES: logits(model, data, site.settings, task.device, size)}, log=log)

    def begin(self, site: Site) -> dict[str, float]:
        """Train on public images, then on own ones, and keep the model; what is to be logged."""
        log = dict[str, float]()
        public = Training("public", Budget(self.public_epochs), batch_size=self.public_batch)
        for training, data in (
            (public, public_part(site)),
            (Training("private", Budget(self.private_epochs)), site.train),
        ):
            if training.budget.total:
                done = self.fit(training.at(replace(site, train=data)), self.own(site), training=training)
                site.state.tensors = done.after
                log |= training.log(done.log)
        return log

    def digest(self, site: Site, request: Request) -> Reply:
        """Train towards the mean of all, then on own images."""
        log = dict[str, float]()
        if self.digest_epochs:
            training = Training(DIGEST, Budget(self.digest_epochs), batch_size=self.public_batch)
            images = public_part(site, request.tensors["rows"]).images
            settings = site.settings.model_copy(update={"balance": "none"})  # these images have no classes
            task = replace(site.task, augmentation=None)  # what is said is said of the images as they are
            there = replace(site, train=TensorData(images, request.tensors[CONSENSUS]), task=task, settings=settings)
            done = self.fit(training.at(there), self.own(site), training=training)
            site.state.tensors, log = done.after, training.log(done.log)
        done, site.state.tensors = self.go_on(site, self.own(site))
        return Reply(log=log | done.log, trained={"personal": Model(site.network, done.after)})

    def make_optimizer(self, fit: Fit) -> torch.optim.Optimizer:
        """Adam towards the mean of all, else the task's."""
        if fit.training.label != DIGEST:
            return super().make_optimizer(fit)
        return torch.optim.Adam([parameter for _, parameter in fit.parameters()], lr=self.digest_lr)

    def loss(self, fit: Fit, batch: Batch) -> torch.Tensor:
        """The mean absolute difference to the mean of all, else the task's loss."""
        if fit.training.label != DIGEST:
            return super().loss(fit, batch)
        return F.threshold((fit.logits(batch).float() - batch.targets).abs(), ROUNDING, 0.0).mean()


def public_part(site: Site, rows: torch.Tensor | None = None) -> TensorData:
    """Some of the public images with their targets, or all, as the site holds them.

    Raises:
        RefusedError: If it has lost them.
    """
    if PUBLIC not in site.state.blobs:
        raise RefusedError(
            "lost_public_images",
            f"Site '{site.name}' has lost the public images; the server sends them again next time.",
            site=site.name,
        )
    public = site.blob(PUBLIC)
    images, targets = public["images"], public["targets"]
    return TensorData(images, targets) if rows is None else TensorData(images[rows], targets[rows])


def consensus(scores: list[torch.Tensor]) -> torch.Tensor:
    """The plain mean of sites' logits, each (n, C, ...), float64; as float32."""
    return torch.stack(scores).mean(dim=0).float()
