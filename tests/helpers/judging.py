"""A tiny federation for judges: loops written from a paper that take only data and the schedule of batches from medfl.

A judge trains the same sites from the same initial tensors on the same batches, and must end in the same numbers. All
is in float64, so that a difference of 1e-6 is one of the formulas.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn

from medfl.core.site import Splits
from medfl.plugins import load_plugins
from medfl.runs.simulation import Result
from medfl.testing.cohort import CLASSES, Case, make_site, make_task
from medfl.utils.rng import make_generator

SEED, BATCH, LR, ROUNDS = 7, 5, 0.1, 3

LABELS = {
    "site-1": [0, 1, 2, 0, 1, 2, 2, 1, 0, 0, 1, 2, 2, 0, 1, 1, 0],
    "site-2": [0, 0, 1, 1, 0, 0, 1, 0, 1, 0, 0],
    "site-3": [2, 2, 1, 2, 2, 2],
}
"""Sites of 17, 11 and 6 images; the second has no image of class 2, the third none of class 0."""


class Double(nn.Module):
    """Images in float64."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """The same."""
        return images.double()


class Network(nn.Module):
    """Logits of images (B, 1, 6, 6), in float64: a body of one layer and a linear head."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(Double(), nn.Flatten(), nn.Linear(36, 8), nn.Tanh()).double()
        self.head = nn.Linear(8, CLASSES).double()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits (B, classes)."""
        return self.head(self.body(images))


def sites() -> dict[str, Splits]:
    """The data."""
    return {name: make_site(len(labels), name, torch.tensor(labels)) for name, labels in LABELS.items()}


def images_of(site: str) -> tuple[torch.Tensor, torch.Tensor]:
    """All training images of a site, and their classes."""
    data = sites()[site].train
    return data.batch(torch.arange(len(data)))


def batches(site: str, round_: int, epochs: int, label: str = "batches") -> list[torch.Tensor]:
    """The rows of each batch of a site in a round, in turn."""
    generator, n = make_generator(SEED, site, round_, label), len(LABELS[site])
    return [rows for _ in range(epochs) for rows in torch.randperm(n, generator=generator).split(BATCH)]


def initial() -> dict[str, torch.Tensor]:
    """What all models begin with."""
    return _task(0.0).initial(SEED)


def network(tensors: Mapping[str, torch.Tensor]) -> Network:
    """The network with these tensors."""
    model = Network()
    model.load_state_dict(tensors)
    return model


def _task(momentum: float):
    sgd = lambda parameters: torch.optim.SGD(parameters, lr=LR, momentum=momentum)  # noqa: E731
    return dataclasses.replace(make_task(), networks={"judged": Network}, network="judged", optimizer=sgd)


def run(
    folder: Path,
    method: str,
    args: Mapping[str, object],
    *,
    momentum: float = 0.0,
    epochs: int = 2,
    away: tuple[str, int] | None = None,
    **settings: object,
) -> Result:
    """Three rounds of a method of medfl.

    Args:
        folder: Of the run.
        method: Its name.
        args: Its settings.
        momentum: Of SGD.
        epochs: Of a round.
        away: A site, and a step in which it does not answer.
        settings: Of the run.
    """
    case = Case(load_plugins(), method, dict(args), {"seed": SEED, "batch_size": BATCH, "rounds": ROUNDS})
    absent = lambda site, step: (site, step) == away  # noqa: E731
    return case.run(folder, sites=sites(), task=_task(momentum), epochs=epochs, absent=absent, **settings)


def agree(ours: Mapping[str, torch.Tensor], theirs: Mapping[str, torch.Tensor]) -> None:
    """Fail unless two models are equal to 1e-6."""
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[name], tensor.detach(), atol=1e-6, rtol=1e-6, msg=lambda m, n=name: f"{n}: {m}")
