"""FedDr+."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import nn
from torch.nn import functional as F

from medfl.contract import Capability, Need, Server, Site
from medfl.errors import SettingsError
from medfl.networks.parts import body_and_head, features_and_logits, head_names, single_linear
from medfl.task import Task
from medfl.toolkit.fit import Fit
from medfl.toolkit.teacher import Teacher
from medfl.toolkit.trainings import Training
from medfl.training.loop import Batch
from medfl.types import Meta, Tensors
from medfl_methods.fedavg import FedAvg


class FedDrPlus(FedAvg):
    """FedAvg of the body under a head that never changes: directions of the classes as far apart as can be.

    The head's rows v_c are a simplex: of length 1, with cosines -1 / (C - 1). A site minimises

        beta (1/2) (cos(f, v_y) - 1)^2 + (1 - beta) (1/d) ||f - f_g||^2,

    where f are d features of an image of class y, and f_g those that the received model gives it in evaluation mode:
    the second term keeps what a site's classes don't train. The most likely class is the one of the largest cosine.
    Probabilities are the softmax of f v_c, which grow with the length of f (ours: the head stays a linear layer, so any
    bundle can take the model home). There are at most d + 1 classes. No setting makes this FedAvg.

    The weights of the two terms and the division by d are read from summaries of the paper, of which no code was at
    hand: this is a re-implementation.

    When to use it: When sites lack classes, so that heads trained at the sites forget those that are absent.

    Attributes:
        beta: Weight of the first term, in [0, 1].
        fd: The second term: ``l2`` as above, or ``cos`` for 1 - cos(f, f_g).
        fd_weight: Weight of the second term, >= 0, in place of 1 - beta; None leaves that.
        ce_mode: The first term: ``dr`` as above, or ``ce`` for the task's own loss under the fixed head.

    Source: Kim, Lee, Jung, Yun et al., FedDr+: Stabilizing Dot-regression with Global Feature Distillation for
    Federated Learning, arXiv 2406.02355, 2024.
    """

    name = "feddr_plus"
    family = "averaging"
    paper = "Kim et al., 2024"
    summary = "a common body under a head that never changes, whose features stay near the received ones"
    supports = frozenset({Capability.ROBUST})

    needs: ClassVar[frozenset[Need]] = frozenset({"class_logits", "linear_head"})
    presets: ClassVar[Mapping[str, Meta]] = {"paper": {}, "medfl": {}}

    beta: float = Field(0.9, ge=0, le=1)
    fd: Literal["l2", "cos"] = "l2"
    fd_weight: float | None = Field(None, ge=0, allow_inf_nan=False)
    ce_mode: Literal["dr", "ce"] = "dr"

    @property
    def distilled(self) -> float:
        """Weight of the second term."""
        return 1 - self.beta if self.fd_weight is None else self.fd_weight

    def task_of(self, task: Task) -> Task:
        """The task with the head that stays."""
        return task.with_network(task.network, partial(under_simplex, task.build))

    def setup(self, server: Server) -> None:
        """The initial body under the head that stays.

        Raises:
            SettingsError: If the head is not one linear layer, there are too many classes, or classes have weights.
        """
        super().setup(server)
        task = server.task
        head = single_linear(task.build(), task.network, "FedDr+ sets the rows of a linear head")[0]
        check_room(*head.weight.shape)
        if self.ce_mode == "dr" and server.settings.balance == "loss":
            raise SettingsError(
                "incompatible_settings",
                "The loss of FedDr+ has no weights of classes: set balance to 'sampling' or 'none'.",
                settings=("ce_mode", "balance"),
                method="feddr_plus",
            )

    def server_update(self, server: Server, old: Tensors, mean: Tensors) -> Tensors:
        """The body's; the head stays, whatever noise is on it."""
        head = set(head_names(server.task.build(), server.task.network))
        return super().server_update(server, old, {name: t for name, t in mean.items() if name not in head})

    def trainings(self, site: Site) -> Sequence[Training]:
        """The body's."""
        return (Training(part="body"),)

    def before_fit(self, fit: Fit) -> None:
        """What the received body makes of the site's images."""
        if self.distilled:
            fit.extra["received"] = Teacher(body_and_head(fit.model)[0], fit.site)

    def loss(self, fit: Fit, batch: Batch) -> torch.Tensor:
        """Both terms."""
        task = fit.site.task
        features, logits = features_and_logits(fit.model, batch.images)
        if self.ce_mode == "ce":
            first = task.loss(logits, batch.targets)
        else:
            rows: torch.Tensor = body_and_head(fit.model)[1].weight  # type: ignore[assignment]
            first = dot_regression(features.float(), rows[task.objective.class_labels(batch.targets)]).mean()
        if not self.distilled:
            return self.beta * first
        received = fit.extra["received"](batch).flatten(1)
        return self.beta * first + self.distilled * feature_distillation(features.float(), received, self.fd)


def under_simplex(build: Callable[[], nn.Module]) -> nn.Module:
    """A network whose head, if it is one linear layer with enough features, is a `simplex` without bias."""
    model = build()
    head = getattr(model, "head", None)
    if isinstance(head, nn.Linear) and head.bias is not None and 2 <= head.out_features <= head.in_features + 1:
        with torch.no_grad():
            head.weight.copy_(simplex(*head.weight.shape))
            head.bias.zero_()
    return model


def check_room(classes: int, features: int) -> None:
    """Refuse more classes than there are directions at equal angles.

    Raises:
        SettingsError: If there are too few features.
    """
    if features < classes - 1:
        raise SettingsError(
            "too_few_features",
            f"{classes} directions at equal angles need at least {classes - 1} features, got {features}. Choose a "
            "network with a wider body.",
            classes=classes,
            minimum=classes - 1,
            found=features,
        )


def simplex(classes: int, features: int) -> torch.Tensor:
    """A simplex equiangular tight frame: V with V V^T = C / (C - 1) (I - 1 1^T / C), in a random position.

    Args:
        classes: C, >= 2.
        features: d, >= C - 1.

    Returns:
        (classes, features), float32; rows of length 1 that sum to 0. The position is drawn from torch's generator.

    Raises:
        SettingsError: If there are too few features.
    """
    check_room(classes, features)
    centred = torch.eye(classes, dtype=torch.float64) - 1 / classes
    corners = torch.linalg.eigh(centred).eigenvectors[:, 1:]  # of eigenvalue 1
    place = torch.randn(features, classes - 1, dtype=torch.float64)
    axes = torch.linalg.qr(place).Q
    return (math.sqrt(classes / (classes - 1)) * corners @ axes.T).float()


def dot_regression(features: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """(1/2) (cos(f, v) - 1)^2 of features (B, d) and the rows of their classes (B, d), for each image, (B,)."""
    return 0.5 * (F.cosine_similarity(features, rows, dim=1) - 1).square()


def feature_distillation(features: torch.Tensor, received: torch.Tensor, kind: Literal["l2", "cos"]) -> torch.Tensor:
    """Mean over a batch of ||f - f_g||^2 / d (``l2``) or 1 - cos(f, f_g) (``cos``) of features (B, d)."""
    if kind == "l2":
        return F.mse_loss(features, received)
    return (1 - F.cosine_similarity(features, received, dim=1)).mean()
