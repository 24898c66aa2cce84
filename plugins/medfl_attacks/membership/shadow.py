"""The shadow-model attack: a network of the attacker's own shows how a network answers on images it was trained on.

Source: Shokri et al., "Membership inference attacks against machine learning models", S&P 2017, with one shadow network
and the highest probabilities as in Salem et al., "ML-Leaks", NDSS 2019.
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
from medfl.utils.rng import make_generator, pinned
from medfl_attacks.attack_files import ShadowNetwork

SMALLEST = 10
"""Fewest images of a shadow set: half of them are members of the shadow network."""

LIMIT = 30.0
"""Largest log-odds of a probability that the attack looks at, either way; beyond it float32 says nothing."""

DECAY = 1e-2
"""Weight of the squared coefficients in the attack's logistic regression."""


class Chosen:
    """Some rows of a data set.

    Args:
        data: The data set.
        rows: (n,), int64.
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
        """Images and labels of some of these rows."""
        return self._data.batch(self._rows[rows])

    def targets(self, rows: torch.Tensor) -> torch.Tensor:
        """The targets of some of these rows."""
        return self._data.targets(self._rows[rows])


def matched(
    first: torch.Tensor, second: torch.Tensor, generator: torch.Generator, most: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Equally many rows of each class from two sets, so that no class tells which set an image is of.

    Args:
        first: Labels of the one set.
        second: Labels of the other.
        generator: Which rows.
        most: Largest number of rows from each set, or None; classes keep their proportions, by largest remainder.

    Returns:
        Rows of the first and of the second set, equally many, by class.
    """
    ones, others = ({int(labels[rows[0]]): rows for rows in class_rows(labels)} for labels in (first, second))
    counts = {name: min(len(ones[name]), len(others[name])) for name in sorted(ones.keys() & others.keys())}
    chosen: list[list[torch.Tensor]] = [[], []]
    for name, count in _limited(counts, most).items():
        for rows, drawn in zip((ones[name], others[name]), chosen, strict=True):
            drawn.append(rows[torch.randperm(len(rows), generator=generator)[:count]])
    empty = torch.empty(0, dtype=torch.int64)
    return torch.cat([empty, *chosen[0]]), torch.cat([empty, *chosen[1]])


def _limited(counts: dict[int, int], most: int | None) -> dict[int, int]:
    """Counts that add up to at most `most`, in about the same proportions."""
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
class ShadowAttack:
    """A trained attack: scores by logistic regression on the log-odds of the highest probabilities.

    Attributes:
        highest: How many of them, min(3, classes).
        mean: Of each feature on the shadow set, (k,), float64.
        std: Likewise, > 0.
        weights: (k + 1,), float64; the last is the constant.
        members: Images that the shadow network was trained on.
        others: Images that it was not.
        epochs: Passes over the former.
        fits: Its accuracy on the former.
        transfers: Its accuracy on the latter.
    """

    highest: int
    mean: torch.Tensor
    std: torch.Tensor
    weights: torch.Tensor
    members: int
    others: int
    epochs: int
    fits: float
    transfers: float

    def description(self, network: str) -> ShadowNetwork:
        """Return the description of the shadow network.

        Args:
            network: Name of the network.
        """
        return ShadowNetwork(
            network=network,
            members=self.members,
            non_members=self.others,
            epochs=self.epochs,
            highest=self.highest,
            accuracy_members=self.fits,
            accuracy_non_members=self.transfers,
        )

    def scores(self, target: torch.Tensor) -> torch.Tensor:
        """Log-odds of being a member, (n,), float64, from a target's logits (n, C); above 0 it says "member"."""
        features = (highest_log_odds(target, self.highest) - self.mean) / self.std
        return features @ self.weights[:-1] + self.weights[-1]


def highest_log_odds(outputs: torch.Tensor, count: int) -> torch.Tensor:
    """Log-odds log(p / (1 - p)) of the highest probabilities, highest first: (n, count), float64, from logits (n, C).

    They say the same as the probabilities, which are all but 0 or 1 where a network is sure, and spread them out.
    """
    logs = outputs.double().log_softmax(dim=1)
    top = logs.topk(count, dim=1).values
    return (top - (-torch.expm1(top)).log()).clamp(-LIMIT, LIMIT)


def check_shadow_set(data: Dataset, name: str) -> None:
    """Refuse a set that is too small to train a shadow network and to judge it.

    Raises:
        SettingsError: If it is.
    """
    if len(data) < SMALLEST:
        raise SettingsError(
            "too_few_images",
            f"expected at least {SMALLEST} images ({name}) to train a shadow network, got {len(data)}. Choose other "
            "images with --shadow, or --shadow none for the threshold of the loss alone.",
            name=name,
            minimum=SMALLEST,
            found=len(data),
        )


def epochs_of(settings: Settings, images: float) -> int:
    """How often a run visits each training image: what a shadow network is trained for.

    Args:
        settings: The run's.
        images: Mean number of training images at a site.
    """
    each = settings.epochs if settings.steps is None else settings.steps * settings.batch_size / max(images, 1)
    return max(1, round(settings.rounds * settings.fraction * each))


def train_attack(
    task: Task,
    settings: Settings,
    data: Dataset,
    epochs: int,
    seed: int,
    network: str | None = None,
    gradient_clip: float | None = None,
    after_batch: Callable[[], None] = lambda: None,
) -> ShadowAttack:
    """Train a shadow network on half of a set, and the attack on its answers to both halves.

    Args:
        task: Network, loss, optimiser, augmentation and device of the run.
        settings: The run's; its privacy is left out, an attacker adds no noise.
        data: The shadow set, at least `SMALLEST` images, none of them a member or another image that is attacked.
        epochs: Passes over the shadow's members, >= 1.
        seed: Of the halves, the network and its batches.
        network: Its name in the task; None means the task's own.
        gradient_clip: As the run's method has it.
        after_batch: Called after each step.
    """
    half = stratified_share(labels_of(data), 0.5, make_generator(seed, "shadow halves"))
    outside = torch.ones(len(data), dtype=torch.bool)
    outside[half] = False
    inner, outer = Chosen(data, half), Chosen(data, outside.nonzero(as_tuple=True)[0])
    own = settings.model_copy(update={"epochs": epochs, "steps": None, "privacy": None})
    weighted = task.weighted(inner.labels) if settings.balance == "loss" else task
    model = weighted.load(task.initial(seed, network, owner="shadow"), network)
    with pinned(seed, "shadow training"):
        train(
            model,
            inner,
            lambda batch: weighted.loss(model(batch.images), batch.targets),
            weighted.optimizer(model.parameters()),
            own,
            make_generator(seed, "shadow batches"),
            task.device,
            after_batch=after_batch,
            gradient_clip=gradient_clip,
            augment=weighted.augment(make_generator(seed, "shadow augmentation")),
        )
    answers = [logits(model, part, settings, task.device) for part in (inner, outer)]
    rights = [
        float((answer.argmax(dim=1) == part.labels).double().mean())
        for answer, part in zip(answers, (inner, outer), strict=True)
    ]
    rows = matched(inner.labels, outer.labels, make_generator(seed, "shadow rows"))
    attack = _fit(answers[0][rows[0]], answers[1][rows[1]], min(3, task.objective.classes))
    return replace(attack, members=len(inner), others=len(outer), epochs=epochs, fits=rights[0], transfers=rights[1])


def _fit(members: torch.Tensor, others: torch.Tensor, highest: int) -> ShadowAttack:
    """The logistic regression, by Newton's method: convex, so that there is one solution and nothing to draw."""
    features = highest_log_odds(torch.cat([members, others]), highest)
    mean, std = features.mean(dim=0), features.std(dim=0).clamp(min=1e-6)
    inputs = torch.cat([(features - mean) / std, torch.ones(len(features), 1, dtype=torch.float64)], dim=1)
    truth = torch.cat([torch.ones(len(members)), torch.zeros(len(others))]).double()
    weights = torch.zeros(inputs.shape[1], dtype=torch.float64)
    decay = DECAY * torch.eye(inputs.shape[1], dtype=torch.float64)
    for _ in range(100):
        predicted = (inputs @ weights).sigmoid()
        slope = inputs.T @ (predicted - truth) / len(truth) + decay @ weights
        curve = (inputs * (predicted * (1 - predicted))[:, None]).T @ inputs / len(truth) + decay
        step = torch.linalg.solve(curve, slope)
        size = float(step.norm())
        weights = weights - step / max(size, 1.0)  # never further than 1: a full step may overshoot
        if size < 1e-10:
            break
    return ShadowAttack(highest, mean, std, weights, 0, 0, 0, 0.0, 0.0)
