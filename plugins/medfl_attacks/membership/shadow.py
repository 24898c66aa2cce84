"""Shadow-model attack: a shadow network shows how a network's outputs differ on its own training images.

The attacker trains the shadow network. Source: Shokri et al., "Membership inference attacks against machine learning
models", S&P 2017. As in Salem et al., "ML-Leaks", NDSS 2019, there is one shadow network, and the attack uses the
highest class probabilities. The shadow set is the images that the attacker has: half of them are the members on which
the shadow network is trained. Shapes: n images, C classes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from medfl.data.pooled import labels_of, patients_of
from medfl.data.sampling import class_rows, stratified_share
from medfl.errors import SettingsError
from medfl.settings import Settings
from medfl.task import Task
from medfl.training.loop import train
from medfl.training.predict import logits
from medfl.types import Dataset
from medfl.utils.rng import make_generator, seeded_generators
from medfl_attacks.attack_files import ShadowNetwork

MIN_SHADOW_IMAGES = 10
"""Minimum number of images in a shadow set; half of them are the members of the shadow network."""

MAX_LOG_ODDS = 30.0
"""Largest absolute log-odds that the attack uses; larger values are rounding errors of float32."""

L2_PENALTY = 1e-2
"""Weight of the L2 penalty in the attack's logistic regression."""


class SelectedRows:
    """Some rows of a data set, as a data set.

    Args:
        data: The data set.
        rows: Row numbers, (n,), int64.

    Attributes:
        labels: Labels of the rows, (n,), int64.
        class_labels: Labels of the rows, as in `labels`; the interface of data sets requires this name as well.
        patients: Patient numbers of the rows, (n,), or None if the data set has none.
    """

    def __init__(self, data: Dataset, rows: torch.Tensor) -> None:
        self._data, self._rows = data, rows
        self.labels = labels_of(data)[rows]
        self.class_labels: torch.Tensor | None = self.labels
        patients = patients_of(data)
        self.patients = None if patients is None else patients[rows]

    def __len__(self) -> int:
        return len(self._rows)

    def batch(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return images and labels of a batch.

        Args:
            rows: Positions within the selected rows.
        """
        return self._data.batch(self._rows[rows])

    def targets(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the training targets of a batch.

        Args:
            rows: Positions within the selected rows.
        """
        return self._data.targets(self._rows[rows])


def match_classes(
    first: torch.Tensor, second: torch.Tensor, generator: torch.Generator, most: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw equally many rows of each class from two data sets.

    The class of an image then doesn't reveal from which data set the image was drawn.

    Args:
        first: Labels of the first data set.
        second: Labels of the second data set.
        generator: Random generator of the draw.
        most: Largest number of rows from each data set, or None. Classes keep their proportions (largest remainder
            method).

    Returns:
        Row numbers in the first and in the second data set, equally many, sorted by class.
    """
    first_rows, second_rows = (
        {int(labels[rows[0]]): rows for rows in class_rows(labels)} for labels in (first, second)
    )
    counts = {
        name: min(len(first_rows[name]), len(second_rows[name]))
        for name in sorted(first_rows.keys() & second_rows.keys())
    }
    chosen: list[list[torch.Tensor]] = [[], []]
    for name, count in _limit_counts(counts, most).items():
        for rows, drawn in zip((first_rows[name], second_rows[name]), chosen, strict=True):
            drawn.append(rows[torch.randperm(len(rows), generator=generator)[:count]])
    empty = torch.empty(0, dtype=torch.int64)
    return torch.cat([empty, *chosen[0]]), torch.cat([empty, *chosen[1]])


def _limit_counts(counts: dict[int, int], most: int | None) -> dict[int, int]:
    """Reduce counts so that their sum is at most `most`, in about the same proportions (largest remainder method)."""
    total = sum(counts.values())
    if most is None or total <= most:
        return counts
    exact = {name: count * most / total for name, count in counts.items()}
    kept = {name: int(count) for name, count in exact.items()}
    largest = sorted(exact, key=lambda name: (kept[name] - exact[name], name))
    for name in largest[: most - sum(kept.values())]:
        kept[name] += 1
    return kept


@dataclass(frozen=True)
class TrainedShadowAttack:
    """A trained attack: logistic regression on the log-odds of the highest class probabilities.

    Attributes:
        highest: Number of highest probabilities that are used, k = min(3, classes).
        mean: Mean of each feature on the shadow set, (k,), float64.
        std: Standard deviation of each feature on the shadow set, (k,), float64, > 0.
        weights: Coefficients, (k + 1,), float64; the last one is the intercept.
        members: Number of images that the shadow network was trained on.
        non_members: Number of images of the shadow set that it was not trained on.
        epochs: Training epochs of the shadow network.
        accuracy_members: Accuracy of the shadow network on its members.
        accuracy_non_members: Accuracy of the shadow network on its non-members.
    """

    highest: int
    mean: torch.Tensor
    std: torch.Tensor
    weights: torch.Tensor
    members: int
    non_members: int
    epochs: int
    accuracy_members: float
    accuracy_non_members: float

    def to_record(self, network: str) -> ShadowNetwork:
        """Return the record of the shadow network for the results file.

        Args:
            network: Name of the network.
        """
        return ShadowNetwork(
            network=network,
            members=self.members,
            non_members=self.non_members,
            epochs=self.epochs,
            highest=self.highest,
            accuracy_members=self.accuracy_members,
            accuracy_non_members=self.accuracy_non_members,
        )

    def scores(self, target: torch.Tensor) -> torch.Tensor:
        """Return the log-odds of membership, (n,), float64; a positive score means "member".

        Args:
            target: Logits of the attacked model, (n, C).
        """
        features = (highest_log_odds(target, self.highest) - self.mean) / self.std
        return features @ self.weights[:-1] + self.weights[-1]


def highest_log_odds(outputs: torch.Tensor, count: int) -> torch.Tensor:
    """Return the log-odds log(p / (1 - p)) of each image's highest probabilities, in descending order.

    Log-odds contain the same information as the probabilities, but spread out those close to 0 or 1.

    Args:
        outputs: Logits, (n, C).
        count: Number of probabilities.

    Returns:
        (n, count), float64, limited to +- `MAX_LOG_ODDS`.
    """
    logs = outputs.double().log_softmax(dim=1)
    top = logs.topk(count, dim=1).values
    return (top - (-torch.expm1(top)).log()).clamp(-MAX_LOG_ODDS, MAX_LOG_ODDS)


def check_shadow_set(data: Dataset, name: str) -> None:
    """Raise SettingsError if a data set is too small to train and evaluate a shadow network.

    Args:
        data: The data set.
        name: Description of the images for the error message.

    Raises:
        SettingsError: If the set has fewer than `MIN_SHADOW_IMAGES` images.
    """
    if len(data) < MIN_SHADOW_IMAGES:
        raise SettingsError(
            "too_few_images",
            f"expected at least {MIN_SHADOW_IMAGES} images ({name}) to train a shadow network, got {len(data)}. Choose "
            "other images with --shadow, or --shadow none to run the loss threshold attack only.",
            name=name,
            minimum=MIN_SHADOW_IMAGES,
            found=len(data),
        )


def count_epochs(settings: Settings, images: float) -> int:
    """Return the number of epochs of a shadow network: how often the run used each training image on average.

    Args:
        settings: Settings of the run.
        images: Mean number of training images of a site.
    """
    each = settings.epochs if settings.steps is None else settings.steps * settings.batch_size / max(images, 1)
    return max(1, round(settings.rounds * settings.fraction * each))


def train_shadow_attack(
    task: Task,
    settings: Settings,
    data: Dataset,
    epochs: int,
    seed: int,
    network: str | None = None,
    gradient_clip: float | None = None,
    after_batch: Callable[[], None] = lambda: None,
) -> TrainedShadowAttack:
    """Train a shadow network on half of a data set, and fit the attack to its outputs on both halves.

    Args:
        task: Network, loss, optimizer, augmentation and device of the run.
        settings: Settings of the run. Its privacy settings are ignored, because an attacker adds no noise.
        data: Shadow set with at least `MIN_SHADOW_IMAGES` images, disjoint from the images under attack.
        epochs: Training epochs, >= 1.
        seed: Seed of the split into halves, the network's initial weights and its batches.
        network: Name of the network in the task; None means the task's own.
        gradient_clip: Gradient clipping norm of the run's method, or None.
        after_batch: Callback after each training step.
    """
    half = stratified_share(labels_of(data), 0.5, make_generator(seed, "shadow halves"))
    outside = torch.ones(len(data), dtype=torch.bool)
    outside[half] = False
    member_rows, non_member_rows = SelectedRows(data, half), SelectedRows(data, outside.nonzero(as_tuple=True)[0])
    shadow_settings = settings.model_copy(update={"epochs": epochs, "steps": None, "privacy": None})
    weighted = task.with_class_weights(member_rows.labels) if settings.balance == "loss" else task
    model = weighted.load(task.initial(seed, network, owner="shadow"), network)
    with seeded_generators(seed, "shadow training"):
        train(
            model,
            member_rows,
            lambda batch: weighted.loss(model(batch.images), batch.targets),
            weighted.optimizer(model.parameters()),
            shadow_settings,
            make_generator(seed, "shadow batches"),
            task.device,
            after_batch=after_batch,
            gradient_clip=gradient_clip,
            augment=weighted.augment(make_generator(seed, "shadow augmentation")),
        )
    outputs_by_half = [logits(model, part, settings, task.device) for part in (member_rows, non_member_rows)]
    accuracies = [
        float((outputs.argmax(dim=1) == part.labels).double().mean())
        for outputs, part in zip(outputs_by_half, (member_rows, non_member_rows), strict=True)
    ]
    rows = match_classes(member_rows.labels, non_member_rows.labels, make_generator(seed, "shadow rows"))
    attack = _fit_logistic_regression(
        outputs_by_half[0][rows[0]], outputs_by_half[1][rows[1]], min(3, task.objective.classes)
    )
    return replace(
        attack,
        members=len(member_rows),
        non_members=len(non_member_rows),
        epochs=epochs,
        accuracy_members=accuracies[0],
        accuracy_non_members=accuracies[1],
    )


def _fit_logistic_regression(members: torch.Tensor, others: torch.Tensor, highest: int) -> TrainedShadowAttack:
    """Fit the logistic regression with Newton's method.

    The problem is convex, so the solution is unique and not random.
    """
    features = highest_log_odds(torch.cat([members, others]), highest)
    mean, std = features.mean(dim=0), features.std(dim=0).clamp(min=1e-6)
    inputs = torch.cat([(features - mean) / std, torch.ones(len(features), 1, dtype=torch.float64)], dim=1)
    truth = torch.cat([torch.ones(len(members)), torch.zeros(len(others))]).double()
    weights = torch.zeros(inputs.shape[1], dtype=torch.float64)
    decay = L2_PENALTY * torch.eye(inputs.shape[1], dtype=torch.float64)
    for _ in range(100):
        predicted = (inputs @ weights).sigmoid()
        slope = inputs.T @ (predicted - truth) / len(truth) + decay @ weights
        curve = (inputs * (predicted * (1 - predicted))[:, None]).T @ inputs / len(truth) + decay
        step = torch.linalg.solve(curve, slope)
        size = float(step.norm())
        weights = weights - step / max(size, 1.0)  # steps are limited to length 1: a full step may overshoot
        if size < 1e-10:
            break
    return TrainedShadowAttack(
        highest=highest,
        mean=mean,
        std=std,
        weights=weights,
        members=0,
        non_members=0,
        epochs=0,
        accuracy_members=0.0,
        accuracy_non_members=0.0,
    )
