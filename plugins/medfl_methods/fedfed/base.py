"""The base of methods in which sites share the parts of their images that tell the class, in two stages.

In the first stage all train a generator and a classifier (`medfl_methods.fedfed.distillation`). Then each site sends,
once, what these make of its images, clipped and noised; and in the second stage sites train the task's network on their
own images and on what all have sent. The server orders each step, so a site never decides in which stage it is.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import torch
from pydantic import Field

from medfl.contract import Findings, PayloadKind, Replies, Reply, Request, Server, Site
from medfl.data.pooled import labels_of
from medfl.data.sampling import stratified_share
from medfl.errors import RefusedError, SettingsError
from medfl.privacy.release import sentences
from medfl.privacy.released import Released, as_seen
from medfl.task import Task
from medfl.toolkit.aggregation import sample
from medfl.toolkit.fit import Fit
from medfl.toolkit.rounds import Due, Step
from medfl.training.loop import Batch
from medfl.types import MODEL, Tensors
from medfl.utils import wire
from medfl.utils.metadata import Count, MetaField, number
from medfl.utils.wire import prefixed, select
from medfl_methods.fedfed.distillation import rebuilding, scale_of
from medfl_methods.fedfed.distiller import SharedPart
from medfl_methods.fedfed.division import PART, Dividing
from medfl_methods.fedfed.shared_images import SharedBatches, SharedImages, check_shared
from medfl_methods.fedfed.sharing_facts import poor_generator, sharing_findings

logger = logging.getLogger(__name__)

SHARED = "shared/"
"""What the names of shared images and labels begin with in messages; also the blob that holds them."""

ERRORS = ("generator_error", "mean_image_error")
"""What a site tells of the generator: its mean squared error and that of the mean image, both in [0, 1]."""

LOUDEST = 1e3
"""The largest standard deviation of noise: shared images are sent in half precision, which ends at 65504."""


class FeatureSharing(Dividing):
    """Two stages: a generator and a classifier of residuals, then the task's network with the residuals of all sites.

    The generator q rebuilds an image x in [0, 1]; the classifier tells the class from the rest, x - q(x) (`Dividing`).
    After `distil_rounds` every site sends x - q(x) of its training images, clipped and noised once, with labels in
    clear. From then on a batch is a site's own images and as many shared ones, drawn class-balanced, and the loss is
    the mean over all. What is drawn doesn't depend on the site's own classes, and that is the use of it.

    With ``share_fraction = 0`` nothing is sent and the task's network learns as in FedAvg.

    Attributes:
        distil_rounds: Rounds of the first stage, at most, >= 1. In a run with no more rounds nothing is shared.
        share_fraction: Share of the images of each class of a site that are sent, in [0, 1].
        shared_sampling: ``balanced`` draws as many of each class of the shared set, ``all`` as it is.
    """

    sends: ClassVar[Mapping[str, PayloadKind]] = {MODEL: "update", PART: "update", SHARED: "samples"}
    sends_meta: ClassVar[Mapping[str, MetaField]] = {
        "size": MetaField("private", Count),
        **{key: MetaField("private", number(0)) for key in ERRORS},
    }

    distil_rounds: int = Field(15, ge=1)
    share_fraction: float = Field(1.0, ge=0, le=1)
    shared_sampling: Literal["balanced", "all"] = "balanced"

    # ---- what a method overrides

    def distil(self, site: Site, request: Request) -> Reply:
        """What a site does in a round of the first stage."""
        raise NotImplementedError

    # ---- the server

    def setup(self, server: Server) -> None:
        """The common initial model, generator and classifier.

        Raises:
            SettingsError: If the task does not say what its images are like, they are too small, or a loss would count
                the shared images of the classes that a site lacks for nothing.
        """
        if server.settings.balance == "loss":
            raise SettingsError(
                "incompatible_settings",
                "balance 'loss' weighs classes by a site's own images, so those that it lacks count for nothing, and "
                "shared images are there for just these. Choose balance 'sampling' or 'none'.",
                settings=("method", "balance"),
            )
        super().setup(server)
        server.state.meta["holders"] = []
        if self.share_fraction and server.settings.rounds <= self.distil_rounds:
            logger.warning(
                "The run has %d rounds and the first stage up to %d: nothing will be shared unless it ends early. "
                "Raise 'rounds', or lower 'distil_rounds'.",
                server.settings.rounds,
                self.distil_rounds,
            )
        if self.share_fraction:
            logger.info("%s", " ".join(sentences(self.releases())))

    def round_steps(self) -> tuple[Step, ...]:
        """A round of the first stage, sharing, a round of the second stage."""
        return (
            Step("distil", self.distil_requests, self.distil, self.aggregate_distilled),
            Step("share", self.share_requests, self.send_shared, self.aggregate_shared, updates=()),
            Step("train", self.requests, self.train, self.aggregate_updates),
        )

    def schedule(self, server: Server, done: Sequence[Due]) -> Sequence[Due]:
        """The first stage until it has ended; all share before the second stage's first round."""
        known = server.state.meta
        if "ended" not in known:
            return [Due("distil")]
        return [Due("share"), Due("train")] if self.share_fraction and "items" not in known else [Due("train")]

    def chosen(self, server: Server) -> list[str]:
        """This round's participants."""
        return sample(server.trainable(), server.settings.fraction, server.shared_rng("participation"))

    def distil_requests(self, server: Server) -> list[Request]:
        """A round of the first stage."""
        tensors = self.distiller(server)
        return [Request(name, "distil", tensors) for name in self.chosen(server)]

    def share_requests(self, server: Server) -> list[Request]:
        """To all sites that have images, with generator and classifier."""
        tensors = self.distiller(server)
        return [Request(name, "share", tensors) for name in server.trainable()]

    def requests(self, server: Server) -> list[Request]:
        """A round of the second stage; whoever takes part for the first time gets the shared set, once."""
        model, chosen, holders = self.publish(server), self.chosen(server), set(server.state.meta["holders"])
        if SHARED not in server.state.blobs:
            return [Request(name, "train", model) for name in chosen]
        whole = model | server.blob(SHARED) if set(chosen) - holders else model
        return [
            Request(name, "train", model, {"holds": True}) if name in holders else Request(name, "train", whole)
            for name in chosen
        ]

    def aggregate_updates(self, server: Server, replies: Replies) -> None:
        """Take the task's network, and who holds the shared set now."""
        self.average(server, replies)
        holders = {*server.state.meta["holders"], *replies.meta} - set(replies.missing)
        server.state.meta["holders"] = sorted(holders)  # whoever is missing may have lost it, and gets it again

    def check_tensors(self, task: Task, request: Request, tensors: Tensors) -> None:
        """Updates of what the order brought, or shared images of the task's shape with labels of its classes."""
        super().check_tensors(task, request, tensors)
        shared = select(tensors, SHARED)
        if bool(shared) != (request.op == "share"):
            raise RefusedError(
                "unexpected_tensors",
                f"Expected shared images in a reply to 'share' and in no other, got '{request.op}'.",
                op=request.op,
            )
        if shared:
            check_shared(shared, len(self.releases()), scale_of(task).shape, task.objective.classes)

    def aggregate_distilled(self, server: Server, replies: Replies) -> None:
        """Take the networks, generators and classifiers of a round of the first stage."""
        self.average(server, replies)
        self.average_distillers(server, replies)
        self.check_limit(server)

    def check_limit(self, server: Server) -> None:
        """The round limit ends the first stage."""
        if server.round >= self.distil_rounds:
            self.end_stage(server, "round limit")

    def end_stage(self, server: Server, why: str) -> None:
        """Go on to sharing, or straight to training where nothing is shared."""
        server.state.meta["ended"] = {"rounds": server.round, "ended": why}
        logger.info("The first stage ended after round %d (%s).", server.round, why)

    def aggregate_shared(self, server: Server, replies: Replies) -> None:
        """The shared set of all sites: written once, sent once to each site."""
        sent = {name: SharedImages.read(select(tensors, SHARED)) for name, tensors in replies}
        shared = SharedImages.joined(sent)
        if len(shared):
            server.keep_blob(SHARED, prefixed(shared.tensors(), SHARED))
        server.state.meta["items"] = {name: len(part) for name, part in sent.items()}
        with_errors = {name: meta for name, meta in replies.meta.items() if meta.keys() >= {*ERRORS}}
        errors = {name: [float(meta[key]) for key in ERRORS] for name, meta in with_errors.items()}
        server.state.meta["errors"] = errors
        if warning := poor_generator(errors):
            logger.warning("%s", warning)

    def shared_images(self, participant: Server | Site) -> SharedImages | None:
        """The shared set, where the holder has it."""
        if SHARED not in participant.state.blobs:
            return None
        return SharedImages.read(select(participant.blob(SHARED), SHARED))

    # ---- a site

    def train(self, site: Site, request: Request) -> Reply:
        """A round of the second stage, after keeping the shared set if the order brought it."""
        if received := select(request.tensors, SHARED):
            site.keep_blob(SHARED, prefixed(received, SHARED))
        if request.meta.get("holds") and SHARED not in site.state.blobs:
            raise RefusedError(
                "lost_shared_images",
                f"Site '{site.name}' has lost the shared images; the server sends them again next time.",
                site=site.name,
            )
        return self.train_task(site, request)

    def train_task(self, site: Site, request: Request) -> Reply:
        """The task's network, on own images and, where the site has them, shared ones."""
        return super().train(site, request)

    def send_shared(self, site: Site, request: Request) -> Reply:
        """Clipped and noised parts of the site's images, with noise that only this site knows.

        Raises:
            RefusedError: If the site has sent them before: the promise is one for a single release.
        """
        if site.state.meta.get("sent"):
            raise RefusedError(
                "repeated_release",
                f"Site '{site.name}' has sent parts of its images once and refuses to send others: what is promised is "
                "promised for one release. Start a run of its own for another, whose epsilon comes on top.",
                site=site.name,
            )
        site.state.meta["sent"] = True
        part = self.shared_part(site.task, select(request.tensors, PART))
        rows = stratified_share(labels_of(site.train), self.share_fraction, site.rng("share"))
        whole = torch.cat([part(raw_images(site, some)).cpu() for some in rows.split(256)])
        releases = self.releases()
        stream = site.secret_rng(
            "release", wire.digest({"part": whole}, {"how": [release.meta() for release in releases]})
        )
        copies = tuple(release.apply(whole, stream).half() for release in releases)
        labels = labels_of(site.train)[rows].clone()
        errors = dict(zip(ERRORS, self.errors(site, request), strict=True))
        return Reply(prefixed(SharedImages(copies, labels).tensors(), SHARED), {"size": len(site.train)} | errors)

    def errors(self, site: Site, request: Request) -> tuple[float, float]:
        """How far the generator is off, and the mean of the site's training images, on its validation images.

        Without validation images it is on the training images.
        """
        rows = torch.arange(len(site.train)).split(256)
        usual = torch.stack([raw_images(site, some).sum(0) for some in rows]).sum(0) / len(site.train)
        data = site.val if site.val is not None and len(site.val) else site.train
        model = self.loaded(site.task, select(request.tensors, PART))
        return rebuilding(model, data, usual, scale_of(site.task), site.settings.batch_size)

    def shared_part(self, task: Task, distiller: Tensors) -> SharedPart:
        """Maps images in [0, 1] to what is shared of them."""
        return SharedPart(self.loaded(task, distiller), self.share)

    def before_fit(self, fit: Fit) -> None:
        """Open the shared set, if this site has it."""
        super().before_fit(fit)
        shared = self.shared_images(fit.site)
        if shared is not None:
            balanced = self.shared_sampling == "balanced"
            fit.extra["shared"] = SharedBatches(shared, len(fit.site.train), fit.site.rng("shared"), balanced)

    def loss(self, fit: Fit, batch: Batch) -> torch.Tensor:
        """The task's loss over own and shared images together."""
        if "shared" not in fit.extra:
            return super().loss(fit, batch)
        parts, labels = fit.extra["shared"].draw(len(batch.rows))
        device = batch.images.device
        seen = as_seen(parts.to(device), self.releases()[0], scale_of(fit.site.task))
        images = torch.cat([batch.images, seen])
        targets = torch.cat([batch.targets, labels.to(device)])
        return fit.site.task.loss(fit.model(images), targets)

    # ---- what people look at

    def released(self, server: Server) -> Released | None:
        """What was sent until now."""
        shared = self.shared_images(server)
        if shared is None:
            return None
        owners = tuple(name for name, count in server.state.meta["items"].items() for _ in range(count))
        part = self.shared_part(server.task, select(self.distiller(server), PART))
        return Released(shared.copies, shared.labels, owners, part, tuple(self.releases()))

    def findings(self, server: Server) -> Findings:
        """When the first stage ended, what was sent, and what that promises."""
        return sharing_findings(server, self.shared_images(server), self.releases())


def raw_images(site: Site, rows: torch.Tensor) -> torch.Tensor:
    """Training images of a site in [0, 1], (n, C, *spatial), on the task's device."""
    return scale_of(site.task).raw(site.train.batch(rows)[0].to(site.task.device))
