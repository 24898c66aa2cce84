"""The tiny federation with objectives other than multiclass: the same images with targets of other kinds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from torch import nn

from medfl.data.pooled import TensorData, labels_of
from medfl.engine.site import Splits
from medfl.objectives import Binary, Multilabel, Objective, Regression, Segmentation, Survival
from medfl.task import Task
from medfl.testing.cohort import CLASSES, SmallNet, make_data, make_task


class SmallUNet(nn.Module):
    """Network with a body of two convolutions and a head of one, which keep the size of an image.

    Its stages (`feature_layers`) give feature maps.

    Args:
        outputs: Number of output channels.
        norm: Whether the network has a batch-norm layer.
        width: Number of channels of the body.

    Attributes:
        body: Feature extractor from images (B, 1, H, W) to feature maps (B, width, H, W).
        head: 1x1 convolution from feature maps to outputs (B, outputs, H, W).
        feature_layers: Modules whose outputs are the feature maps of the stages.
    """

    def __init__(self, outputs: int, norm: bool = True, width: int = 6) -> None:
        super().__init__()
        first: list[nn.Module] = [nn.Conv2d(1, width, 3, padding=1), *([nn.BatchNorm2d(width)] if norm else [])]
        self.body = nn.Sequential(*first, nn.ReLU(), nn.Conv2d(width, width, 3, padding=1), nn.ReLU())
        self.head = nn.Conv2d(width, outputs, 1)
        self.feature_layers = [self.body[len(first)], self.body]

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Compute outputs (B, outputs, H, W) of images (B, 1, H, W)."""
        outputs: torch.Tensor = self.head(self.body(images))
        return outputs


def _binary_targets(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return binary targets: 1 for all classes except the first."""
    return (labels > 0).long()


def _multilabel_targets(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return multi-label targets with some missing labels."""
    findings = nn.functional.one_hot(labels, CLASSES).float()
    findings[torch.arange(len(labels)) % 4 == 3, 0] = torch.nan  # not labelled
    return findings


def _regression_targets(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return two regression targets per image."""
    return torch.stack([labels.float(), images.flatten(1).mean(1)], dim=1)


def _survival_targets(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return event times with some censored ones."""
    events = torch.arange(len(labels)) % 3 > 0
    return torch.stack([4.0 - labels + images.flatten(1).mean(1).sigmoid(), events.float()], dim=1)


def _mask_targets(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return masks of the bright pixels."""
    return (images > 0.5).long()


class _Example(NamedTuple):
    """An objective with its targets for images (n, 1, 6, 6) and classes (n,), and a suitable network."""

    objective: Objective
    targets: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    network: type[nn.Module] = SmallNet
    lr: float = 0.1


_EXAMPLES = {
    example.objective.name: example
    for example in (
        _Example(Binary(), _binary_targets),
        _Example(Multilabel(CLASSES), _multilabel_targets),
        # squared errors and a Cox loss have no bound on their gradients
        _Example(Regression(2), _regression_targets, lr=0.01),
        _Example(Survival(), _survival_targets, lr=0.01),
        _Example(Segmentation(2), _mask_targets, SmallUNet),
    )
}
"""Mapping from each objective's name to its example."""

OTHER_OBJECTIVES = tuple(example.objective for example in _EXAMPLES.values())
"""Objectives other than multiclass that the tiny federation supports."""


def make_task_of(objective: Objective) -> Task:
    """Return the tiny task with another objective, its default loss and metrics.

    The networks are ``norm`` (with batch norm), ``plain`` (without) and ``wide``.
    """
    example = _EXAMPLES[objective.name]
    kind = partial(example.network, outputs=objective.outputs)
    networks = {"norm": kind, "plain": partial(kind, norm=False), "wide": partial(kind, width=9)}
    optimizer = partial(torch.optim.SGD, lr=example.lr, momentum=0.9)
    task = make_task(loss=objective.default_loss())
    return replace(task, networks=networks, objective=objective, metrics=(), optimizer=optimizer)


def with_targets_of(data: TensorData, objective: Objective) -> TensorData:
    """Return the same images with targets of another objective, computed from image and class.

    Args:
        data: Data from `make_data`.
        objective: Objective of the kind of one of `OTHER_OBJECTIVES`.
    """
    return TensorData(data.images, _EXAMPLES[objective.name].targets(data.images, labels_of(data)))


def make_sites_of(objective: Objective, sizes: Mapping[str, int]) -> dict[str, Splits]:
    """Create the data of sites with targets of an objective.

    Args:
        objective: Objective of the kind of one of `OTHER_OBJECTIVES`.
        sizes: Number of training images of each site. Each has 4 validation and 6 test images.
    """

    def part(n: int, key: str) -> TensorData:
        return with_targets_of(make_data(n, key), objective)

    return {
        name: Splits(part(size, name), part(4, f"{name}/val"), part(6, f"{name}/test")) for name, size in sizes.items()
    }
