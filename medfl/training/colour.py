"""Random colour augmentation, which MONAI lacks, for photographs and light microscopy."""

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
    """MONAI transform that changes brightness, contrast and saturation at random, and makes some images grey.

    The factors of brightness, contrast and saturation are uniform in [1 - strength, 1 + strength]. As in torchvision's
    ``ColorJitter``, brightness multiplies the image, contrast scales it around its mean brightness, and saturation
    scales it around each pixel's brightness. They are applied in this order, which torchvision draws at random. Pixels
    are clipped to [0, 1] after each change.

    Args:
        keys: Keys of images (C, *spatial), normalised. Without exactly three channels, the brightness is the channel
            mean.
        mean: Mean that was subtracted from images in [0, 1], one number or one per channel.
        std: Standard deviation that the images were divided by, one number or one per channel.
        brightness: Strength, in [0, 1].
        contrast: Strength, in [0, 1].
        saturation: Strength, in [0, 1].
        grey: Probability of a grey image, in [0, 1].

    Attributes:
        mean: The argument `mean` as a tuple.
        std: The argument `std` as a tuple.
        strengths: Strengths of brightness, contrast and saturation.
        grey: The argument `grey`.

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
        """Return a copy of the dictionary with randomly changed images; all images get the same factors."""
        factors = [float(self.R.uniform(1 - strength, 1 + strength)) for strength in self.strengths]
        if float(self.R.uniform()) < self.grey:
            factors[2] = 0.0
        changed = dict(data)
        for key in self.key_iterator(changed):
            changed[key] = self._change(convert_to_tensor(changed[key], track_meta=False), *factors)
        return changed

    def _change(self, image: torch.Tensor, brightness: float, contrast: float, saturation: float) -> torch.Tensor:
        """Return the image with the factors of brightness, contrast and saturation applied."""
        mean, std = _channels(self.mean, image), _channels(self.std, image)
        pixels = ((image * std + mean) * brightness).clamp(0, 1)
        pixels = _scale_around(pixels, _brightness(pixels).mean(), contrast)
        pixels = _scale_around(pixels, _brightness(pixels), saturation)
        return (pixels - mean) / std


def _scale_around(pixels: torch.Tensor, around: torch.Tensor, factor: float) -> torch.Tensor:
    """Scale the pixels around a value by a factor, and clip them to [0, 1]."""
    return (around + factor * (pixels - around)).clamp(0, 1)


def _brightness(pixels: torch.Tensor) -> torch.Tensor:
    """Return the brightness (1, *spatial) of pixels (C, *spatial)."""
    if len(pixels) != len(LUMA):
        return pixels.mean(dim=0, keepdim=True)
    return (_channels(LUMA, pixels) * pixels).sum(dim=0, keepdim=True)


def _channels(values: Sequence[float], image: torch.Tensor) -> torch.Tensor:
    """Reshape one value per channel, or one for all, for broadcasting over an image (C, *spatial)."""
    return image.new_tensor(values).reshape(-1, *[1] * (image.dim() - 1))
