"""Random changes of colour, which MONAI lacks, for photographs and for images of light microscopes."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
from monai.transforms import MapTransform, RandomizableTransform
from monai.utils import convert_to_tensor

from medfl.errors import SettingsError

LUMA = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in the brightness of a pixel (ITU-R BT.601)."""


class RandColourd(RandomizableTransform, MapTransform):
    """Changes brightness, contrast and saturation at random, and takes the colour away from some images.

    Each of the first three factors is uniform in [1 - strength, 1 + strength]. As in torchvision's ``ColorJitter``,
    brightness multiplies, contrast scales around the image's mean brightness, saturation around each pixel's own
    brightness; the order is this one, where torchvision draws it. Between them images are in [0, 1] and stay there.

    Args:
        keys: Of images (C, *spatial), normalised; with other than three channels, brightness is their mean.
        mean: That was subtracted from images in [0, 1], one number, or one for each channel.
        std: By which they were divided then.
        brightness: Strength, in [0, 1].
        contrast: Strength, in [0, 1].
        saturation: Strength, in [0, 1].
        grey: Probability of no colour at all, in [0, 1].

    Raises:
        SettingsError: If a strength or the probability is outside [0, 1].
    """

    def __init__(
        self,
        keys: Sequence[str],
        mean: Sequence[float] = (0.5,),
        std: Sequence[float] = (0.5,),
        brightness: float = 0.0,
        contrast: float = 0.0,
        saturation: float = 0.0,
        grey: float = 0.0,
    ) -> None:
        MapTransform.__init__(self, keys)
        RandomizableTransform.__init__(self, 1.0)
        self.mean, self.std = tuple(mean), tuple(std)
        self.strengths = (brightness, contrast, saturation)
        self.grey = grey
        if not all(0 <= value <= 1 for value in (*self.strengths, grey)):
            raise SettingsError(
                "setting_out_of_range",
                f"RandColourd expected strengths and grey in [0, 1], got {self.strengths} and {grey}",
                settings=["strengths", "grey"],
                minimum=0,
                maximum=1,
                found=[*self.strengths, grey],
            )

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        """The same dictionary with changed images."""
        factors = [float(self.R.uniform(1 - strength, 1 + strength)) for strength in self.strengths]
        if float(self.R.uniform()) < self.grey:
            factors[2] = 0.0
        changed = dict(data)
        for key in self.key_iterator(changed):
            changed[key] = self._change(convert_to_tensor(changed[key], track_meta=False), *factors)
        return changed

    def _change(self, image: torch.Tensor, brightness: float, contrast: float, saturation: float) -> torch.Tensor:
        mean, std = _channels(self.mean, image), _channels(self.std, image)
        pixels = ((image * std + mean) * brightness).clamp(0, 1)
        pixels = _mixed(pixels, _brightness(pixels).mean(), contrast)
        pixels = _mixed(pixels, _brightness(pixels), saturation)
        return (pixels - mean) / std


def _mixed(pixels: torch.Tensor, around: torch.Tensor, factor: float) -> torch.Tensor:
    return (around + factor * (pixels - around)).clamp(0, 1)


def _brightness(pixels: torch.Tensor) -> torch.Tensor:
    """(1, *spatial) of pixels (C, *spatial)."""
    if len(pixels) != len(LUMA):
        return pixels.mean(dim=0, keepdim=True)
    return (_channels(LUMA, pixels) * pixels).sum(dim=0, keepdim=True)


def _channels(values: Sequence[float], image: torch.Tensor) -> torch.Tensor:
    """A value for each channel of an image (C, *spatial), or one for all, in the shape (C or 1, 1, ...)."""
    return image.new_tensor(values).reshape(-1, *[1] * (image.dim() - 1))
