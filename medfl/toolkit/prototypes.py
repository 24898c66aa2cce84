"""Prototypes (mean features of a class's images), and the base class of methods in which sites share only these.

B is the number of images of a batch, and d the number of features.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import nn

from medfl.contract import Model, Need, PayloadKind, ReducesTo, Replies, Reply, Request, Server, Site
from medfl.errors import RefusedError, SettingsError
from medfl.networks.parts import body_and_head, feature_count, features_and_logits, single_linear
from medfl.task import Task
from medfl.toolkit.aggregation import normalised_weights
from medfl.toolkit.fit import Fit
from medfl.toolkit.participant_state import auxiliary_state
from medfl.toolkit.personal import PersonalModels
from medfl.training.loop import Batch
from medfl.training.predict import EVALUATION_BATCH
from medfl.types import Dataset, Meta, Tensors
from medfl.utils.wire import prefixed, select

PROTOTYPE_PREFIX = "proto/"
"""Prefix of prototypes in messages and in the state; the number of the class follows."""


@torch.no_grad()
def prototypes(model: nn.Module, data: Dataset, classes: int, batch_size: int, device: str) -> torch.Tensor:
    """Compute the mean features of the images of each class.

    Args:
        model: Model whose body returns features (B, d); this function puts it into evaluation mode.
        data: Data set with at least one image.
        classes: Number of classes of the task.
        batch_size: Number of images per forward pass.
        device: Device of the model.

    Returns:
        Prototypes (classes, d), float32, on the device; NaN for a class without images.
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
    """Compute the weighted mean prototype of each class over the sites that sent one.

    Args:
        sent: Mapping from each site to its prototypes (d,) by class number.
        weight: Function of a site and a class that returns the weight. If all weights are 0, sites are weighted
            equally.

    Returns:
        Mapping from each class number to the mean, float32.
    """
    means = Tensors()
    for label in sorted({label for own in sent.values() for label in own}):
        owners = {site: own[label].double() for site, own in sorted(sent.items()) if label in own}
        shares = normalised_weights(
            {site: float(weight(site, label)) for site in owners}, {site: {} for site in owners}
        )
        means[label] = torch.stack([shares[site] * mean for site, mean in owners.items()]).sum(0).float()
    return means


def prototype_table(prototypes: Mapping[str, torch.Tensor], classes: int, device: str) -> torch.Tensor | None:
    """Stack prototypes by class number into (classes, d), with NaN for a missing class.

    Return None for an empty mapping.
    """
    if not prototypes:
        return None
    rows = torch.full((classes, len(next(iter(prototypes.values())))), math.nan)
    for label, prototype in prototypes.items():
        rows[int(label)] = prototype
    return rows.to(device)


def prototype_distance(features: torch.Tensor, prototypes: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Compute a batch's mean squared distance between each image's features and the prototype of its class.

    Args:
        features: Features (B, d).
        prototypes: Prototypes (classes, d); an image whose prototype is NaN contributes 0.
        labels: Class numbers (B,).
    """
    aims = prototypes[labels]
    return (features - torch.where(aims.isnan(), features.detach(), aims)).square().sum(1).mean()


ABSENT_CLASS_LOGIT = -1e30
"""Logit of a class without a prototype, so that the class is never predicted."""


def nearest_prototype_layer(prototypes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the linear layer that classifies features f by the nearest prototype.

    The logit of class c is -||f - P_c||^2 / d, with its prototype P_c, plus a term that is the same for all classes.

    Args:
        prototypes: Prototypes (classes, d); NaN for a class without one, which is never predicted.

    Returns:
        Weight (classes, d) and bias (classes,).
    """
    absent, features = prototypes.isnan().any(1), prototypes.shape[1]
    present = torch.where(absent[:, None], 0.0, prototypes)
    return 2 * present / features, torch.where(absent, ABSENT_CLASS_LOGIT, -present.square().sum(1) / features)


def scale_prototypes(prototypes: torch.Tensor) -> torch.Tensor:
    """Scale prototypes (classes, d) to norm sqrt(d), about the norm of a standard normal vector of d entries.

    An autoencoder's KL term pulls its latent vectors to a standard normal distribution, so that scaled prototypes are
    reachable targets for them. Zero vectors stay zero.
    """
    norms = torch.linalg.vector_norm(prototypes, dim=1, keepdim=True)
    return torch.where(norms == 0, prototypes, prototypes * math.sqrt(prototypes.shape[1]) / norms)


def latent_distance(latent: torch.Tensor, prototypes: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Compute a batch's mean squared distance between each latent vector and the prototype of its class.

    Args:
        latent: Latent vectors (B, d): means or samples of a variational autoencoder's encoder, one for each image.
        prototypes: Prototypes (classes, d), with one for each label.
        labels: Class numbers (B,).

    Source: FedTPF, equation 6.
    """
    return (latent - prototypes[labels]).square().sum(1).mean()


class PrototypeSharing(PersonalModels):
    """Base class of methods in which sites have personal models and share the mean features of each class.

    A subclass implements `update_prototypes`, and may override `scale` and `reply_metadata`.

    Attributes:
        lam: Weight of the distance to the prototypes in the loss, >= 0.
        inference: ``head`` evaluates the site's own head; ``prototype`` predicts the class of the nearest common
            prototype.
    """

    sends: ClassVar[Mapping[str, PayloadKind]] = {PROTOTYPE_PREFIX: "statistic"}
    """Mapping from each name prefix of sent tensors to the kind of these tensors."""
    needs: ClassVar[frozenset[Need]] = frozenset({"class_labels", "linear_head"})
    """Requirements that the task must meet: class labels, and networks with a head on features."""
    reduces_to: ClassVar[tuple[ReducesTo, ...]] = (ReducesTo("local", {"lam": 0.0}),)
    """Limit cases in which the method equals another one."""

    lam: float = Field(1.0, ge=0, allow_inf_nan=False)
    inference: Literal["head", "prototype"] = "head"

    @property
    def active_needs(self) -> frozenset[Need]:
        """Requirements with the current settings; inference by prototypes also needs a logit for each class."""
        return self.needs | {"class_logits"} if self.inference == "prototype" else self.needs

    # ---- methods to override

    def update_prototypes(self, server: Server, sent: Mapping[str, Tensors], metas: Mapping[str, Meta]) -> None:
        """Compute common prototypes from the sites' prototypes, and store them in the server's state.

        Args:
            server: The server.
            sent: Mapping from each site to its prototypes (d,) by class number.
            metas: Mapping from each site to the metadata of its reply.
        """
        raise NotImplementedError

    def scale(self, features: int) -> float:
        """Return the factor of the squared distance besides `lam`; by default 1/d for d features."""
        return 1 / features

    def reply_metadata(self, site: Site) -> Meta:
        """Return the metadata that the site sends with its prototypes."""
        return {}

    # ---- the server

    def setup(self, server: Server) -> None:
        """Store the number of features in the server's state.

        Raises:
            SettingsError: If the bodies have different numbers of features, or a head can't predict by the nearest
                prototype.
        """
        features = {network: feature_count(server.task.build(network), network) for network in server.networks()}
        if len(set(features.values())) > 1:
            raise SettingsError(
                "unlike_feature_counts",
                f"Prototypes are means of features: expected the same number of features for all networks, got "
                f"{features}. Choose networks whose bodies have the same number of features.",
                counts=features,
            )
        server.state.meta["features"] = next(iter(features.values()))
        if self.inference == "prototype":
            for network in features:
                single_linear(server.task.build(network), network, "Inference by prototypes needs a linear head")

    def requests(self, server: Server) -> list[Request]:
        """Return the requests to train, with the common prototypes, to the sites that are drawn for this round."""
        requests, meta = super().requests(server), {"features": server.state.meta["features"]}
        return [Request(request.to, request.op, request.tensors, meta) for request in requests]

    def publish(self, server: Server) -> Tensors:
        """Return the tensors that every site needs for its evaluation: the common prototypes."""
        return prefixed(auxiliary_state(server, PROTOTYPE_PREFIX), PROTOTYPE_PREFIX)

    def check_tensors(self, task: Task, request: Request, tensors: Tensors) -> None:
        """Raise if a tensor is not the prototype of a known class, a float32 vector with one entry per feature."""
        known, shape = (
            {f"{PROTOTYPE_PREFIX}{label}" for label in range(task.objective.classes)},
            (request.meta["features"],),
        )
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
        """Pass the prototypes of all replies to `update_prototypes`."""
        self.update_prototypes(
            server, {site: select(tensors, PROTOTYPE_PREFIX) for site, tensors in replies}, replies.meta
        )

    # ---- a site

    def train(self, site: Site, request: Request) -> Reply:
        """Train and store the site's own model; reply with the prototypes of its classes."""
        classes, device, received = (
            site.task.objective.classes,
            site.task.device,
            select(request.tensors, PROTOTYPE_PREFIX),
        )
        aims = prototype_table(received, classes, device)
        done, site.state.tensors = self.continue_training(site, self.own(site), {"prototypes": aims})
        model = site.task.load(done.after, site.network)
        means = prototypes(model, site.train, classes, EVALUATION_BATCH, device).cpu()
        own = {f"{PROTOTYPE_PREFIX}{label}": mean for label, mean in enumerate(means) if bool(mean.isfinite().all())}
        return Reply(
            own, self.reply_metadata(site), log=done.log, trained={"personal": self.scored(site, done.after, received)}
        )

    def loss(self, fit: Fit, batch: Batch) -> torch.Tensor:
        """Compute the task's loss plus `lam` times the scaled distance to the prototypes."""
        aims, task = fit.extra["prototypes"], fit.site.task
        if aims is None or self.lam == 0:
            return fit.task_loss(batch)
        features, logits = features_and_logits(fit.model, batch.images)
        labels: torch.Tensor = task.objective.class_labels(batch.targets)  # type: ignore[assignment]
        return task.loss(logits, batch.targets) + self.lam * self.scale(aims.shape[1]) * prototype_distance(
            features, aims, labels
        )

    def models(self, participant: Server | Site) -> dict[str, Model]:
        """Return the models of a participant by kind: a ``personal`` model at each site, none at the server."""
        if isinstance(participant, Server):
            return {}
        return {
            "personal": self.scored(participant, self.own(participant), select(participant.published, PROTOTYPE_PREFIX))
        }

    def scored(self, site: Site, tensors: Tensors, received: Tensors) -> Model:
        """Return the site's model for evaluation.

        With inference by prototypes, its head is the nearest-prototype layer.
        """
        aims = prototype_table(received, site.task.objective.classes, "cpu")
        if self.inference == "head" or aims is None:
            return Model(site.network, tensors)
        path = single_linear(site.task.build(site.network), site.network, "Inference by prototypes")[1]
        weight, bias = nearest_prototype_layer(aims)
        return Model(site.network, tensors | {f"{path}weight": weight, f"{path}bias": bias})
