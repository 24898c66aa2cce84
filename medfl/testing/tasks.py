"""The tiny federation with other objectives than classes: what its images show, told in another way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import nn

from medfl.core.site import Splits
from medfl.data.pooled import TensorData, labels_of
from medfl.objectives import Binary, Multilabel, Objective, Regression, Segmentation, Survival
from medfl.task import Task
from medfl.testing.cohort import CLASSES, SmallNet, make_data, make_task

FURTHER: tuple[Objective, ...] = (Binary(), Multilabel(CLASSES), Regression(2), Survival(), Segmentation(2))
"""Objectives beside several classes, with which the tiny federation can be run."""


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


def make_task_of(objective: Objective) -> Task:
    """The tiny task with an objective, its default loss and metrics, and networks as in `make_task`."""
    in_space = isinstance(objective, Segmentation)
    kind = partial(SmallUNet, objective.outputs) if in_space else partial(SmallNet, outputs=objective.outputs)
    networks = {"norm": kind, "plain": partial(kind, norm=False), "wide": partial(kind, width=9)}
    # a Cox loss and squared errors have no bound on their gradients
    slow = isinstance(objective, Regression | Survival)
    optimizer = partial(torch.optim.SGD, lr=0.01 if slow else 0.1, momentum=0.9)
    task = make_task(loss=objective.default_loss())
    return replace(task, networks=networks, objective=objective, metrics=(), optimizer=optimizer)


def told_as(data: TensorData, objective: Objective) -> TensorData:
    """The same images with targets of another objective, which follow from image and class.

    Args:
        data: From `make_data`.
        objective: One of `FURTHER`.
    """
    labels, images = labels_of(data), data.images
    place = torch.arange(len(data))
    brightness = images.flatten(1).mean(1)
    if isinstance(objective, Binary):
        return TensorData(images, (labels > 0).long())
    if isinstance(objective, Multilabel):
        findings = nn.functional.one_hot(labels, CLASSES).float()
        findings[place % 4 == 3, 0] = torch.nan
        return TensorData(images, findings)
    if isinstance(objective, Regression):
        return TensorData(images, torch.stack([labels.float(), brightness], dim=1))
    if isinstance(objective, Survival):
        return TensorData(images, torch.stack([4.0 - labels + brightness.sigmoid(), (place % 3 > 0).float()], dim=1))
    return TensorData(images, (images > 0.5).long())


def make_sites_of(objective: Objective, sizes: Mapping[str, int]) -> dict[str, Splits]:
    """Small sites with an objective: so many training images each, 4 for validation and 6 to test."""

    def part(n: int, key: str) -> TensorData:
        return told_as(make_data(n, key), objective)

    return {
        name: Splits(part(size, name), part(4, f"{name}/val"), part(6, f"{name}/test")) for name, size in sizes.items()
    }
