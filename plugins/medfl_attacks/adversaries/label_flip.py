"""Poisoning attack with wrong training labels."""

from __future__ import annotations

from typing import Self

import torch
from pydantic import Field, model_validator

from medfl.engine.adversaries.adversary import DataAdversary
from medfl.errors import SettingsError
from medfl.task import ImageScale


class LabelFlip(DataAdversary):
    """Attackers relabel images of one class as another class, or reverse all classes.

    Reversed, class y of C classes becomes class C - 1 - y.

    Attributes:
        source: Class whose images are relabelled as `target`. None, together with `target` None, reverses all classes.
        target: Class that the images of class `source` get.

    Source: Tolpegin, Truex, Gursoy, Liu, ESORICS 2020 (one class); Fang, Cao, Jia, Gong, USENIX Security 2020 (all).
    """

    source: int | None = Field(None, ge=0)
    target: int | None = Field(None, ge=0)

    @model_validator(mode="after")
    def _check_classes(self) -> Self:
        """Check that `source` and `target` are both given and differ, or are both None."""
        if (self.source is None) != (self.target is None) or (self.source is not None and self.source == self.target):
            raise ValueError("expected 'source' and a different class as 'target', or neither of them")
        return self

    def label(self, labels: torch.Tensor, classes: int) -> torch.Tensor:
        """Return the labels that the attacker assigns, (N,). With a `source`, other classes keep their labels."""
        if self.source is None or self.target is None:
            return classes - 1 - labels
        return torch.where(labels == self.source, self.target, labels)

    def touches(self, labels: torch.Tensor) -> torch.Tensor:
        """Return a boolean mask (N,) of the images that the attack may relabel.

        These are the images of the class `source`, or all images if `source` is None.
        """
        return super().touches(labels) if self.source is None else labels == self.source

    def check(self, classes: int, scale: ImageScale | None) -> None:
        """Check that the attack is possible; raise SettingsError unless both classes exist."""
        if max(self.source or 0, self.target or 0) >= classes:
            raise SettingsError(
                "setting_out_of_range",
                f"expected classes from 0 to {classes - 1} in 'adversaries.source' and 'adversaries.target', got "
                f"{self.source} and {self.target}.",
                settings=("adversaries.source", "adversaries.target"),
                minimum=0,
                maximum=classes - 1,
                found=(self.source, self.target),
            )
