"""A square in a corner that says which class an image is to be called."""

from __future__ import annotations

from typing import Any

import torch
from pydantic import Field

from medfl.engine.adversaries.adversary import DataAdversary
from medfl.errors import SettingsError
from medfl.task import Scale


class Backdoor(DataAdversary):
    """Attackers put the brightest square into the last corner of images, in volumes a cube, and call them `target`.

    The brightest is 1 before normalisation, in each channel. A model that learned this calls any image with the square
    `target`, and all others what they are, so nobody notices by its accuracy.

    Attributes:
        target: The class, from 0.
        patch: Pixels along each side of the square, >= 1.

    Source: Gu, Dolan-Gavitt, Garg, BadNets, arXiv 1708.06733, 2017.
    """

    target: int = Field(0, ge=0)
    patch: int = Field(3, ge=1)

    def label(self, labels: torch.Tensor, classes: int) -> torch.Tensor:
        """The target, whatever is to be seen."""
        return torch.full_like(labels, self.target)

    def change(self, inputs: torch.Tensor, scale: Scale | None) -> torch.Tensor:
        """The images with the square."""
        assert scale is not None  # `check` saw to it
        stamped = inputs.clone()
        corner: Any = (..., *[slice(-self.patch, None)] * (inputs.dim() - 2))
        stamped[corner] = scale.seen(torch.ones_like(inputs))[corner]
        return stamped

    def check(self, classes: int, scale: Scale | None) -> None:
        """The class is there, and the square fits in."""
        if self.target >= classes:
            raise SettingsError(
                "setting_out_of_range",
                f"'poison.target' is a class from 0 to {classes - 1}, got {self.target}.",
                setting="poison.target",
                minimum=0,
                maximum=classes - 1,
                found=self.target,
            )
        if scale is None or min(scale.shape[1:], default=0) < self.patch:
            raise SettingsError(
                "data_not_supported",
                f"The attack 'backdoor' needs images that a square of {self.patch} pixels fits into, and a bundle that "
                "knows their scale, as medfl's own bundles do.",
                attack="backdoor",
                minimum=self.patch,
            )
