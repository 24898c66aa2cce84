"""Wrong labels."""

from __future__ import annotations

from typing import Self

import torch
from pydantic import Field, model_validator

from medfl.engine.adversaries.adversary import DataAdversary
from medfl.errors import SettingsError
from medfl.task import Scale


class LabelFlip(DataAdversary):
    """Attackers call images of one class another, or turn all classes round: class y of C becomes C - 1 - y.

    Attributes:
        source: Class whose images are called `target`; None, with no target, turns all classes round.
        target: What they are called.

    Source: Tolpegin, Truex, Gursoy, Liu, ESORICS 2020 (one class); Fang, Cao, Jia, Gong, USENIX Security 2020 (all).
    """

    source: int | None = Field(None, ge=0)
    target: int | None = Field(None, ge=0)

    @model_validator(mode="after")
    def _both_or_none(self) -> Self:
        if (self.source is None) != (self.target is None) or (self.source is not None and self.source == self.target):
            raise ValueError("give 'source' and another class as 'target', or neither")
        return self

    def label(self, labels: torch.Tensor, classes: int) -> torch.Tensor:
        """The wrong labels; with a `source`, those of other classes stay right."""
        if self.source is None or self.target is None:
            return classes - 1 - labels
        return torch.where(labels == self.source, self.target, labels)

    def touches(self, labels: torch.Tensor) -> torch.Tensor:
        """Those of the source."""
        return super().touches(labels) if self.source is None else labels == self.source

    def check(self, classes: int, scale: Scale | None) -> None:
        """Both classes are there."""
        if max(self.source or 0, self.target or 0) >= classes:
            raise SettingsError(
                "setting_out_of_range",
                f"'poison.source' and 'poison.target' are classes from 0 to {classes - 1}, got {self.source} and "
                f"{self.target}.",
                settings=("poison.source", "poison.target"),
                minimum=0,
                maximum=classes - 1,
                found=(self.source, self.target),
            )
