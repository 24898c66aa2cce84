"""What a poisoning attack is: a frozen pydantic model whose fields are its settings.

There are two kinds. A `DataAdversary` changes the attackers' training data; the same functions define its goal, so
that `medfl attack poisoning` can measure its success rate. A `ReplyAdversary` changes the attackers' replies after the
filters of their site. Plugins add adversaries with the hook ``medfl_adversaries`` (`medfl.hooks.AdversaryRecord`);
`medfl_attacks` contains those of medfl.

All attackers of a run do the same, know each other and share one random stream. They exist in simulations only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch
from pydantic import Field

from medfl.contract import Replies
from medfl.settings import Strict
from medfl.task import Scale
from medfl.toolkit.aggregation import mean_update
from medfl.types import MODEL, Tensors
from medfl.utils.wire import select


class DataAdversary(Strict, ABC):
    """An attack on what attackers train on: wrong labels, and images that are changed.

    Attributes:
        rate: Share of the attacker's training images that are changed, of those that `touches` names; in (0, 1].
    """

    rate: float = Field(1.0, gt=0, le=1)

    @abstractmethod
    def label(self, labels: torch.Tensor, classes: int) -> torch.Tensor:
        """What attackers call images of these classes, and want models to call them, (n,), int64.

        Args:
            labels: (n,), int64, each in [0, classes).
            classes: How many classes there are.
        """

    def touches(self, labels: torch.Tensor) -> torch.Tensor:
        """Which images may be changed, (n,), bool; by default all."""
        return torch.ones(len(labels), dtype=torch.bool)

    def change(self, inputs: torch.Tensor, scale: Scale | None) -> torch.Tensor:
        """What attackers do to images, before any augmentation; by default nothing.

        Args:
            inputs: (B, C, *spatial), as a network sees them; not to be changed in place.
            scale: Of the task's images; None where nobody knows.
        """
        return inputs

    def check(self, classes: int, scale: Scale | None) -> None:
        """Refuse a task that the attack is not possible on.

        Raises:
            SettingsError: Naming what was expected.
        """
        return


@dataclass(frozen=True)
class Knowledge:
    """What attackers know when they reply: all replies of the step, and how the server's model moved.

    Attributes:
        replies: Of the step, as they were before any of them was changed.
        attackers: Those of the sites in it that attack, sorted.
        last_change: How the server's model changed between the last two orders that attackers got, by the names of the
            reply's tensors; empty in the first of them, and for attacks that don't ask for it (`remembers`).
    """

    replies: Replies
    attackers: tuple[str, ...]
    last_change: Tensors = field(default_factory=dict)

    @property
    def honest(self) -> tuple[str, ...]:
        """The other sites in the step, sorted."""
        return tuple(sorted(set(self.replies.meta) - set(self.attackers)))

    @property
    def sizes(self) -> Mapping[str, float]:
        """Site to its number of training images as told; sites that keep it at home count 1."""
        return {site: float(meta.get("size", 1.0)) for site, meta in self.replies.meta.items()}

    @cached_property
    def honest_mean(self) -> Tensors:
        """The plain mean of the honest updates, float64; empty if there are none."""
        return _floats(mean_update(self.replies, dict.fromkeys(self.honest, 1 / max(len(self.honest), 1))))

    @cached_property
    def honest_deviation(self) -> Tensors:
        """The standard deviation of the honest updates coordinate by coordinate, float64, with n - 1; zeros for one."""
        squares = {name: torch.zeros_like(mean) for name, mean in self.honest_mean.items()}
        for site, tensors in self.replies:
            if site in self.honest:
                for name, update in _floats(select(tensors, MODEL)).items():
                    squares[name] += (update.double() - self.honest_mean[name]).square()
        return {name: (total / max(len(self.honest) - 1, 1)).sqrt() for name, total in squares.items()}


class ReplyAdversary(Strict, ABC):
    """An attack on what attackers reply."""

    @property
    def remembers(self) -> bool:
        """Whether it asks for `Knowledge.last_change`."""
        return False

    @abstractmethod
    def reply(self, update: Tensors, knowledge: Knowledge, generator: torch.Generator) -> Tensors:
        """What an attacker replies in place of its update.

        Args:
            update: The floating tensors of its update, by name; it trained as if it were honest.
            knowledge: Of all attackers.
            generator: Theirs; attackers draw in the order of their names.

        Returns:
            Tensors in place of those of the same names and shapes, of any floating dtype.
        """

    def check(self, sites: int, attackers: int) -> None:
        """Refuse, or warn of, an attack that is none with so many attackers among so many sites.

        Raises:
            SettingsError: Naming what was expected.
        """
        return


def root_mean_square(tensors: Tensors) -> float:
    """Over all numbers of some tensors together; 0 without any."""
    count = sum(tensor.numel() for tensor in tensors.values())
    squares = sum(float(tensor.double().square().sum()) for tensor in tensors.values())
    return (squares / count) ** 0.5 if count else 0.0


def gaussian_noise(tensors: Tensors, deviation: float, generator: torch.Generator) -> Tensors:
    """Gaussian noise of mean 0 in the shapes of some tensors, drawn in the order of their names."""
    return {
        name: deviation * torch.randn(tensors[name].shape, generator=generator, dtype=torch.float64)
        for name in sorted(tensors)
    }


def _floats(tensors: Tensors) -> Tensors:
    return {name: tensor for name, tensor in tensors.items() if tensor.is_floating_point()}
