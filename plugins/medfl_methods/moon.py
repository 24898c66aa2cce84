"""MOON."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import nn

from medfl.contract import Capability, Model, Need, ReducesTo
from medfl.networks.parts import body_and_head, features_of, with_head
from medfl.task import Task
from medfl.toolkit.fit import Fit
from medfl.toolkit.kept import keep, kept
from medfl.toolkit.local_training import cpu_state
from medfl.toolkit.losses import contrastive
from medfl.toolkit.teacher import Teacher
from medfl.training.loop import Batch
from medfl.types import Meta
from medfl_methods.fedavg import FedAvg

PREVIOUS = "previous/"
"""Where a site keeps the model that it trained last."""

FIRST = "projection.fc1.bias"
"""A tensor of a `ProjectedHead`."""


class ProjectedHead(nn.Module):
    """A projection of two linear layers with ReLU between them, and a linear classifier on what it gives.

    Args:
        features: Of the body that it stands on, >= 1.
        width: Of the projection, >= 1.
        outputs: Of the classifier, >= 1.
    """

    def __init__(self, features: int, width: int, outputs: int) -> None:
        super().__init__()
        layers = {"fc1": nn.Linear(features, features), "relu": nn.ReLU(), "fc2": nn.Linear(features, width)}
        self.projection = nn.Sequential(OrderedDict(layers))
        self.out = nn.Linear(width, outputs)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Outputs (B, outputs) of features (B, features)."""
        outputs: torch.Tensor = self.out(self.projection(features))
        return outputs


class Moon(FedAvg):
    """Model-contrastive learning: what a site's model makes of an image is drawn to what the received model makes of
    it, and away from what the model did that the site trained last.

    A site minimises its loss plus mu times the mean over images of -log(a / (a + b)), where a = exp(cos(z, g) / tau)
    and b = exp(cos(z, p) / tau). z, g and p are features of the model in training, the received and the previous one;
    the latter two stay as they are, in evaluation mode. In a site's first training there is no previous model, and no
    term.

    Networks get a projection head between body and classifier (`proj_dim`), which is trained and exchanged with the
    rest; features are what it gives. So compare with a `fedavg` of the same networks: ``mu = 0`` is that. With
    ``proj_dim = 0`` networks stay as they are and features are those of the body; both together are `fedavg`.

    When to use it: When sites hold unlike shares of the classes and train long in each round. It keeps a second model
    at each site, and computes features by three models.

    Attributes:
        mu: Weight of the contrast, >= 0. The paper tries 0.1, 1, 5, 10.
        tau: Temperature, > 0.
        proj_dim: Width of the projection head's output; 0 for none.

    Source: Li, He, Song, CVPR 2021, equation 3 and Algorithm 1; the projection head of its released code.
    """

    name = "moon"
    family = "averaging"
    paper = "Li, He, Song, CVPR 2021"
    summary = "FedAvg whose sites' features are drawn to the received model's, away from those of their last one"
    supports = frozenset({Capability.ROBUST})

    needs: ClassVar[frozenset[Need]] = frozenset({"linear_head"})
    presets: ClassVar[Mapping[str, Meta]] = {"paper": {"mu": 5.0}, "medfl": {}}
    reduces_to: ClassVar[tuple[ReducesTo, ...]] = (ReducesTo("fedavg", {"mu": 0.0, "proj_dim": 0}),)

    mu: float = Field(1.0, ge=0, allow_inf_nan=False)
    tau: float = Field(0.5, gt=0, allow_inf_nan=False)
    proj_dim: int = Field(256, ge=0)

    # ---- networks

    def task_of(self, task: Task) -> Task:
        """The run's networks with a projection head."""
        for name in task.networks if self.proj_dim else ():
            build = partial(task.build, name)
            task = task.with_network(name, partial(projected, build, name, self.proj_dim, task.objective.outputs))
        return task

    def network_config(self, model: Model, network_def: Any) -> Any:
        """The network with a projection head."""
        if not self.proj_dim:
            return network_def
        first = next(name for name in model.tensors if name.endswith(FIRST))
        features, last = len(model.tensors[first]), first.removesuffix(FIRST) + "out.bias"
        head = {"_target_": f"{__name__}.ProjectedHead", "features": features, "width": self.proj_dim}
        head |= {"outputs": len(model.tensors[last])}
        return {"_target_": "medfl.networks.parts.with_head", "network": network_def, "head": head}

    def trunk(self, model: nn.Module) -> tuple[nn.Module, nn.Module]:
        """What of a network gives features, and what makes outputs of them."""
        body, head = body_and_head(model)
        return (nn.Sequential(body, head.projection), head.out) if isinstance(head, ProjectedHead) else (body, head)

    # ---- a site

    def before_fit(self, fit: Fit) -> None:
        """What the received model and the previous one make of the site's images."""
        if self.mu and (previous := kept(fit.site, PREVIOUS)):
            old = fit.site.task.load(previous, fit.site.network)
            fit.extra["others"] = [Teacher(self.trunk(model)[0], fit.site) for model in (fit.model, old)]

    def loss(self, fit: Fit, batch: Batch) -> torch.Tensor:
        """The task's loss plus mu times the contrast."""
        if "others" not in fit.extra:
            return super().loss(fit, batch)
        trunk, out = self.trunk(fit.model)
        features = trunk(batch.images)
        received, previous = (teacher(batch) for teacher in fit.extra["others"])
        contrast = contrastive(features.float().flatten(1), received.flatten(1), previous.flatten(1), self.tau)
        return fit.site.task.loss(out(features), batch.targets) + self.mu * contrast

    def after_fit(self, fit: Fit) -> None:
        """The trained model becomes the previous one."""
        if self.mu:
            keep(fit.site, PREVIOUS, cpu_state(fit.model))


def projected(build: Callable[[], nn.Module], name: str, width: int, outputs: int) -> nn.Module:
    """A network with a projection head in place of its own."""
    network = build()
    return with_head(network, ProjectedHead(features_of(network, name), width, outputs))
