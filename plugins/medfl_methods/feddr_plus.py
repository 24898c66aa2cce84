"""FedDr+: dot regression under a fixed simplex head, with distillation of the global model's features."""

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
from medfl.toolkit.training_specs import Training
from medfl.training.loop import Batch
from medfl.types import Meta, Tensors
from medfl_methods.fedavg import FedAvg


class FedDrPlus(FedAvg):
    """Dot regression with feature distillation (FedDr+): train the body under a fixed simplex head.

    The head is fixed and never trained. Its rows v_c form a simplex: they have length 1 and pairwise cosines -1 / (C -
    1) for C classes. The body is trained and averaged as in `fedavg`. The second loss term preserves the features of
    classes that a site lacks.

    Update rule:
        With d features f of an image of class y, and f_g the features by the received model in evaluation mode, a site
        minimises

            beta (1/2) (cos(f, v_y) - 1)^2 + (1 - beta) (1/d) ||f - f_g||^2

        The predicted class has the largest cosine. Probabilities are the softmax of ``<f, v_c>``, so they depend on the
        length of f. This is a choice of medfl: the head stays a linear layer, so the exported bundle needs no special
        code.

    When to use it: When sites lack classes, so that locally trained heads forget the absent classes.

    Limits: The network needs at least C - 1 features. The weights of the two terms and the division by d are taken from
    summaries of the paper, because no code was available: this is a re-implementation. No setting makes this method
    `fedavg`.

    Attributes:
        beta: Weight of the first term, in [0, 1].
        fd: Distance of the second term: ``l2`` as above, or ``cos`` for 1 - cos(f, f_g).
        fd_weight: Weight of the second term, >= 0; None uses 1 - beta.
        ce_mode: First term: ``dr`` as above, or ``ce`` for the task's own loss under the fixed head.

    Source: Kim, Lee, Jung, Yun et al., FedDr+: Stabilizing Dot-regression with Global Feature Distillation for
    Federated Learning, arXiv 2406.02355, 2024.
    """

    name = "feddr_plus"
    family = "averaging"
    paper = "Kim et al., 2024"
    summary = "FedAvg of the body under a fixed simplex head, with distillation of the global model's features"
    supports = frozenset({Capability.ROBUST})

    needs: ClassVar[frozenset[Need]] = frozenset({"class_logits", "linear_head", "trainable_body"})
    """Requirements that the task or the run must meet, otherwise the run is refused before it starts."""
    presets: ClassVar[Mapping[str, Meta]] = {"paper": {}, "medfl": {}}

    beta: float = Field(0.9, ge=0, le=1)
    fd: Literal["l2", "cos"] = "l2"
    fd_weight: float | None = Field(None, ge=0, allow_inf_nan=False)
    ce_mode: Literal["dr", "ce"] = "dr"

    @property
    def distillation_weight(self) -> float:
        """Weight of the second loss term, the feature distillation: `fd_weight`, by default 1 - beta."""
        return 1 - self.beta if self.fd_weight is None else self.fd_weight

    def task_of(self, task: Task) -> Task:
        """Return the task with the method's network, which has the fixed simplex head."""
        return task.with_network(task.network, partial(build_with_simplex_head, task.build))

    def setup(self, server: Server) -> None:
        """Set the server's state to the initial body with the fixed head.

        Raises:
            SettingsError: If the head is not one linear layer, there are too many classes, or the loss has class
                weights.
        """
        super().setup(server)
        task = server.task
        head = single_linear(task.build(), task.network, "FedDr+ sets the rows of a linear head")[0]
        check_feature_count(*head.weight.shape)
        if self.ce_mode == "dr" and server.settings.balance == "loss":
            raise SettingsError(
                "incompatible_settings",
                "The loss of FedDr+ does not support class weights: set balance to 'sampling' or 'none'.",
                settings=("ce_mode", "balance"),
                method="feddr_plus",
            )

    def server_update(self, server: Server, old: Tensors, mean: Tensors) -> Tensors:
        """Return the new body; the head stays unchanged even if the updates of the head contain noise."""
        head = set(head_names(server.task.build(), server.task.network))
        return super().server_update(server, old, {name: t for name, t in mean.items() if name not in head})

    def trainings(self, site: Site) -> Sequence[Training]:
        """Return the trainings of a round in their order: a single one, of the body."""
        return (Training(part="body"),)

    def before_fit(self, fit: Fit) -> None:
        """Prepare a training: compute the features of the site's images by the received body."""
        if self.distillation_weight:
            fit.extra["received"] = Teacher(body_and_head(fit.model)[0], fit.site)

    def loss(self, fit: Fit, batch: Batch) -> torch.Tensor:
        """Return the loss of a batch: the weighted sum of its first term and the feature distillation."""
        task = fit.site.task
        features, logits = features_and_logits(fit.model, batch.images)
        if self.ce_mode == "ce":
            first = task.loss(logits, batch.targets)
        else:
            rows: torch.Tensor = body_and_head(fit.model)[1].weight  # type: ignore[assignment]
            first = dot_regression(features.float(), rows[task.objective.class_labels(batch.targets)]).mean()
        if not self.distillation_weight:
            return self.beta * first
        received = fit.extra["received"](batch).flatten(1)
        return self.beta * first + self.distillation_weight * feature_distillation(features.float(), received, self.fd)


def build_with_simplex_head(build: Callable[[], nn.Module]) -> nn.Module:
    """Build a network; set its head to a `simplex` without bias if it is one linear layer with enough features.

    Args:
        build: Function that builds the network.
    """
    model = build()
    head = getattr(model, "head", None)
    if isinstance(head, nn.Linear) and head.bias is not None and 2 <= head.out_features <= head.in_features + 1:
        with torch.no_grad():
            head.weight.copy_(simplex(*head.weight.shape))
            head.bias.zero_()
    return model


def check_feature_count(classes: int, features: int) -> None:
    """Raise SettingsError if there are too few features for a simplex of the classes.

    Args:
        classes: Number of classes C.
        features: Number of features; C - 1 are needed.
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
    """Draw a simplex equiangular tight frame V with V V^T = C / (C - 1) (I - 1 1^T / C), in a random orientation.

    Args:
        classes: Number of classes C, >= 2.
        features: Number of features d, >= C - 1.

    Returns:
        Matrix of shape (classes, features), float32, with rows of length 1 that sum to 0. The orientation is drawn from
        torch's global generator.

    Raises:
        SettingsError: If there are too few features.
    """
    check_feature_count(classes, features)
    centred = torch.eye(classes, dtype=torch.float64) - 1 / classes
    corners = torch.linalg.eigh(centred).eigenvectors[:, 1:]  # eigenvectors of the eigenvalue 1
    orientation = torch.randn(features, classes - 1, dtype=torch.float64)
    axes = torch.linalg.qr(orientation).Q
    return (math.sqrt(classes / (classes - 1)) * corners @ axes.T).float()


def dot_regression(features: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Compute the dot-regression loss (1/2) (cos(f, v) - 1)^2 of each image, shape (B,).

    Args:
        features: Features f, shape (B, d).
        rows: Rows v of the head for the images' classes, shape (B, d).
    """
    return 0.5 * (F.cosine_similarity(features, rows, dim=1) - 1).square()


def feature_distillation(features: torch.Tensor, received: torch.Tensor, kind: Literal["l2", "cos"]) -> torch.Tensor:
    """Compute the feature distillation: the batch mean of ||f - f_g||^2 / d (``l2``) or 1 - cos(f, f_g) (``cos``).

    Args:
        features: Features f by the model in training, shape (B, d).
        received: Features f_g by the received model, shape (B, d).
        kind: ``l2`` for the squared distance, ``cos`` for 1 minus the cosine.
    """
    if kind == "l2":
        return F.mse_loss(features, received)
    return (1 - F.cosine_similarity(features, received, dim=1)).mean()
