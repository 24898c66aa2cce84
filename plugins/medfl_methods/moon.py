"""MOON: model-contrastive learning."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import nn

from medfl.contract import Capability, Model, Need, ReducesTo
from medfl.networks.parts import body_and_head, feature_count, replace_head
from medfl.task import Task
from medfl.toolkit.fit import Fit
from medfl.toolkit.local_training import cpu_state
from medfl.toolkit.losses import contrastive
from medfl.toolkit.participant_state import auxiliary_state, set_auxiliary_state
from medfl.toolkit.teacher import Teacher
from medfl.training.loop import Batch
from medfl.types import Meta
from medfl_methods.fedavg import FedAvg

PREVIOUS_MODEL_PREFIX = "previous/"
"""Prefix, in a site's state, of the model that the site trained last."""

PROJECTION_MARKER = "projection.fc1.bias"
"""End of a tensor's name by which a `ProjectionHead` is recognised in a state dict."""


class ProjectionHead(nn.Module):
    """Projection of two linear layers with a ReLU between them, followed by a linear classifier.

    Args:
        features: Number of features of the body, >= 1.
        width: Number of outputs of the projection, >= 1.
        outputs: Number of outputs of the classifier, >= 1.

    Attributes:
        projection: The projection.
        out: The classifier.
    """

    def __init__(self, features: int, width: int, outputs: int) -> None:
        super().__init__()
        layers = {"fc1": nn.Linear(features, features), "relu": nn.ReLU(), "fc2": nn.Linear(features, width)}
        self.projection = nn.Sequential(OrderedDict(layers))
        self.out = nn.Linear(width, outputs)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return the outputs (B, outputs) for features (B, features)."""
        outputs: torch.Tensor = self.out(self.projection(features))
        return outputs


class Moon(FedAvg):
    """Model-contrastive learning (MOON): a contrastive loss pulls local features to the global model's features.

    The loss also pushes them away from the features of the model that the site trained last.

    The networks get a projection head between body and classifier (`proj_dim`), which is trained and averaged with the
    rest. The contrasted features are the output of the projection. With ``proj_dim = 0``, networks stay unchanged and
    the features are the output of the body.

    Update rule:
        With z, g and p the features by the model in training, the received model and the model that the site trained
        last, a site minimises

            F(w) + mu mean over images of -log(a / (a + b)),  a = exp(cos(z, g) / tau),  b = exp(cos(z, p) / tau)

        The features g and p come from fixed models in evaluation mode. In a site's first training, the contrastive term
        is omitted.

    When to use it: When sites have different class distributions and train for many steps in each round.

    Limits: A site stores a second model, and each batch needs the features of three models. For a comparison, give
    `fedavg` the same networks with a projection head.

    Limit cases: With ``mu = 0`` and a projection head, this method is `fedavg` on the networks with that head.

    Attributes:
        mu: Weight of the contrastive term, >= 0. Grid of the paper: 0.1, 1, 5, 10.
        tau: Temperature, > 0.
        proj_dim: Number of outputs of the projection head; 0 for no projection head.

    Source: Li, He, Song, CVPR 2021, equation 3 and Algorithm 1; the projection head of its released code.
    """

    name = "moon"
    family = "averaging"
    paper = "Li, He, Song, CVPR 2021"
    summary = "FedAvg with a contrastive loss between the global model's and the previous local model's features"
    supports = frozenset({Capability.ROBUST, Capability.EXACT_ADAPTERS})

    needs: ClassVar[frozenset[Need]] = frozenset({"linear_head"})
    """Requirements that the task or the run must meet, otherwise the run is refused before it starts."""
    presets: ClassVar[Mapping[str, Meta]] = {"paper": {"mu": 5.0}, "medfl": {}}
    reduces_to: ClassVar[tuple[ReducesTo, ...]] = (ReducesTo("fedavg", {"mu": 0.0, "proj_dim": 0}),)

    mu: float = Field(1.0, ge=0, allow_inf_nan=False)
    tau: float = Field(0.5, gt=0, allow_inf_nan=False)
    proj_dim: int = Field(256, ge=0)

    # ---- networks

    def task_of(self, task: Task) -> Task:
        """Return the task with the method's networks: with a projection head, or unchanged for ``proj_dim = 0``."""
        for name in task.networks if self.proj_dim else ():
            build = partial(task.build, name)
            task = task.with_network(
                name, partial(build_with_projection_head, build, name, self.proj_dim, task.objective.outputs)
            )
        return task

    def network_config(self, model: Model, network_def: Any) -> Any:
        """Return the MONAI configuration of the network in an exported bundle, with a projection head."""
        if not self.proj_dim:
            return network_def
        first = next(name for name in model.tensors if name.endswith(PROJECTION_MARKER))
        features, last = len(model.tensors[first]), first.removesuffix(PROJECTION_MARKER) + "out.bias"
        head = {"_target_": f"{__name__}.ProjectionHead", "features": features, "width": self.proj_dim}
        head |= {"outputs": len(model.tensors[last])}
        return {"_target_": "medfl.networks.parts.replace_head", "network": network_def, "head": head}

    def split_features(self, model: nn.Module) -> tuple[nn.Module, nn.Module]:
        """Split a network into the part that computes the contrasted features and the remaining layers."""
        body, head = body_and_head(model)
        return (nn.Sequential(body, head.projection), head.out) if isinstance(head, ProjectionHead) else (body, head)

    # ---- a site

    def before_fit(self, fit: Fit) -> None:
        """Prepare a training: load the received and the previous model as teachers, if there is a previous model."""
        if self.mu and (previous := auxiliary_state(fit.site, PREVIOUS_MODEL_PREFIX)):
            old = fit.site.task.load(previous, fit.site.network)
            fit.extra["others"] = [Teacher(self.split_features(model)[0], fit.site) for model in (fit.model, old)]

    def loss(self, fit: Fit, batch: Batch) -> torch.Tensor:
        """Return the task's loss plus mu times the contrastive term."""
        if "others" not in fit.extra:
            return fit.task_loss(batch)
        trunk, out = self.split_features(fit.model)
        features = trunk(batch.images)
        received, previous = (teacher(batch) for teacher in fit.extra["others"])
        contrast = contrastive(features.float().flatten(1), received.flatten(1), previous.flatten(1), self.tau)
        return fit.site.task.loss(out(features), batch.targets) + self.mu * contrast

    def after_fit(self, fit: Fit) -> None:
        """Store the trained model as the previous one."""
        if self.mu:
            set_auxiliary_state(fit.site, PREVIOUS_MODEL_PREFIX, cpu_state(fit.model))


def build_with_projection_head(build: Callable[[], nn.Module], name: str, width: int, outputs: int) -> nn.Module:
    """Build a network with a `ProjectionHead` in place of its head.

    Args:
        build: Function that builds the network.
        name: Name of the network, for error messages.
        width: Number of outputs of the projection.
        outputs: Number of outputs of the classifier.
    """
    network = build()
    return replace_head(network, ProjectionHead(feature_count(network, name), width, outputs))
