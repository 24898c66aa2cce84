"""DBE."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, cast

import torch
from pydantic import Field
from torch import nn

from medfl.contract import Model, Need, PayloadKind, ReducesTo, Replies, Reply, Request, Server, Site
from medfl.errors import RefusedError
from medfl.networks.parts import body_and_head, features_and_logits, features_of, head_path, with_head
from medfl.task import Task
from medfl.toolkit.aggregation import mean_update, normalised
from medfl.toolkit.fit import Fit
from medfl.toolkit.kept import keep, kept
from medfl.toolkit.rounds import Due, Step
from medfl.toolkit.trainings import Training
from medfl.training.loop import Batch
from medfl.types import MODEL, Meta, Tensors
from medfl.utils.wire import prefixed, select
from medfl_methods.fedavg import FedAvg

MEAN, FEATURES = "mean/", "features"
"""What the name of mean features begins with, and the rest of it."""

MEASURE = "measure"
"""The first step of a run, and the label of its training."""


class ShiftedHead(nn.Module):
    """A head on features that are shifted by a vector.

    Args:
        head: Maps features (B, d) to outputs.
        features: d.

    Attributes:
        offset: The vector, (d,), at first 0.
    """

    def __init__(self, head: nn.Module, features: int) -> None:
        super().__init__()
        self.offset, self.head = nn.Parameter(torch.zeros(features)), head

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Outputs of features (B, d)."""
        return cast("torch.Tensor", self.head(features.flatten(1) + self.offset))


class DBE(FedAvg):
    """FedAvg of networks whose features each site shifts by a vector of its own: domain bias eliminator.

    Between body and head a site adds a vector b_k to the features f, which is 0 at first, is trained with the network,
    and never leaves the site; so h(f + b_k) has what is peculiar to the site, and f need not. A site minimises its loss
    plus kappa times the mean over features of (1/2) (r - z)^2, where z are the mean features of all sites and r the
    site's own, a running mean over the batches of a round: r <- (1 - mu) r + mu (mean of the batch), from 0. The
    gradient goes through the batch alone. With `correct` r is divided by 1 - (1 - mu)^B after B batches, without which
    it is too small where they are few (ours; the released code does not).

    z is found before the first round: all sites train once, plainly, from the first model and without b_k, and send r.
    z is the mean of these, weighted by size, and stays; what they trained is thrown away.

    With ``kappa = 0`` and ``offset = False`` this is `fedavg`. With ``kappa = 0`` alone only updates are sent, and
    sites still have b_k. There is no global model, unless there are no b_k.

    When to use it: When images look unlike from site to site, so that features differ by a shift, and each hospital
    wants a model for its own patients. It costs hardly more than FedAvg. As mean features leave the sites, a run with a
    privacy setting refuses this method, whatever its kappa.

    Attributes:
        kappa: Weight of the distance to the mean features, >= 0. The preset ``paper`` has 50, with mu = 1, as summaries
            of the paper say; the released code has 0 and 0.1.
        mu: Weight of a batch in the running mean, in (0, 1].
        correct: Whether the running mean is corrected for having begun at 0.
        offset: Whether sites have vectors b_k.

    Source: Zhang, Hua, Cao, Wang, Song, Xue, Ma, Guan, NeurIPS 2023, equations 4 to 7 and Algorithm 1.
    """

    name = "dbe"
    family = "personal"
    paper = "Zhang et al., NeurIPS 2023"
    summary = "a common model whose features each site shifts by a vector of its own"
    supports = frozenset()

    sends: ClassVar[Mapping[str, PayloadKind]] = {MODEL: "update", MEAN: "statistic"}
    needs: ClassVar[frozenset[Need]] = frozenset({"linear_head"})
    presets: ClassVar[Mapping[str, Meta]] = {"paper": {"kappa": 50.0, "mu": 1.0}, "medfl": {}}
    reduces_to: ClassVar[tuple[ReducesTo, ...]] = (ReducesTo("fedavg", {"kappa": 0.0, "offset": False}),)

    kappa: float = Field(1.0, ge=0, allow_inf_nan=False)
    mu: float = Field(0.1, gt=0, le=1)
    correct: bool = True
    offset: bool = True

    # ---- networks

    def task_of(self, task: Task) -> Task:
        """The run's networks with a shifted head."""
        for name in task.networks if self.offset else ():
            task = task.with_network(name, partial(built, partial(task.build, name), name))
        return task

    def network_config(self, model: Model, network_def: Any) -> Any:
        """The network with a shifted head."""
        config = {"_target_": f"{__name__}.shifted", "network": network_def, "name": model.network}
        return config if self.offset else network_def

    def shared(self, model: nn.Module, norm_sync: str) -> list[str]:
        """All but the vector."""
        own = head_path(model, type(model).__name__) + "offset" if self.offset else ""
        return [name for name in super().shared(model, norm_sync) if name != own]

    # ---- the server

    def round_steps(self) -> tuple[Step, ...]:
        """That of FedAvg; before it sites measure their mean features."""
        return Step(
            MEASURE, self.measure_requests, self.measure, self.aggregate_means, updates=()
        ), *super().round_steps()

    def schedule(self, server: Server, done: Sequence[Due]) -> Sequence[Due]:
        """Mean features are measured until there are some."""
        measures = self.kappa > 0 and not done and not kept(server, MEAN)
        return [Due(MEASURE), Due("fit")] if measures else [Due("fit")]

    def measure_requests(self, server: Server) -> list[Request]:
        """To all sites, with the first model."""
        tensors, task = self.publish(server), server.task
        meta = {FEATURES: features_of(task.build(), task.network)}
        return [Request(name, MEASURE, tensors, meta) for name in server.trainable()]

    def aggregate_means(self, server: Server, replies: Replies) -> None:
        """The mean of the sites' mean features."""
        metas = {site: replies.meta[site] for site, tensors in replies if tensors}
        if metas:
            mean = mean_update(replies, normalised(self.weights_of(server, metas), metas), MEAN)
            keep(server, MEAN, {name: tensor.float() for name, tensor in mean.items()})

    def extra_down(self, server: Server) -> Tensors:
        """The mean features of all sites."""
        return prefixed(kept(server, MEAN), MEAN)

    def check_tensors(self, task: Task, request: Request, tensors: Tensors) -> None:
        """Updates of the order's tensors; or mean features, if there were batches to take the mean of."""
        super().check_tensors(task, request, tensors)
        shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items() if not name.startswith(MODEL)}
        floats = all(tensors[name].is_floating_point() for name in shapes)
        expected = {MEAN + FEATURES: (request.meta[FEATURES],)} if request.op == MEASURE and tensors else {}
        if shapes != expected or not floats or (expected and len(tensors) > 1):
            raise RefusedError(
                "unexpected_tensors",
                f"Expected mean features in a reply to '{MEASURE}' and nothing beside updates in others, got "
                f"{len(shapes)} other tensors. The site needs the same network and version of medfl.",
                op=request.op,
                count=len(shapes),
            )

    # ---- a site

    def measure(self, site: Site, request: Request) -> Reply:
        """Train plainly, and reply with the running mean of features alone."""
        start, training = self.full_state(site, select(request.tensors, MODEL)), Training(MEASURE)
        done = self.fit(site, start, training=training, sent=request.tensors, leaves=True)
        return Reply(done.extra, {"size": len(site.train)}, log=training.log(done.log))

    def before_fit(self, fit: Fit) -> None:
        """While features are measured the vector stays as it is."""
        if self.offset and fit.training.label == MEASURE:
            cast("ShiftedHead", body_and_head(fit.model)[1]).offset.requires_grad_(False)

    def loss(self, fit: Fit, batch: Batch) -> torch.Tensor:
        """The task's loss plus kappa times the distance of the running mean to that of all sites."""
        if self.kappa == 0:
            return super().loss(fit, batch)
        features, logits = features_and_logits(fit.model, batch.images)
        loss: torch.Tensor = fit.site.task.loss(logits, batch.targets)
        mean = running(fit.extra.get("mean"), features.float(), self.mu)
        fit.extra["mean"] = mean.detach()
        if MEAN + FEATURES not in fit.received:
            return loss
        scale = corrected(self.mu, fit.steps + 1) if self.correct else 1.0
        return loss + self.kappa * 0.5 * (scale * mean - fit.received[MEAN + FEATURES]).square().mean()

    def extra_up(self, fit: Fit) -> Tensors:
        """The mean features, where they are measured."""
        if fit.training.label != MEASURE:
            return {}
        return {MEAN + FEATURES: fit.extra["mean"] * (corrected(self.mu, fit.steps) if self.correct else 1.0)}


def running(last: torch.Tensor | None, features: torch.Tensor, mu: float) -> torch.Tensor:
    """(1 - mu) last + mu (mean of features (B, d)), (d,); None counts as 0."""
    mean = mu * features.mean(dim=0)
    return mean if last is None else (1 - mu) * last + mean


def corrected(mu: float, batches: int) -> float:
    """1 / (1 - (1 - mu)^B), by which a running mean of B batches that began at 0 is too small."""
    return 1 / (1 - (1 - mu) ** batches)


def shifted(network: nn.Module, name: str = "") -> nn.Module:
    """A network with its head shifted.

    Args:
        network: Is head(body(images)).
        name: Of the network, for messages.
    """
    features = features_of(network, name)
    return with_head(network, ShiftedHead(body_and_head(network)[1], features))


def built(build: Callable[[], nn.Module], name: str) -> nn.Module:
    """A new network with its head shifted."""
    return shifted(build(), name)
