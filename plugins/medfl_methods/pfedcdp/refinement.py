"""One student from several teachers, on public data: contrast between its images, and distillation from the teachers.

It begins when the federation's training is over, and happens at the server alone. Teachers are weighed by their exact
Shapley values.

Source: Shadin et al., PFedCDP, equations 14 to 19, with the supervised contrastive loss of Khosla et al., NeurIPS 2020.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Literal

import torch
from pydantic import Field, model_validator
from torch import nn
from torch.nn import functional as F

from medfl.data.pooled import TensorData, labels_of
from medfl.data.sampling import class_rows
from medfl.metrics import METRICS
from medfl.networks.parts import body_and_head, features_of, mlp
from medfl.settings import Settings, Strict
from medfl.toolkit.losses import distillation
from medfl.training.loop import Batch, row_batches, train
from medfl.training.predict import logits
from medfl.types import Dataset
from medfl_methods.pfedcdp.supcon import supcon

MOST = 12
"""Players for which all coalitions are asked: 2 to the power of this."""


def shapley_values(worth: Callable[[frozenset[int]], float], players: int) -> list[float]:
    """Each player's share of what all are worth together: the mean of what it adds, over all orders of coming.

    Args:
        worth: Of a coalition, given as player numbers from 0; asked once for each of the 2^players coalitions.
        players: 0 to `MOST`.

    Returns:
        One value for each player; they sum to worth(all) - worth(nobody).

    Raises:
        ValueError: If there are too many players.

    Source: Shapley, A value for n-person games, 1953.

    Example:
        >>> shapley_values(lambda who: float(len(who) == 2), 2)
        [0.5, 0.5]
    """
    if not 0 <= players <= MOST:
        raise ValueError(f"expected 0 to {MOST} players, whose coalitions can all be asked, got {players}")
    everyone = range(players)
    known = {who: worth(who) for size in range(players + 1) for who in map(frozenset, combinations(everyone, size))}
    values = []
    for player in everyone:
        terms = (
            (known[who | {player}] - known[who])
            * math.factorial(len(who))
            * math.factorial(players - len(who) - 1)
            / math.factorial(players)
            for who in known
            if player not in who
        )
        values.append(math.fsum(terms))
    return values


def as_weights(values: list[float]) -> list[float]:
    """Weights that sum to 1: negative values count as 0; all alike where no value is above 0."""
    gains = [max(value, 0.0) for value in values]
    total = math.fsum(gains)
    return [gain / total for gain in gains] if total > 0 else [1 / len(gains)] * len(gains)


PROJECTION = (128, 64)
"""Widths of the projection whose output the contrastive loss compares; it is thrown away afterwards."""


Views = Callable[[torch.Tensor, torch.Tensor, int, int], torch.Tensor]
"""Changes a batch at random: (images, their rows, epoch from 1, number of the view: 0 or 1) to images."""


class Refinement(Strict):
    """How the student learns.

    Attributes:
        losses: ``scl`` the contrastive loss, ``kd`` distillation, or both.
        alpha: With both: the weight of distillation, in [0, 1]; the contrastive loss has the rest.
        tau: Temperature of the distillation, > 0; its square weighs the term.
        contrast_tau: Temperature of the contrastive loss, > 0.
        epochs: Passes over the public images, >= 1; each takes two views of every image, drawn anew.
        probe_epochs: Passes in the end in which only the student's head learns, from the labels; 0 for none.
        batch_size: Images in a batch, >= 2.
        lr: Of Adam, > 0.
        teachers: What the teachers' predictions weigh: ``shapley`` by what each adds to the balanced accuracy of all on
            public images that no classifier was trained on; ``equal``; ``literal`` as the paper's equation 19, which
            weighs them equally and multiplies the loss by the mean absolute SHAP value of a pixel.
        student: Name of the student's network in the task; None means the task's default.
        explain: Public images of each class that the report explains by SHAP values for each teacher; 0 for none.
    """

    losses: Literal["scl+kd", "kd", "scl"] = "scl+kd"
    alpha: float = Field(0.5, ge=0, le=1)
    tau: float = Field(4.0, gt=0, allow_inf_nan=False)
    contrast_tau: float = Field(0.1, gt=0, allow_inf_nan=False)
    epochs: int = Field(50, ge=1)
    probe_epochs: int = Field(10, ge=0)
    batch_size: int = Field(64, ge=2)
    lr: float = Field(1e-3, gt=0, allow_inf_nan=False)
    teachers: Literal["shapley", "equal", "literal"] = "shapley"
    student: str | None = None
    explain: int = Field(0, ge=0)

    @model_validator(mode="after")
    def _head_learns(self) -> Refinement:
        if self.probe_epochs == 0 and (self.losses == "scl" or (self.losses == "scl+kd" and self.alpha == 0)):
            raise ValueError(
                "the contrastive loss alone trains no head: expected probe_epochs >= 1, or 'kd' with alpha > 0"
            )
        return self


def held_out(labels: torch.Tensor, share: float, generator: torch.Generator) -> torch.Tensor:
    """Rows of a class-balanced part of some labels: as many of each class as `share` of the rarest, at least one.

    A class of one image gives none: it is needed for training. Classes without images count for nothing.

    Args:
        labels: Shape (n,).
        share: In [0, 1).
        generator: Which rows.

    Returns:
        Sorted rows; empty where there are too few images.
    """
    rows = [of_class for of_class in class_rows(labels) if len(of_class) > 1]
    if not rows:
        return torch.empty(0, dtype=torch.int64)
    count = max(1, int(share * min(len(of_class) for of_class in rows)))
    drawn = [of_class[torch.randperm(len(of_class), generator=generator)[:count]] for of_class in rows]
    return torch.cat(drawn).sort().values


def teacher_values(
    logits: Sequence[torch.Tensor], labels: torch.Tensor, num_classes: int
) -> tuple[list[float], dict[frozenset[int], float]]:
    """Exact Shapley values of teachers: what each adds to the balanced accuracy of their mean logits.

    Nobody's worth is 1 / num_classes, guessing.

    Args:
        logits: Of each teacher, shape (n, num_classes).
        labels: Shape (n,).
        num_classes: Classes of the task.

    Returns:
        The values, which sum to the worth of all minus that of nobody; and the worth of each group of teachers.
    """
    worth = {frozenset[int](): 1 / num_classes}

    def value(who: frozenset[int]) -> float:
        if who not in worth:
            mean = torch.stack([logits[player] for player in sorted(who)]).mean(dim=0)
            worth[who] = METRICS["balanced_accuracy"](mean.softmax(dim=1), labels, num_classes)
        return worth[who]

    return shapley_values(value, len(logits)), worth


def refine(
    student: nn.Module,
    teachers: Sequence[nn.Module],
    weights: Sequence[float],
    data: Dataset,
    how: Refinement,
    settings: Settings,
    generator: torch.Generator,
    device: str = "cpu",
    views: Views | None = None,
    scale: float = 1.0,
    after_epoch: Callable[[int], None] = lambda epoch: None,
) -> dict[str, float]:
    """Train the student in place.

    Args:
        student: With `body` and `head`, on `device`.
        teachers: On `device`; they stay as they are.
        weights: Of their logits, summing to 1.
        data: Public images with labels.
        how: Losses, temperatures, epochs.
        settings: Of the run, for the precision.
        generator: The stream of the batches.
        device: Where all models are.
        views: Makes a view of a batch of images; None takes the images themselves as both views.
        scale: Multiplies the loss (the literal equation 19).
        after_epoch: Called after each epoch with its number, from 1; those of the probe are counted on.

    Returns:
        Mean losses of the last epoch, by name.
    """
    for teacher in teachers:
        teacher.eval().requires_grad_(False)
    student.train()
    body, head = body_and_head(student)
    project = mlp(features_of(student, how.student or "student"), PROJECTION[:1], PROJECTION[1], norm=False).to(device)
    optimizer = torch.optim.Adam([*student.parameters(), *project.parameters()], lr=how.lr)
    sums: dict[str, float] = {}
    for epoch in range(1, how.epochs + 1):
        sums = {"contrast": 0.0, "distillation": 0.0}
        for rows in row_batches(len(data), how.batch_size, generator, 1):
            images, labels = data.batch(rows)
            first, second = (images if views is None else views(images, rows, epoch, number) for number in range(2))
            first, second, labels = first.to(device), second.to(device), labels.to(device)
            shown = body(torch.cat([first, second]))
            contrast = supcon(project(shown), labels.repeat(2), how.contrast_tau)
            with torch.no_grad():
                taught_logits = sum(weight * teacher(first) for weight, teacher in zip(weights, teachers, strict=True))
            taught = distillation(head(shown[: len(labels)]), taught_logits, how.tau).mean()
            optimizer.zero_grad(set_to_none=True)
            (scale * _mixed(how, contrast, taught)).backward()
            optimizer.step()
            sums["contrast"] += float(contrast.detach()) * len(labels)
            sums["distillation"] += float(taught.detach()) * len(labels)
        after_epoch(epoch)
    if how.probe_epochs:
        probe(student, data, how, settings, generator, device, lambda epoch: after_epoch(how.epochs + epoch))
    return {name: total / len(data) for name, total in sums.items()}


def _mixed(how: Refinement, contrast: torch.Tensor, taught: torch.Tensor) -> torch.Tensor:
    if how.losses == "kd":
        return taught
    return contrast if how.losses == "scl" else (1 - how.alpha) * contrast + how.alpha * taught


def probe(
    student: nn.Module,
    data: Dataset,
    how: Refinement,
    settings: Settings,
    generator: torch.Generator,
    device: str,
    after_epoch: Callable[[int], None] = lambda epoch: None,
) -> None:
    """Train the student's head on its frozen features, by cross-entropy with the labels."""
    body, head = body_and_head(student)
    known = TensorData(logits(body, data, settings, device), labels_of(data))
    train_head(head, known, how.probe_epochs, how.batch_size, how.lr, generator, device, after_epoch)


def train_head(
    head: nn.Module,
    features: TensorData,
    epochs: int,
    batch_size: int,
    lr: float,
    generator: torch.Generator,
    device: str,
    after_epoch: Callable[[int], None] = lambda epoch: None,
) -> None:
    """Train a classifier on features in place, by cross-entropy and Adam.

    Args:
        head: On `device`.
        features: With labels.
        epochs: Passes over them.
        batch_size: Rows in a batch; a batch of one is skipped where the head has batch norm (rule G-6).
        lr: Learning rate.
        generator: The stream of the batches.
        device: Where `head` is.
        after_epoch: Called after each epoch with its number, from 1.
    """
    settings = Settings(rounds=1, batch_size=batch_size)
    optimizer = torch.optim.Adam(head.parameters(), lr=lr)

    def loss(batch: Batch) -> torch.Tensor:
        return F.cross_entropy(head(batch.images), batch.targets)

    for epoch in range(1, epochs + 1):
        train(head, features, loss, optimizer, settings, generator, device)
        after_epoch(epoch)
    head.eval()
