"""Training of a student from several teachers on public data: contrastive loss and distillation.

The server trains the student after the last round. The teachers can be weighted by their exact Shapley values.

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
from medfl.networks.parts import body_and_head, feature_count, mlp
from medfl.settings import Settings, StrictModel
from medfl.toolkit.losses import distillation
from medfl.training.loop import Batch, row_batches, train
from medfl.training.predict import logits
from medfl.types import Dataset
from medfl_methods.pfedcdp.supcon import supcon

MAX_PLAYERS = 12
"""Maximum number of players (teachers) in a Shapley value, since the values of all 2^players coalitions are
computed."""


def shapley_values(value_of: Callable[[frozenset[int]], float], players: int) -> list[float]:
    """Return the Shapley value of each player: the mean of the value that it adds, over all orders of joining.

    Args:
        value_of: Function that returns the value of a coalition, given as player numbers from 0. It is called once for
            each of the 2^players coalitions.
        players: Number of players, 0 to `MAX_PLAYERS`.

    Returns:
        One value for each player; they sum to value_of(all players) - value_of(no player).

    Raises:
        ValueError: If there are too many players.

    Source: Shapley, A value for n-person games, 1953.

    Example:
        >>> shapley_values(lambda coalition: float(len(coalition) == 2), 2)
        [0.5, 0.5]
    """
    if not 0 <= players <= MAX_PLAYERS:
        raise ValueError(f"expected 0 to {MAX_PLAYERS} players, since all their coalitions are computed, got {players}")
    all_players = range(players)
    value_by_coalition = {
        coalition: value_of(coalition)
        for size in range(players + 1)
        for coalition in map(frozenset, combinations(all_players, size))
    }
    values = []
    for player in all_players:
        terms = (
            (value_by_coalition[coalition | {player}] - value_by_coalition[coalition])
            * math.factorial(len(coalition))
            * math.factorial(players - len(coalition) - 1)
            / math.factorial(players)
            for coalition in value_by_coalition
            if player not in coalition
        )
        values.append(math.fsum(terms))
    return values


def normalise_values(values: list[float]) -> list[float]:
    """Turn Shapley values into weights that sum to 1.

    Negative values count as 0. If no value is above 0, all weights are equal.
    """
    gains = [max(value, 0.0) for value in values]
    total = math.fsum(gains)
    return [gain / total for gain in gains] if total > 0 else [1 / len(gains)] * len(gains)


PROJECTION_WIDTHS = (128, 64)
"""Widths of the projection layers before the contrastive loss. The projection is discarded after the training."""


Views = Callable[[torch.Tensor, torch.Tensor, int, int], torch.Tensor]
"""Function that augments a batch at random. It maps images, their rows, the epoch (from 1) and the number of the view
(0 or 1) to images."""


class Refinement(StrictModel):
    """Settings of the student's training.

    Attributes:
        losses: Losses of the student. ``scl``: the supervised contrastive loss. ``kd``: the distillation from the
            teachers. ``scl+kd``: both.
        alpha: Weight of the distillation if both losses are used, in [0, 1]; the weight of the contrastive loss is 1 -
            alpha.
        tau: Temperature of the distillation, > 0; its square multiplies the term.
        contrast_tau: Temperature of the contrastive loss, > 0.
        epochs: Epochs on the public images, >= 1; each epoch draws two new views of every image.
        probe_epochs: Final epochs in which only the student's head is trained, on the labels; 0 for none.
        batch_size: Number of images in a batch, >= 2.
        lr: Learning rate of Adam, > 0.
        teachers: Weights of the teachers' predictions. ``shapley``: the Shapley value of each teacher for the balanced
            accuracy of their mean prediction, on public images that no classifier was trained on. ``equal``: equal
            weights. ``literal``: equation 19 of the paper, which uses equal weights and multiplies the loss by the mean
            absolute SHAP value of a pixel.
        student: Name of the student's network in the task; None means the task's default network.
        explain: Number of public images of each class that the report explains by SHAP values for each teacher; 0 for
            none.
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
    def _check_head_training(self) -> Refinement:
        """Raise if neither loss nor probe would train the student's head."""
        if self.probe_epochs == 0 and (self.losses == "scl" or (self.losses == "scl+kd" and self.alpha == 0)):
            raise ValueError(
                "the contrastive loss alone does not train the head: expected probe_epochs >= 1, or 'kd' with alpha > 0"
            )
        return self


def draw_held_out_rows(labels: torch.Tensor, share: float, generator: torch.Generator) -> torch.Tensor:
    """Draw class-balanced rows on which no server's classifier is trained: the same number, at least one, per class.

    A class with one image is left out, because that image is needed for training. Classes without images are ignored.

    Args:
        labels: Class labels, shape (n,).
        share: Number of drawn rows of each class as a fraction of the rarest class's size, in [0, 1).
        generator: Random stream.

    Returns:
        Sorted rows; empty if there are too few images.
    """
    rows = [of_class for of_class in class_rows(labels) if len(of_class) > 1]
    if not rows:
        return torch.empty(0, dtype=torch.int64)
    count = max(1, int(share * min(len(of_class) for of_class in rows)))
    drawn = [of_class[torch.randperm(len(of_class), generator=generator)[:count]] for of_class in rows]
    return torch.cat(drawn).sort().values


def teacher_shapley_values(
    logits: Sequence[torch.Tensor], labels: torch.Tensor, num_classes: int
) -> tuple[list[float], dict[frozenset[int], float]]:
    """Return the exact Shapley value of each teacher for the balanced accuracy of the teachers' mean logits.

    The value of the empty group is 1 / num_classes, the accuracy of guessing.

    Args:
        logits: Logits of each teacher, shape (n, num_classes).
        labels: Class labels, shape (n,).
        num_classes: Number of classes of the task.

    Returns:
        The Shapley values, which sum to the balanced accuracy of all teachers minus 1 / num_classes; and a mapping from
        each group of teachers to its balanced accuracy.
    """
    accuracy_by_group = {frozenset[int](): 1 / num_classes}

    def group_accuracy(group: frozenset[int]) -> float:
        if group not in accuracy_by_group:
            mean = torch.stack([logits[player] for player in sorted(group)]).mean(dim=0)
            accuracy_by_group[group] = METRICS["balanced_accuracy"](mean.softmax(dim=1), labels, num_classes)
        return accuracy_by_group[group]

    return shapley_values(group_accuracy, len(logits)), accuracy_by_group


def train_student(
    student: nn.Module,
    teachers: Sequence[nn.Module],
    weights: Sequence[float],
    data: Dataset,
    options: Refinement,
    settings: Settings,
    generator: torch.Generator,
    device: str = "cpu",
    views: Views | None = None,
    scale: float = 1.0,
    after_epoch: Callable[[int], None] = lambda epoch: None,
) -> dict[str, float]:
    """Train the student in place, and put the teachers into evaluation mode without gradients.

    Args:
        student: Network with `body` and `head`, on `device`.
        teachers: Networks on `device`.
        weights: Weights of the teachers' logits, summing to 1.
        data: Public images with labels.
        options: Losses, temperatures and epochs.
        settings: Settings of the run, for the precision.
        generator: Random stream of the batches.
        device: Device of all models.
        views: Function that returns a random view of a batch; None uses the images themselves as both views.
        scale: Factor of the loss (the literal equation 19).
        after_epoch: Function that is called after each epoch with its number, from 1; the count continues in the
            probe's epochs.

    Returns:
        Mean losses of the last epoch, with the keys ``contrast`` and ``distillation``.
    """
    for teacher in teachers:
        teacher.eval().requires_grad_(False)
    student.train()
    body, head = body_and_head(student)
    project = mlp(
        feature_count(student, options.student or "student"), PROJECTION_WIDTHS[:1], PROJECTION_WIDTHS[1], norm=False
    ).to(device)
    optimizer = torch.optim.Adam([*student.parameters(), *project.parameters()], lr=options.lr)
    sums: dict[str, float] = {}
    for epoch in range(1, options.epochs + 1):
        sums = {"contrast": 0.0, "distillation": 0.0}
        for rows in row_batches(len(data), options.batch_size, generator, 1):
            images, labels = data.batch(rows)
            first, second = (images if views is None else views(images, rows, epoch, number) for number in range(2))
            first, second, labels = first.to(device), second.to(device), labels.to(device)
            shown = body(torch.cat([first, second]))
            contrast = supcon(project(shown), labels.repeat(2), options.contrast_tau)
            with torch.no_grad():
                taught_logits = sum(weight * teacher(first) for weight, teacher in zip(weights, teachers, strict=True))
            taught = distillation(head(shown[: len(labels)]), taught_logits, options.tau).mean()
            optimizer.zero_grad(set_to_none=True)
            (scale * _combined_loss(options, contrast, taught)).backward()
            optimizer.step()
            sums["contrast"] += float(contrast.detach()) * len(labels)
            sums["distillation"] += float(taught.detach()) * len(labels)
        after_epoch(epoch)
    if options.probe_epochs:
        train_probe(
            student, data, options, settings, generator, device, lambda epoch: after_epoch(options.epochs + epoch)
        )
    return {name: total / len(data) for name, total in sums.items()}


def _combined_loss(options: Refinement, contrast: torch.Tensor, taught: torch.Tensor) -> torch.Tensor:
    """Return the loss to minimise: one of the two losses, or their weighted sum."""
    if options.losses == "kd":
        return taught
    return contrast if options.losses == "scl" else (1 - options.alpha) * contrast + options.alpha * taught


def train_probe(
    student: nn.Module,
    data: Dataset,
    options: Refinement,
    settings: Settings,
    generator: torch.Generator,
    device: str,
    after_epoch: Callable[[int], None] = lambda epoch: None,
) -> None:
    """Train the head of the student in place, by cross-entropy with the labels; the body stays frozen.

    Args:
        student: Network with `body` and `head`, on `device`.
        data: Public images with labels.
        options: Settings; the number of epochs is `options.probe_epochs`.
        settings: Settings of the run, for the precision.
        generator: Random stream of the batches.
        device: Device of the student.
        after_epoch: Function that is called after each epoch with its number, from 1.
    """
    body, head = body_and_head(student)
    known = TensorData(logits(body, data, settings, device), labels_of(data))
    train_head(head, known, options.probe_epochs, options.batch_size, options.lr, generator, device, after_epoch)


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
        head: Classifier on `device`.
        features: Features with labels.
        epochs: Number of epochs.
        batch_size: Number of rows in a batch. A batch of one row is skipped if the head has batch norm, which needs two
            rows.
        lr: Learning rate.
        generator: Random stream of the batches.
        device: Device of `head`.
        after_epoch: Function that is called after each epoch with its number, from 1.
    """
    settings = Settings(rounds=1, batch_size=batch_size)
    optimizer = torch.optim.Adam(head.parameters(), lr=lr)

    def loss(batch: Batch) -> torch.Tensor:
        return F.cross_entropy(head(batch.images), batch.targets)

    for epoch in range(1, epochs + 1):
        train(head, features, loss, optimizer, settings, generator, device)
        after_epoch(epoch)
    head.eval()
