"""Base class of methods that distil features and share them, in two stages.

In stage 1 the sites train a distiller together: a generator and a classifier
(`medfl_methods.fedfed.feature_distillation`). Then each site sends the distilled parts of its images once, clipped and
noised. In stage 2 the sites train the task's network on their own images and on the shared parts of all sites. The
server requests each step, so a site never decides which stage it is in.
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
from medfl.privacy.release import guarantee_sentences
from medfl.privacy.released import ReleasedImages, normalise_parts
from medfl.task import Task
from medfl.toolkit.aggregation import sample_sites
from medfl.toolkit.fit import Fit
from medfl.toolkit.rounds import RoundStep, ScheduledStep
from medfl.training.checkpoints import TrainingPart
from medfl.training.loop import Batch
from medfl.types import MODEL_PREFIX, Tensors
from medfl.utils import wire
from medfl.utils.metadata import Count, MetaField, bounded_number
from medfl.utils.wire import prefixed, select
from medfl_methods.fedfed.distiller import SharedPart
from medfl_methods.fedfed.distiller_training import reconstruction_errors, require_scale
from medfl_methods.fedfed.feature_distillation import DISTILLER_PREFIX, FeatureDistillation
from medfl_methods.fedfed.shared_images import SharedBatches, SharedImages, check_shared
from medfl_methods.fedfed.sharing_findings import poor_generator_warning, sharing_findings

logger = logging.getLogger(__name__)

SHARED_PREFIX = "shared/"
"""Prefix of the names of shared images and labels in messages, and name of the blob (stored tensors) with them."""

ERROR_KEYS = ("generator_error", "mean_image_error")
"""Metadata keys of the mean squared errors that a site reports: of the generator and of the site's mean image, for
images in [0, 1]."""

MAX_NOISE_STD = 1e3
"""Largest standard deviation of the noise. Shared images are sent in half precision, whose largest number is 65504."""


class FeatureSharing(FeatureDistillation):
    """Two-stage training: first the distiller, then the task's network on own images and shared residuals of all sites.

    The generator q reconstructs an image x in [0, 1]. The classifier predicts the class from the residual x - q(x)
    (`FeatureDistillation`). After at most `distil_rounds` rounds every site sends the residuals x - q(x) of its
    training images once, clipped and noised, with their labels as plain text. From then on a batch has the site's own
    images and equally many shared ones of each copy, drawn class-balanced, and the loss is the mean over all. The drawn
    classes do not depend on the site's own classes; that is the purpose of sharing.

    With ``share_fraction = 0`` nothing is sent and the task's network is trained as in FedAvg.

    Attributes:
        distil_rounds: Maximum number of rounds of stage 1, >= 1. If the run has no more rounds than that and stage 1
            does not end early, nothing is shared.
        share_fraction: Fraction of a site's images of each class that it shares, in [0, 1].
        shared_sampling: ``balanced`` draws equally many images of each class from the shared set, ``all`` draws
            uniformly from the whole set.
    """

    sends: ClassVar[Mapping[str, PayloadKind]] = {
        MODEL_PREFIX: "update",
        DISTILLER_PREFIX: "update",
        SHARED_PREFIX: "samples",
    }
    """Tensors in a site's reply: mapping from each name prefix to the kind of payload, such as an update."""
    sends_meta: ClassVar[Mapping[str, MetaField]] = {
        "size": MetaField("private", Count),
        **{key: MetaField("private", bounded_number(0)) for key in ERROR_KEYS},
    }
    """Metadata in a site's reply: mapping from each key to its type and to whether the value is private."""

    distil_rounds: int = Field(15, ge=1)
    share_fraction: float = Field(1.0, ge=0, le=1)
    shared_sampling: Literal["balanced", "all"] = "balanced"

    # ---- what a method overrides

    def distil(self, site: Site, request: Request) -> Reply:
        """Execute the step ``distil``: train the distiller at a site in a round of stage 1, and return its update."""
        raise NotImplementedError

    # ---- the server

    def setup(self, server: Server) -> None:
        """Initialise the model and the distiller at the server, and log the privacy statement of the releases.

        Log a warning if the run is too short for a second stage.

        Raises:
            SettingsError: If the task has no `scale`, its images are too small, or `balance` is ``loss``, which would
                give weight 0 to shared images of the classes that a site lacks.
        """
        if server.settings.balance == "loss":
            raise SettingsError(
                "incompatible_settings",
                "balance 'loss' computes class weights from a site's own images. Classes that the site lacks get "
                "weight 0, although shared images are meant for exactly these. Set balance to 'sampling' or 'none'.",
                settings=("method", "balance"),
            )
        super().setup(server)
        server.state.meta["holders"] = []
        if self.share_fraction and server.settings.rounds <= self.distil_rounds:
            logger.warning(
                "The run has %d rounds, and stage 1 can last %d rounds: the sites share nothing unless stage 1 ends "
                "early. Raise 'rounds', or lower 'distil_rounds'.",
                server.settings.rounds,
                self.distil_rounds,
            )
        if self.share_fraction:
            logger.info("%s", " ".join(guarantee_sentences(self.releases())))

    def round_steps(self) -> tuple[RoundStep, ...]:
        """Return all steps that a round can have: ``distil`` (stage 1), ``share`` (once) and ``train`` (stage 2)."""
        return (
            RoundStep("distil", self.distil_requests, self.distil, self.aggregate_distilled),
            RoundStep("share", self.share_requests, self.send_shared, self.aggregate_shared, updates=()),
            RoundStep("train", self.requests, self.train, self.aggregate_updates),
        )

    def remaining_steps(self, server: Server, done: Sequence[ScheduledStep]) -> Sequence[ScheduledStep]:
        """Return the steps of this round that follow the finished steps `done`.

        The steps of a round are ``distil`` until stage 1 has ended, then ``train``, with ``share`` before the first
        ``train``.
        """
        known = server.state.meta
        if "ended" not in known:
            return [ScheduledStep("distil")]
        return (
            [ScheduledStep("share"), ScheduledStep("train")]
            if self.share_fraction and "items" not in known
            else [ScheduledStep("train")]
        )

    def sample_participants(self, server: Server) -> list[str]:
        """Return the names of the sites that take part in this round, drawn by the run's `fraction`."""
        return sample_sites(server.trainable(), server.settings.fraction, server.shared_rng("participation"))

    def distil_requests(self, server: Server) -> list[Request]:
        """Return the requests to train in a round of stage 1, for the participants, with the distiller."""
        tensors = self.distiller(server)
        return [Request(name, "distil", tensors) for name in self.sample_participants(server)]

    def share_requests(self, server: Server) -> list[Request]:
        """Return the requests to share residuals, for all sites with training images, with the final distiller."""
        tensors = self.distiller(server)
        return [Request(name, "share", tensors) for name in server.trainable()]

    def requests(self, server: Server) -> list[Request]:
        """Return the requests to train in a round of stage 2, for the participants, with the model.

        A request also contains the shared set (the shared images of all sites) if its site does not hold it yet.
        """
        model, participants, holders = (
            self.publish(server),
            self.sample_participants(server),
            set(server.state.meta["holders"]),
        )
        if SHARED_PREFIX not in server.state.blobs:
            return [Request(name, "train", model) for name in participants]
        whole = model | server.blob(SHARED_PREFIX) if set(participants) - holders else model
        return [
            Request(name, "train", model, {"holds": True}) if name in holders else Request(name, "train", whole)
            for name in participants
        ]

    def aggregate_updates(self, server: Server, replies: Replies) -> None:
        """Average the models of a round of stage 2, and update the list of sites that hold the shared set."""
        self.average(server, replies)
        holders = {*server.state.meta["holders"], *replies.meta} - set(replies.missing)
        # a site that did not reply may have lost the shared set, and receives it again
        server.state.meta["holders"] = sorted(holders)

    def check_tensors(self, task: Task, request: Request, tensors: Tensors) -> None:
        """Raise if a reply has unexpected tensors.

        Shared images are allowed only in a reply to ``share``. They need the shape of the task's images, and labels of
        its classes.

        Raises:
            RefusedError: If the tensors do not fit the request.
        """
        super().check_tensors(task, request, tensors)
        shared = select(tensors, SHARED_PREFIX)
        if bool(shared) != (request.op == "share"):
            raise RefusedError(
                "unexpected_tensors",
                f"Expected shared images in every reply to 'share' and in no other; got a reply to '{request.op}'.",
                op=request.op,
            )
        if shared:
            check_shared(shared, len(self.releases()), require_scale(task).shape, task.objective.classes)

    def aggregate_distilled(self, server: Server, replies: Replies) -> None:
        """Average the models and distillers of a round of stage 1, and end the stage at its round limit."""
        self.average(server, replies)
        self.average_distillers(server, replies)
        self.check_limit(server)

    def check_limit(self, server: Server) -> None:
        """End stage 1 if `distil_rounds` rounds are done."""
        if server.round >= self.distil_rounds:
            self.end_stage(server, "round limit")

    def end_stage(self, server: Server, why: str) -> None:
        """Record in the server's state that stage 1 has ended, with its number of rounds and the reason `why`."""
        server.state.meta["ended"] = {"rounds": server.round, "ended": why}
        logger.info("Stage 1 ended after round %d (%s).", server.round, why)

    def aggregate_shared(self, server: Server, replies: Replies) -> None:
        """Join the shared images of all sites and store them as a blob in the server's state.

        Store the numbers of images and the generator's errors, too. Log a warning if the generator reconstructs images
        no better than the mean image.
        """
        sent = {name: SharedImages.read(select(tensors, SHARED_PREFIX)) for name, tensors in replies}
        shared = SharedImages.concatenate(sent)
        if len(shared):
            server.keep_blob(SHARED_PREFIX, prefixed(shared.tensors(), SHARED_PREFIX))
        server.state.meta["items"] = {name: len(part) for name, part in sent.items()}
        with_errors = {name: meta for name, meta in replies.meta.items() if meta.keys() >= {*ERROR_KEYS}}
        errors = {name: [float(meta[key]) for key in ERROR_KEYS] for name, meta in with_errors.items()}
        server.state.meta["errors"] = errors
        if warning := poor_generator_warning(errors):
            logger.warning("%s", warning)

    def shared_images(self, participant: Server | Site) -> SharedImages | None:
        """Return the shared set (the shared images of all sites), or None if this participant does not hold it."""
        if SHARED_PREFIX not in participant.state.blobs:
            return None
        return SharedImages.read(select(participant.blob(SHARED_PREFIX), SHARED_PREFIX))

    # ---- a site

    def train(self, site: Site, request: Request) -> Reply:
        """Run a round of stage 2 at a site. Store the shared set first if the request contains it.

        Raises:
            RefusedError: If the server expects the site to hold the shared set and the site does not.
        """
        if received := select(request.tensors, SHARED_PREFIX):
            site.keep_blob(SHARED_PREFIX, prefixed(received, SHARED_PREFIX))
        if request.meta.get("holds") and SHARED_PREFIX not in site.state.blobs:
            raise RefusedError(
                "lost_shared_images",
                f"Site '{site.name}' has lost the shared images. The server sends them again in the site's next round.",
                site=site.name,
            )
        return self.train_task(site, request)

    def train_task(self, site: Site, request: Request) -> Reply:
        """Train the task's network on the site's own images, and on shared images if the site holds them."""
        return super().train(site, request)

    def send_shared(self, site: Site, request: Request) -> Reply:
        """Execute the step ``share``: return the clipped and noised residuals of the site's images, with labels.

        The noise depends on a secret that only the site knows.

        Raises:
            RefusedError: If the site has sent its residuals before. The privacy statement covers a single release.
        """
        if site.state.meta.get("sent"):
            raise RefusedError(
                "repeated_release",
                f"Site '{site.name}' has released parts of its images once and refuses a second release: the privacy "
                "statement covers one release. Start a new run for another release; its epsilon adds to this one.",
                site=site.name,
            )
        site.state.meta["sent"] = True
        part = self.shared_part(site.task, select(request.tensors, DISTILLER_PREFIX))
        rows = stratified_share(labels_of(site.train), self.share_fraction, site.rng("share"))
        whole = torch.cat([part(raw_images(site, some)).cpu() for some in rows.split(256)])
        releases = self.releases()
        stream = site.secret_rng(
            "release", wire.digest({"part": whole}, {"how": [release.meta() for release in releases]})
        )
        copies = tuple(release.apply(whole, stream).half() for release in releases)
        labels = labels_of(site.train)[rows].clone()
        errors = dict(zip(ERROR_KEYS, self.errors(site, request), strict=True))
        return Reply(
            prefixed(SharedImages(copies, labels).tensors(), SHARED_PREFIX), {"size": len(site.train)} | errors
        )

    def errors(self, site: Site, request: Request) -> tuple[float, float]:
        """Return the mean squared errors of the generator and of the site's mean training image.

        Both errors are computed on the site's validation images, or on its training images if it has no validation
        images.
        """
        rows = torch.arange(len(site.train)).split(256)
        mean_image = torch.stack([raw_images(site, some).sum(0) for some in rows]).sum(0) / len(site.train)
        data = site.val if site.val is not None and len(site.val) else site.train
        model = self.load_distiller(site.task, select(request.tensors, DISTILLER_PREFIX))
        return reconstruction_errors(model, data, mean_image, require_scale(site.task), site.settings.batch_size)

    def shared_part(self, task: Task, distiller: Tensors) -> SharedPart:
        """Return a network that maps images in [0, 1] to their shared parts, before clip and noise.

        Args:
            task: Task with the shape and normalisation of the images.
            distiller: Tensors of the distiller.
        """
        return SharedPart(self.load_distiller(task, distiller), self.share)

    def before_fit(self, fit: Fit) -> None:
        """Prepare the training in stage 2: give `loss` batches of shared images if the site holds the shared set."""
        super().before_fit(fit)
        shared = self.shared_images(fit.site)
        if shared is not None:
            balanced = self.shared_sampling == "balanced"
            fit.extra["shared"] = SharedBatches(shared, len(fit.site.train), fit.site.rng("shared"), balanced)

    def training_parts(self, fit: Fit) -> Mapping[str, TrainingPart]:
        """Return the batches of shared images in stage 2, so that a killed training continues with the same ones."""
        shared = {"shared": fit.extra["shared"]} if "shared" in fit.extra else {}
        return {**super().training_parts(fit), **shared}

    def loss(self, fit: Fit, batch: Batch) -> torch.Tensor:
        """Return the task's loss, averaged over the site's own and the shared images of the batch."""
        if "shared" not in fit.extra:
            return fit.task_loss(batch)
        parts, labels = fit.extra["shared"].draw(len(batch.rows))
        device = batch.images.device
        seen = normalise_parts(parts.to(device), self.releases()[0], require_scale(fit.site.task))
        images = torch.cat([batch.images, seen])
        targets = torch.cat([batch.targets, labels.to(device)])
        return fit.site.task.loss(fit.model(images), targets)

    # ---- results

    def released(self, server: Server) -> ReleasedImages | None:
        """Return the data that sites have released until now, for privacy attacks; None before they share."""
        shared = self.shared_images(server)
        if shared is None:
            return None
        owners = tuple(name for name, count in server.state.meta["items"].items() for _ in range(count))
        part = self.shared_part(server.task, select(self.distiller(server), DISTILLER_PREFIX))
        return ReleasedImages(shared.copies, shared.labels, owners, part, tuple(self.releases()))

    def findings(self, server: Server) -> Findings:
        """Return the findings (report data) of a run: end of stage 1, shared images and their privacy statement."""
        return sharing_findings(server, self.shared_images(server), self.releases())


def raw_images(site: Site, rows: torch.Tensor) -> torch.Tensor:
    """Return the training images of a site in the n given rows, scaled to [0, 1], (n, C, *spatial), on the device."""
    return require_scale(site.task).to_images(site.train.batch(rows)[0].to(site.task.device))
