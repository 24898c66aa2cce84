"""First step of every encoder: images or slices of volumes become normalised images of one size.

B is the number of images or volumes, S the number of slices of a volume, 3 `SLICES_PER_AXIS`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional as F

from medfl.errors import SettingsError
from medfl_encoders import IMAGENET_MEAN, IMAGENET_STD

SLICES_PER_AXIS = 3
"""Number of slices of a volume along each of its three axes."""


class ImageInput(nn.Module):
    """Conversion of images in [0, 1] to the three normalised channels that pretrained weights expect.

    The steps are: resize to a square with bilinear interpolation (with antialiasing when the image shrinks), repeat a
    single channel three times, subtract the mean and divide by the standard deviation of each channel. Images that
    already have the size are not interpolated. Repeating the channel equals summing the first convolution's weights
    over its three input channels; it also allows a mean for each channel.

    Of a volume, evenly spaced slices along each axis are converted like images, and `mean_of_slices` averages their
    features.

    Args:
        network: Name of the network, for messages.
        in_channels: Number of image channels, 1 or 3.
        spatial_dims: Number of spatial dimensions: 2 for images, 3 for volumes.
        size: Edge of the square in pixels.
        multiple: Number that must divide `size`.
        mean: Mean of each of the three channels, on the scale [0, 1].
        std: Standard deviation of each of the three channels, > 0.

    Attributes:
        size: The argument `size`.
        spatial_dims: The argument `spatial_dims`.
        mean: Buffer (3, 1, 1), which is not part of the state dict.
        std: Buffer (3, 1, 1), which is not part of the state dict.
        facts: JSON description of the conversion for the identity of a run; equal conversions have equal JSON.

    Raises:
        SettingsError: If an argument is invalid.
    """

    def __init__(
        self,
        network: str,
        in_channels: int,
        spatial_dims: int = 2,
        size: int = 224,
        multiple: int = 1,
        mean: Sequence[float] = IMAGENET_MEAN,
        std: Sequence[float] = IMAGENET_STD,
    ) -> None:
        super().__init__()
        if spatial_dims not in (2, 3):
            raise SettingsError(
                "unsupported_dimensions",
                f"{network} expected images or volumes (spatial_dims 2 or 3), got spatial_dims {spatial_dims}. Choose "
                "another network.",
                network=network,
                expected=[2, 3],
                found=spatial_dims,
            )
        if in_channels not in (1, 3):
            raise SettingsError(
                "unsupported_channels",
                f"{network} expected images of 1 or 3 channels, got {in_channels}. Choose another network, such as "
                "resnet10, or prepare images with 1 or 3 channels.",
                network=network,
                expected=[1, 3],
                found=in_channels,
            )
        if not isinstance(size, int) or size < 32 or size % multiple:
            rule = f" that is divisible by {multiple}" if multiple > 1 else ""
            raise SettingsError(
                "setting_out_of_range",
                f"{network} expected a size of at least 32 pixels{rule}, got {size!r}",
                network=network,
                setting="size",
                minimum=32,
                multiple=multiple,
                found=size,
            )
        if len(mean) != 3 or len(std) != 3 or min(std) <= 0:
            raise SettingsError(
                "setting_out_of_range",
                f"{network} expected three numbers for mean and three positive ones for std, got {list(mean)} and "
                f"{list(std)}",
                network=network,
                setting="mean, std",
                found=[list(mean), list(std)],
            )
        self.size, self.spatial_dims = size, spatial_dims
        self.slices_per_axis = SLICES_PER_AXIS  # TorchScript can't read the constant
        self.facts = {"size": size, "spatial_dims": spatial_dims, "mean": list(mean), "std": list(std)}
        self.mean = nn.Buffer(torch.tensor(mean, dtype=torch.float32).reshape(3, 1, 1), persistent=False)
        self.std = nn.Buffer(torch.tensor(std, dtype=torch.float32).reshape(3, 1, 1), persistent=False)

    def extra_repr(self) -> str:
        """Return the description of the conversion, for the representation of a network as text."""
        return ", ".join(f"{name}={value}" for name, value in self.facts.items())

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Convert images (B, 1 or 3, H, W), or the slices of volumes (B, 1 or 3, D, H, W), in [0, 1].

        Returns:
            Normalised images (B, 3, size, size), or (B * S, 3, size, size) for volumes.
        """
        if self.spatial_dims == 3:
            parts = [self._resize(self._slices(images, axis)) for axis in range(3)]
            by_volume = [part.unflatten(0, [images.shape[0], self.slices_per_axis]) for part in parts]
            images = torch.cat(by_volume, dim=1).flatten(0, 1)
        else:
            images = self._resize(images)
        return (images.expand(-1, 3, -1, -1) - self.mean) / self.std

    def mean_of_slices(self, features: torch.Tensor) -> torch.Tensor:
        """Average features (B * S, d) over the slices of each volume; features of images are returned unchanged."""
        if self.spatial_dims == 3:
            return features.unflatten(0, [-1, 3 * self.slices_per_axis]).mean(dim=1)
        return features

    def _slices(self, volumes: torch.Tensor, axis: int) -> torch.Tensor:
        """Return slices (B * SLICES_PER_AXIS, C, ...) of volumes, in the middles of equal parts of a spatial axis."""
        edge = volumes.shape[2 + axis]
        places = (torch.arange(self.slices_per_axis, device=volumes.device) + 0.5) * edge / self.slices_per_axis
        return volumes.index_select(2 + axis, places.long()).movedim(2 + axis, 1).flatten(0, 1)

    def _resize(self, images: torch.Tensor) -> torch.Tensor:
        """Resize images (B, C, H, W) to a square of `size`."""
        if images.shape[-2] != self.size or images.shape[-1] != self.size:
            images = F.interpolate(images, [self.size, self.size], mode="bilinear", antialias=True)
        return images
