"""Base classes of poisoning attacks in simulations. An attack is a frozen pydantic model; its fields are its options.

There are two kinds. A `DataAdversary` changes the attackers' training data; the same functions define its goal, so
that `medfl attack poisoning` can measure its success rate. A `ReplyAdversary` changes the attackers' replies after the
filters of their site. Plugins add adversaries with the hook ``medfl_adversaries`` (`medfl.hooks.AdversaryRecord`);
`medfl_attacks` contains those of medfl.

Threat model: all attackers of a run use the same attack, know each other and share one random stream.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch
from pydantic import Field

from medfl.contract import Replies
from medfl.settings import StrictModel
from medfl.task import ImageScale
from medfl.toolkit.aggregation import mean_update
from medfl.types import MODEL_PREFIX, Tensors
from medfl.utils.wire import select


class DataAdversary(StrictModel, ABC):
    """Attack that changes the labels, and possibly the pixels, of attackers' training images.

    Attributes:
        rate: Share, in (0, 1], of the images that the attack changes among the images that `touches` selects.
    """

    rate: float = Field(1.0, gt=0, le=1)

    @abstractmethod
    def label(self, labels: torch.Tensor, classes: int) -> torch.Tensor:
        """Return the wrong labels that attackers give to images, and that they want models to predict.

        Args:
            labels: True labels, shape (n,), int64, each in [0, classes).
            classes: Number of classes.

        Returns:
            Labels, shape (n,), int64.
        """

    def touches(self, labels: torch.Tensor) -> torch.Tensor:
        """Select the images that the attack may change. By default, select all images.

        Args:
            labels: True labels, shape (n,), int64.

        Returns:
            True for each selected image, shape (n,), bool.
        """
        return torch.ones(len(labels), dtype=torch.bool)

    def change(self, inputs: torch.Tensor, scale: ImageScale | None) -> torch.Tensor:
        """Return changed images, before any augmentation. By default, return the images unchanged.

        Args:
            inputs: Batch of B images with C channels, shape (B, C, *spatial), normalised as a network receives them.
                The tensor must not be changed in place.
            scale: Normalisation of the task's images, or None if it is not known.
        """
        return inputs

    def check(self, classes: int, scale: ImageScale | None) -> None:
        """Check that the attack is possible on a task. By default, accept every task.

        Args:
            classes: Number of classes.
            scale: Normalisation of the task's images, or None if it is not known.

        Raises:
            SettingsError: If the attack is not possible.
        """
        return


@dataclass(frozen=True)
class AttackerKnowledge:
    """Information that attackers have when they reply: all replies of the step, and the server's last model change.

    Attributes:
        replies: All replies of the step, before the attack changed any reply.
        attackers: Names of the attackers in the step, sorted.
        last_change: Change of the server's model between the last two requests to attackers: maps the names of the
            reply's tensors to differences. Empty at the first request, and for attacks that do not need the change
            (`ReplyAdversary.remembers`).
    """

    replies: Replies
    attackers: tuple[str, ...]
    last_change: Tensors = field(default_factory=dict)

    @property
    def honest(self) -> tuple[str, ...]:
        """Names of the honest sites in the step, sorted."""
        return tuple(sorted(set(self.replies.meta) - set(self.attackers)))

    @property
    def sizes(self) -> Mapping[str, float]:
        """Maps each site to its number of training images; 1 for a site that does not disclose it."""
        return {site: float(meta.get("size", 1.0)) for site, meta in self.replies.meta.items()}

    @cached_property
    def honest_mean(self) -> Tensors:
        """Unweighted mean of the updates of honest sites, by tensor name, float64; empty without honest sites."""
        return _floats(mean_update(self.replies, dict.fromkeys(self.honest, 1 / max(len(self.honest), 1))))

    @cached_property
    def honest_deviation(self) -> Tensors:
        """Standard deviation of the updates of honest sites for each coordinate, by tensor name, float64.

        The sum of squares of n updates is divided by n - 1. A single update gives zeros.
        """
        squares = {name: torch.zeros_like(mean) for name, mean in self.honest_mean.items()}
        for site, tensors in self.replies:
            if site in self.honest:
                for name, update in _floats(select(tensors, MODEL_PREFIX)).items():
                    squares[name] += (update.double() - self.honest_mean[name]).square()
        return {name: (total / max(len(self.honest) - 1, 1)).sqrt() for name, total in squares.items()}


class ReplyAdversary(StrictModel, ABC):
    """Attack that changes the replies of attackers after they trained honestly."""

    @property
    def remembers(self) -> bool:
        """True if the attack needs `AttackerKnowledge.last_change`.

        Attackers then store the models that they received.
        """
        return False

    @abstractmethod
    def reply(self, update: Tensors, knowledge: AttackerKnowledge, generator: torch.Generator) -> Tensors:
        """Return the tensors that an attacker sends instead of its update.

        Args:
            update: Floating tensors of the attacker's honest update, by name.
            knowledge: Information that all attackers have.
            generator: Random stream of all attackers, who draw in the order of their names.

        Returns:
            Tensors with the same names and shapes, of any floating dtype.
        """

    def check(self, sites: int, attackers: int) -> None:
        """Check that the attack is possible with a number of attackers. By default, accept every number.

        An implementation may also log a warning.

        Args:
            sites: Number of sites that train.
            attackers: Number of attackers among them.

        Raises:
            SettingsError: If the attack is not possible.
        """
        return


def root_mean_square(tensors: Tensors) -> float:
    """Return the root mean square of all numbers of several tensors together; 0 without numbers."""
    count = sum(tensor.numel() for tensor in tensors.values())
    squares = sum(float(tensor.double().square().sum()) for tensor in tensors.values())
    return (squares / count) ** 0.5 if count else 0.0


def gaussian_noise(tensors: Tensors, deviation: float, generator: torch.Generator) -> Tensors:
    """Draw Gaussian noise with mean 0 in the shapes of tensors, in the order of their names.

    Args:
        tensors: Tensors whose names and shapes the noise has.
        deviation: Standard deviation of the noise.
        generator: Generator of the noise.

    Returns:
        Noise by the name of the tensor, float64.
    """
    return {
        name: deviation * torch.randn(tensors[name].shape, generator=generator, dtype=torch.float64)
        for name in sorted(tensors)
    }


def _floats(tensors: Tensors) -> Tensors:
    return {name: tensor for name, tensor in tensors.items() if tensor.is_floating_point()}
