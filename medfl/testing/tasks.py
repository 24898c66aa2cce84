"""The tiny federation with other objectives than classes: what its images show, told in another way."""

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
    """A body of two convolutions and a head of one, which keep the size of an image; its stages are both maps.

    Args:
        outputs: Channels of the output.
        norm: Whether there is a batch-norm layer.
        width: Channels between.
    """

    def __init__(self, outputs: int, norm: bool = True, width: int = 6) -> None:
        super().__init__()
        first: list[nn.Module] = [nn.Conv2d(1, width, 3, padding=1), *([nn.BatchNorm2d(width)] if norm else [])]
        self.body = nn.Sequential(*first, nn.ReLU(), nn.Conv2d(width, width, 3, padding=1), nn.ReLU())
        self.head = nn.Conv2d(width, outputs, 1)
        self.feature_layers = [self.body[len(first)], self.body]

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Outputs (B, outputs, H, W) of images (B, 1, H, W)."""
        outputs: torch.Tensor = self.head(self.body(images))
        return outputs


def _sick(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return (labels > 0).long()


def _findings(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    findings = nn.functional.one_hot(labels, CLASSES).float()
    findings[torch.arange(len(labels)) % 4 == 3, 0] = torch.nan  # nobody looked for it
    return findings


def _values(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return torch.stack([labels.float(), images.flatten(1).mean(1)], dim=1)


def _times(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    events = torch.arange(len(labels)) % 3 > 0
    return torch.stack([4.0 - labels + images.flatten(1).mean(1).sigmoid(), events.float()], dim=1)


def _bright(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return (images > 0.5).long()


class _Example(NamedTuple):
    """An objective, its targets of images (n, 1, 6, 6) and their classes (n,), and what learns it in a few steps."""

    objective: Objective
    targets: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    network: type[nn.Module] = SmallNet
    lr: float = 0.1


_EXAMPLES = {
    example.objective.name: example
    for example in (
        _Example(Binary(), _sick),
        _Example(Multilabel(CLASSES), _findings),
        # squared errors and a Cox loss have no bound on their gradients
        _Example(Regression(2), _values, lr=0.01),
        _Example(Survival(), _times, lr=0.01),
        _Example(Segmentation(2), _bright, SmallUNet),
    )
}

FURTHER = tuple(example.objective for example in _EXAMPLES.values())
"""Objectives beside several classes, with which the tiny federation can be run."""


def make_task_of(objective: Objective) -> Task:
    """The tiny task with an objective, its default loss and metrics, and networks as in `make_task`."""
    example = _EXAMPLES[objective.name]
    kind = partial(example.network, outputs=objective.outputs)
    networks = {"norm": kind, "plain": partial(kind, norm=False), "wide": partial(kind, width=9)}
    optimizer = partial(torch.optim.SGD, lr=example.lr, momentum=0.9)
    task = make_task(loss=objective.default_loss())
    return replace(task, networks=networks, objective=objective, metrics=(), optimizer=optimizer)


def told_as(data: TensorData, objective: Objective) -> TensorData:
    """The same images with targets of another objective, which follow from image and class.

    Args:
        data: From `make_data`.
        objective: Of the kind of one of `FURTHER`.
    """
    return TensorData(data.images, _EXAMPLES[objective.name].targets(data.images, labels_of(data)))


def make_sites_of(objective: Objective, sizes: Mapping[str, int]) -> dict[str, Splits]:
    """Small sites with an objective: so many training images each, 4 for validation and 6 to test."""

    def part(n: int, key: str) -> TensorData:
        return told_as(make_data(n, key), objective)

    return {
        name: Splits(part(size, name), part(4, f"{name}/val"), part(6, f"{name}/test")) for name, size in sizes.items()
    }
