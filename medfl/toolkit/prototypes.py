"""Prototypes: what a network's body makes of the images of a class, on average; and methods that share nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import nn

from medfl.contract import Model, Need, PayloadKind, ReducesTo, Replies, Reply, Request, Server, Site
from medfl.errors import RefusedError, SettingsError
from medfl.networks.parts import body_and_head, features_and_logits, features_of, single_linear
from medfl.task import Task
from medfl.toolkit.aggregation import normalised
from medfl.toolkit.fit import Fit
from medfl.toolkit.kept import kept
from medfl.toolkit.personal import Personal
from medfl.training.loop import Batch
from medfl.training.predict import EVALUATION_BATCH
from medfl.types import Dataset, Meta, Tensors
from medfl.utils.wire import prefixed, select

PROTO = "proto/"
"""What the names of prototypes begin with, in messages and where they are kept; then the number of the class."""


@torch.no_grad()
def prototypes(model: nn.Module, data: Dataset, classes: int, batch_size: int, device: str) -> torch.Tensor:
    """Mean features of the images of each class.

    Args:
        model: Has a body that gives features (B, d); put into evaluation mode.
        data: At least one image.
        classes: Number of classes of the task.
        batch_size: Images at a time.
        device: Where the model is.

    Returns:
        (classes, d), float32, on the device; NaN for a class without images, so nobody can take it for a prototype.
    """
    body = body_and_head(model.eval())[0]
    sums = torch.zeros(0, device=device)
    counts = torch.zeros(classes, dtype=torch.float64, device=device)
    for rows in torch.arange(len(data)).split(batch_size):
        images, labels = data.batch(rows)
        features, labels = body(images.to(device)).flatten(1).double(), labels.to(device)
        sums = sums if sums.numel() else features.new_zeros(classes, features.shape[1])
        sums.index_add_(0, labels, features)
        counts += torch.bincount(labels, minlength=classes)
    return (sums / torch.where(counts > 0, counts, math.nan)[:, None]).float()


def mean_prototypes(sent: Mapping[str, Tensors], weight: Callable[[str, str], float]) -> Tensors:
    """The weighted mean prototype of each class over the sites that sent one.

    Args:
        sent: Site to prototypes (d,) by the number of their class.
        weight: Of a site, for a class; where all are 0 sites weigh alike.

    Returns:
        By the number of the class, float32.
    """
    means = Tensors()
    for label in sorted({label for own in sent.values() for label in own}):
        owners = {site: own[label].double() for site, own in sorted(sent.items()) if label in own}
        shares = normalised({site: float(weight(site, label)) for site in owners}, {site: {} for site in owners})
        means[label] = torch.stack([shares[site] * mean for site, mean in owners.items()]).sum(0).float()
    return means


def table(prototypes: Mapping[str, torch.Tensor], classes: int, device: str) -> torch.Tensor | None:
    """Prototypes by the number of their class as one (classes, d), NaN where a class has none; None without any."""
    if not prototypes:
        return None
    rows = torch.full((classes, len(next(iter(prototypes.values())))), math.nan)
    for label, prototype in prototypes.items():
        rows[int(label)] = prototype
    return rows.to(device)


def pull(features: torch.Tensor, prototypes: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean over a batch of the squared distance of each image's features to the prototype of its class.

    Args:
        features: (B, d).
        prototypes: (classes, d); an image of a class with NaN counts as 0.
        labels: (B,).
    """
    aims = prototypes[labels]
    return (features - torch.where(aims.isnan(), features.detach(), aims)).square().sum(1).mean()


ABSENT = -1e30
"""The logit of a class without a prototype."""


def nearest(prototypes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The linear layer whose logits are -||f - P_c||^2 / d of features f, up to a number that all classes share.

    Args:
        prototypes: (classes, d), NaN for a class without one, which is never chosen.

    Returns:
        Weight (classes, d) and bias (classes,).
    """
    absent, features = prototypes.isnan().any(1), prototypes.shape[1]
    present = torch.where(absent[:, None], 0.0, prototypes)
    return 2 * present / features, torch.where(absent, ABSENT, -present.square().sum(1) / features)


def scaled(prototypes: torch.Tensor) -> torch.Tensor:
    """Prototypes (classes, d) of norm sqrt(d), that of a standard normal vector; zeros stay zeros."""
    norms = torch.linalg.vector_norm(prototypes, dim=1, keepdim=True)
    return torch.where(norms == 0, prototypes, prototypes * math.sqrt(prototypes.shape[1]) / norms)


def distance(latent: torch.Tensor, prototypes: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean over a batch of the squared distance of each latent vector to the prototype of its class.

    Args:
        latent: (B, d).
        prototypes: (classes, d); those of the labels are present.
        labels: (B,).

    Source: FedTPF, equation 6.
    """
    return (latent - prototypes[labels]).square().sum(1).mean()


class PrototypeSharing(Personal):
    """The base of methods in which sites have models of their own and share the mean features of each class.

    A child gives `take_in`, and may change `scale` and `tells`.

    Attributes:
        lam: Weight of the distance to prototypes, >= 0.
        inference: ``head`` scores the site's own head; ``prototype`` chooses the nearest common prototype.
    """

    sends: ClassVar[Mapping[str, PayloadKind]] = {PROTO: "statistic"}
    needs: ClassVar[frozenset[Need]] = frozenset({"class_labels", "linear_head"})
    reduces_to: ClassVar[tuple[ReducesTo, ...]] = (ReducesTo("local", {"lam": 0.0}),)

    lam: float = Field(1.0, ge=0, allow_inf_nan=False)
    inference: Literal["head", "prototype"] = "head"

    @property
    def active_needs(self) -> frozenset[Need]:
        """The nearest prototype is chosen where there is a logit for each class."""
        return self.needs | {"class_logits"} if self.inference == "prototype" else self.needs

    # ---- what a method overrides

    def take_in(self, server: Server, sent: Mapping[str, Tensors], metas: Mapping[str, Meta]) -> None:
        """Make common prototypes of those of sites.

        Args:
            server: Keeps them.
            sent: Site to prototypes (d,) by the number of their class.
            metas: What the sites told.
        """
        raise NotImplementedError

    def scale(self, features: int) -> float:
        """What the squared distance to a prototype is multiplied by, beside `lam`; by default 1/d."""
        return 1 / features

    def tells(self, site: Site) -> Meta:
        """What goes beside a site's prototypes."""
        return {}

    # ---- the server

    def setup(self, server: Server) -> None:
        """No prototypes yet.

        Raises:
            SettingsError: If bodies give unlike numbers of features, or a head can't choose the nearest prototype.
        """
        features = {network: features_of(server.task.build(network), network) for network in server.networks()}
        if len(set(features.values())) > 1:
            raise SettingsError(
                "unlike_feature_counts",
                f"Prototypes are means of features: expected as many features of all networks, got {features}. Choose "
                "networks whose bodies agree in that.",
                counts=features,
            )
        server.state.meta["features"] = next(iter(features.values()))
        if self.inference == "prototype":
            for network in features:
                single_linear(server.task.build(network), network, "The nearest prototype is chosen by a linear head")

    def requests(self, server: Server) -> list[Request]:
        """With the common prototypes."""
        requests, meta = super().requests(server), {"features": server.state.meta["features"]}
        return [Request(request.to, request.op, request.tensors, meta) for request in requests]

    def publish(self, server: Server) -> Tensors:
        """The common prototypes."""
        return prefixed(kept(server, PROTO), PROTO)

    def check_tensors(self, task: Task, request: Request, tensors: Tensors) -> None:
        """A vector of as many numbers as there are features, for some of the classes."""
        known, shape = {f"{PROTO}{label}" for label in range(task.objective.classes)}, (request.meta["features"],)
        for name, tensor in tensors.items():
            if name not in known or tensor.shape != shape or tensor.dtype is not torch.float32:
                raise RefusedError(
                    "wrong_tensor",
                    f"A prototype {ascii(name)[:60]} was refused: expected float32 {list(shape)} for a class below "
                    f"{task.objective.classes}, got {tensor.dtype} {list(tensor.shape)}.",
                    tensor=ascii(name)[:60],
                    expected=f"torch.float32 {list(shape)}",
                    found=f"{tensor.dtype} {list(tensor.shape)}",
                )

    def aggregate_updates(self, server: Server, replies: Replies) -> None:
        """The mean over the sites that own a class."""
        self.take_in(server, {site: select(tensors, PROTO) for site, tensors in replies}, replies.meta)

    # ---- a site

    def train(self, site: Site, request: Request) -> Reply:
        """Train the own model and keep it; reply with the prototypes of its classes."""
        classes, device, received = site.task.objective.classes, site.task.device, select(request.tensors, PROTO)
        aims = table(received, classes, device)
        done, site.state.tensors = self.go_on(site, self.own(site), {"prototypes": aims})
        model = site.task.load(done.after, site.network)
        means = prototypes(model, site.train, classes, EVALUATION_BATCH, device).cpu()
        own = {f"{PROTO}{label}": mean for label, mean in enumerate(means) if bool(mean.isfinite().all())}
        return Reply(own, self.tells(site), log=done.log, trained={"personal": self.scored(site, done.after, received)})

    def loss(self, fit: Fit, batch: Batch) -> torch.Tensor:
        """The task's loss plus lam times the distance to the prototypes."""
        aims, task = fit.extra["prototypes"], fit.site.task
        if aims is None or self.lam == 0:
            return super().loss(fit, batch)
        features, logits = features_and_logits(fit.model, batch.images)
        labels: torch.Tensor = task.objective.class_labels(batch.targets)  # type: ignore[assignment]
        return task.loss(logits, batch.targets) + self.lam * self.scale(aims.shape[1]) * pull(features, aims, labels)

    def models(self, participant: Server | Site) -> dict[str, Model]:
        """A personal model at each site."""
        if isinstance(participant, Server):
            return {}
        return {"personal": self.scored(participant, self.own(participant), select(participant.published, PROTO))}

    def scored(self, site: Site, tensors: Tensors, received: Tensors) -> Model:
        """The own model; if the nearest prototype is chosen, and there are any, with a head that does so."""
        aims = table(received, site.task.objective.classes, "cpu")
        if self.inference == "head" or aims is None:
            return Model(site.network, tensors)
        path = single_linear(site.task.build(site.network), site.network, "The nearest prototype is chosen")[1]
        weight, bias = nearest(aims)
        return Model(site.network, tensors | {f"{path}weight": weight, f"{path}bias": bias})
