"""Poisoning attack BadNets: a bright square in a corner of an image that triggers a target class."""

from __future__ import annotations

from typing import Any

import torch
from pydantic import Field

from medfl.engine.adversaries.adversary import DataAdversary
from medfl.errors import SettingsError
from medfl.task import ImageScale


class Backdoor(DataAdversary):
    """Attackers add a bright square to a corner of their images (a cube in volumes) and label these images as `target`.

    The square covers the last indices of each spatial axis; its value is 1 before normalisation, in each channel. A
    model that learned the backdoor assigns any image with the square to `target` and classifies other images correctly,
    so its accuracy doesn't reveal the attack.

    Attributes:
        target: Target class, counted from 0.
        patch: Pixels along each side of the square, >= 1.

    Source: Gu, Dolan-Gavitt, Garg, BadNets, arXiv 1708.06733, 2017.
    """

    target: int = Field(0, ge=0)
    patch: int = Field(3, ge=1)

    def label(self, labels: torch.Tensor, classes: int) -> torch.Tensor:
        """Return the labels that the attacker wants, (N,): the target class for each image."""
        return torch.full_like(labels, self.target)

    def change(self, inputs: torch.Tensor, scale: ImageScale | None) -> torch.Tensor:
        """Return the images as the attacker changes them: a copy with the square added."""
        assert scale is not None  # `check` refuses tasks without a scale
        stamped = inputs.clone()
        corner: Any = (..., *[slice(-self.patch, None)] * (inputs.dim() - 2))
        stamped[corner] = scale.to_inputs(torch.ones_like(inputs))[corner]
        return stamped

    def check(self, classes: int, scale: ImageScale | None) -> None:
        """Check that the attack is possible; raise SettingsError unless the target class exists and the square fits."""
        if self.target >= classes:
            raise SettingsError(
                "setting_out_of_range",
                f"expected a class from 0 to {classes - 1} in 'adversaries.target', got {self.target}.",
                setting="adversaries.target",
                minimum=0,
                maximum=classes - 1,
                found=self.target,
            )
        if scale is None or min(scale.shape[1:], default=0) < self.patch:
            raise SettingsError(
                "data_not_supported",
                f"The attack 'backdoor' needs images of at least {self.patch} pixels along each axis, and a bundle "
                "that defines their scale, such as medfl's own bundles.",
                attack="backdoor",
                minimum=self.patch,
            )
