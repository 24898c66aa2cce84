"""DBE (domain bias eliminator): each site adds a personal offset to the features of the global model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, cast

import torch
from pydantic import Field
from torch import nn

from medfl.contract import Model, Need, PayloadKind, ReducesTo, Replies, Reply, Request, Server, Site
from medfl.errors import RefusedError
from medfl.networks.parts import body_and_head, feature_count, features_and_logits, head_prefix, replace_head
from medfl.task import Task
from medfl.toolkit.aggregation import mean_update, normalised_weights
from medfl.toolkit.fit import Fit
from medfl.toolkit.participant_state import auxiliary_state, set_auxiliary_state
from medfl.toolkit.rounds import RoundStep, ScheduledStep
from medfl.toolkit.training_specs import Training
from medfl.training.loop import Batch
from medfl.types import MODEL_PREFIX, Meta, Tensors
from medfl.utils.wire import prefixed, select
from medfl_methods.fedavg import FedAvg

MEAN_PREFIX = "mean/"
"""Prefix of the mean features in messages and in the server's state."""

FEATURES = "features"
"""Name of the tensor with mean features (after `MEAN_PREFIX`), and key of the number of features in a request's
metadata."""

MEASURE_STEP = "measure"
"""Name of the first step of a run, which measures mean features, and label of its training."""


class ShiftedHead(nn.Module):
    """Head that adds a trainable offset to the features.

    Args:
        head: Layer or module that maps features (B, d) to outputs.
        features: Number of features d.

    Attributes:
        offset: Offset of the features, shape (d,), initially 0.
        head: The original head.
    """

    def __init__(self, head: nn.Module, features: int) -> None:
        super().__init__()
        self.offset, self.head = nn.Parameter(torch.zeros(features)), head

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return the outputs for features (B, d)."""
        return cast("torch.Tensor", self.head(features.flatten(1) + self.offset))


class DBE(FedAvg):
    """Domain bias eliminator (DBE): FedAvg with a personal offset of the features and a regulariser of their mean.

    Between body and head, site k adds a trainable vector b_k to the features f, so the head computes h(f + b_k). b_k
    starts at 0 and never leaves the site. It represents the site's domain bias, so that the features of the global
    model need not. There is no global model, unless ``offset = false``.

    Before the first round, all sites train once from the initial model, without b_k and without the regulariser, and
    send their mean features. The server stores z, the mean of these weighted by size, for the whole run. The models of
    this training are discarded.

    Update rule:
        A site minimises its loss F plus the squared distance of its mean features r to z, averaged over the d features:

            F(w, b_k) + kappa (1 / (2 d)) ||r - z||^2

        r is a running mean over the batches of a round that starts at 0. The gradient flows through the current batch
        only:

            r <- (1 - mu) r + mu mean(f of the batch)

        With ``correct = true``, r is divided by 1 - (1 - mu)^B after B batches. Without this correction, r is too small
        after few batches. The correction is an addition of medfl; the released code does not have it.

    When to use it: When images differ between sites such that the features are shifted, and each hospital needs a model
    for its own patients. Computation is hardly more than with `fedavg`.

    Limits: Mean features leave the sites, so a run with a privacy setting refuses this method, even with ``kappa = 0``.

    Limit cases: With ``kappa = 0`` alone, sites send updates only and still train b_k.

    Attributes:
        kappa: Weight of the distance to the mean features, >= 0. The preset ``paper`` has kappa = 50 and mu = 1, as
            summaries of the paper state; the released code has 0 and 0.1.
        mu: Weight of a batch in the running mean, in (0, 1].
        correct: Whether the running mean is corrected for its start at 0.
        offset: Whether sites have offsets b_k.

    Source: Zhang, Hua, Cao, Wang, Song, Xue, Ma, Guan, NeurIPS 2023, equations 4 to 7 and Algorithm 1.
    """

    name = "dbe"
    family = "personal"
    paper = "Zhang et al., NeurIPS 2023"
    summary = "FedAvg in which each site adds a personal trainable offset to the features of the global model"
    supports = frozenset()

    sends: ClassVar[Mapping[str, PayloadKind]] = {MODEL_PREFIX: "update", MEAN_PREFIX: "statistic"}
    """Mapping from each name prefix of sent tensors to the kind of these tensors."""
    needs: ClassVar[frozenset[Need]] = frozenset({"linear_head"})
    """Requirements that the task or the run must meet, otherwise the run is refused before it starts."""
    presets: ClassVar[Mapping[str, Meta]] = {"paper": {"kappa": 50.0, "mu": 1.0}, "medfl": {}}
    reduces_to: ClassVar[tuple[ReducesTo, ...]] = (ReducesTo("fedavg", {"kappa": 0.0, "offset": False}),)

    kappa: float = Field(1.0, ge=0, allow_inf_nan=False)
    mu: float = Field(0.1, gt=0, le=1)
    correct: bool = True
    offset: bool = True

    # ---- networks

    def task_of(self, task: Task) -> Task:
        """Return the task with the method's networks: with a `ShiftedHead`, or unchanged without `offset`."""
        for name in task.networks if self.offset else ():
            task = task.with_network(name, partial(build_with_shifted_head, partial(task.build, name), name))
        return task

    def network_config(self, model: Model, network_def: Any) -> Any:
        """Return the MONAI configuration of the network in an exported bundle, with a `ShiftedHead`."""
        config = {"_target_": f"{__name__}.with_shifted_head", "network": network_def, "name": model.network}
        return config if self.offset else network_def

    def shared_names(self, model: nn.Module, norm_sync: str) -> list[str]:
        """Return the state-dict names of the tensors that sites and server exchange: all shared ones but the offset."""
        own = head_prefix(model, type(model).__name__) + "offset" if self.offset else ""
        return [name for name in super().shared_names(model, norm_sync) if name != own]

    # ---- the server

    def round_steps(self) -> tuple[RoundStep, ...]:
        """Return the steps that a round may contain: the measurement of mean features, and the step of FedAvg."""
        return RoundStep(
            MEASURE_STEP, self.measure_requests, self.measure, self.aggregate_means, updates=()
        ), *super().round_steps()

    def remaining_steps(self, server: Server, done: Sequence[ScheduledStep]) -> Sequence[ScheduledStep]:
        """Return the remaining steps of the round; mean features are measured until the server has stored them."""
        measures = self.kappa > 0 and not done and not auxiliary_state(server, MEAN_PREFIX)
        return [ScheduledStep(MEASURE_STEP), ScheduledStep("fit")] if measures else [ScheduledStep("fit")]

    def measure_requests(self, server: Server) -> list[Request]:
        """Return requests for mean features to all sites, with the initial model."""
        tensors, task = self.publish(server), server.task
        meta = {FEATURES: feature_count(task.build(), task.network)}
        return [Request(name, MEASURE_STEP, tensors, meta) for name in server.trainable()]

    def aggregate_means(self, server: Server, replies: Replies) -> None:
        """Store the weighted mean of the sites' mean features in the server's state."""
        metas = {site: replies.meta[site] for site, tensors in replies if tensors}
        if metas:
            mean = mean_update(replies, normalised_weights(self.weights_of(server, metas), metas), MEAN_PREFIX)
            set_auxiliary_state(server, MEAN_PREFIX, {name: tensor.float() for name, tensor in mean.items()})

    def extra_request_tensors(self, server: Server) -> Tensors:
        """Return the tensors of each request besides the model: the mean features of all sites."""
        return prefixed(auxiliary_state(server, MEAN_PREFIX), MEAN_PREFIX)

    def check_tensors(self, task: Task, request: Request, tensors: Tensors) -> None:
        """Raise RefusedError unless a reply has the expected updates or mean features.

        A reply to the step that measures features contains mean features of the requested number, or nothing if the
        site had no batches. Any other reply contains updates of the request's tensors.
        """
        super().check_tensors(task, request, tensors)
        shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items() if not name.startswith(MODEL_PREFIX)}
        floats = all(tensors[name].is_floating_point() for name in shapes)
        expected = {MEAN_PREFIX + FEATURES: (request.meta[FEATURES],)} if request.op == MEASURE_STEP and tensors else {}
        if shapes != expected or not floats or (expected and len(tensors) > 1):
            raise RefusedError(
                "unexpected_tensors",
                f"Expected mean features in a reply to '{MEASURE_STEP}' and only updates in other replies, got "
                f"{len(shapes)} other tensors. The site needs the same network and version of medfl.",
                op=request.op,
                count=len(shapes),
            )

    # ---- a site

    def measure(self, site: Site, request: Request) -> Reply:
        """Train without offset and regulariser, and reply with the running mean of the features alone."""
        start, training = self.full_state(site, select(request.tensors, MODEL_PREFIX)), Training(MEASURE_STEP)
        done = self.fit(site, start, training=training, sent=request.tensors, leaves=True)
        return Reply(done.extra, {"size": len(site.train)}, log=training.log(done.log))

    def before_fit(self, fit: Fit) -> None:
        """Freeze the offset while mean features are measured."""
        if self.offset and fit.training.label == MEASURE_STEP:
            cast("ShiftedHead", body_and_head(fit.model)[1]).offset.requires_grad_(False)

    def loss(self, fit: Fit, batch: Batch) -> torch.Tensor:
        """Return the task's loss plus the regulariser, and update the running mean of the features."""
        if self.kappa == 0:
            return fit.task_loss(batch)
        features, logits = features_and_logits(fit.model, batch.images)
        loss: torch.Tensor = fit.site.task.loss(logits, batch.targets)
        mean = running_mean(fit.extra.get("mean"), features.float(), self.mu)
        fit.extra["mean"] = mean.detach()
        if MEAN_PREFIX + FEATURES not in fit.received:
            return loss
        scale = bias_correction(self.mu, fit.steps + 1) if self.correct else 1.0
        return loss + self.kappa * 0.5 * (scale * mean - fit.received[MEAN_PREFIX + FEATURES]).square().mean()

    def can_continue(self, fit: Fit) -> bool:
        """Return True if the training has no running mean of the features."""
        return self.kappa == 0

    def extra_reply_tensors(self, fit: Fit) -> Tensors:
        """Return the tensors for the server besides the update: mean features in the measuring step, otherwise none."""
        if fit.training.label != MEASURE_STEP:
            return {}
        return {
            MEAN_PREFIX + FEATURES: fit.extra["mean"] * (bias_correction(self.mu, fit.steps) if self.correct else 1.0)
        }


def running_mean(last: torch.Tensor | None, features: torch.Tensor, mu: float) -> torch.Tensor:
    """Update a running mean of features: return (1 - mu) last + mu mean(features), shape (d,).

    Args:
        last: Running mean of the previous batches, shape (d,); None counts as 0.
        features: Features of a batch, shape (B, d).
        mu: Weight of the batch, in (0, 1].
    """
    mean = mu * features.mean(dim=0)
    return mean if last is None else (1 - mu) * last + mean


def bias_correction(mu: float, batches: int) -> float:
    """Return the factor that corrects a running mean for its start at 0: 1 / (1 - (1 - mu)^B) after B batches."""
    return 1 / (1 - (1 - mu) ** batches)


def with_shifted_head(network: nn.Module, name: str = "") -> nn.Module:
    """Return a network with a `ShiftedHead` in place of its head.

    Args:
        network: Network that computes head(body(images)).
        name: Name of the network, for error messages.
    """
    features = feature_count(network, name)
    return replace_head(network, ShiftedHead(body_and_head(network)[1], features))


def build_with_shifted_head(build: Callable[[], nn.Module], name: str) -> nn.Module:
    """Build a network with a `ShiftedHead`.

    Args:
        build: Function that builds the network.
        name: Name of the network, for error messages.
    """
    return with_shifted_head(build(), name)
