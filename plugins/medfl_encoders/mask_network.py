"""Segmentation of images with a pretrained encoder: EfficientNet-lite0's feature maps, and a small decoder."""

from __future__ import annotations

import itertools
import math
from typing import ClassVar

import torch
from torch import nn

from medfl.errors import SettingsError
from medfl.networks.segmentation_common import EdgeLengths
from medfl_encoders.efficientnet_lite import EfficientNetLite0
from medfl_encoders.image_input import ImageInput

GRID_STRIDE = 8
"""Stride, in pixels of the encoder's input, of the grid on which feature maps are joined."""

JOINED_STAGES = (2, 4, 6)
"""Numbers, from 0, of the last stages of strides 8, 16 and 32."""


class FeatureMaps(nn.Module):
    """Encoder that joins the feature maps of strides 8, 16 and 32 on the grid of stride 8.

    Its tensors have the names and shapes of `medfl_encoders.inverted_residual.InvertedResidualBody`, without the last
    convolution.

    Args:
        image_input: Conversion of the images.

    Attributes:
        channels: Number of channels of the joined maps.
    """

    def __init__(self, image_input: ImageInput) -> None:
        super().__init__()
        network = EfficientNetLite0(size=image_input.size)
        self.image_input, self.stem, self.blocks = image_input, network.body.stem, network.body.blocks
        stages = EfficientNetLite0.stages
        ends = list(itertools.accumulate(stage.blocks for stage in stages))
        self.joined = [ends[number] - 1 for number in JOINED_STAGES]
        self.channels = sum(stages[number].channels for number in JOINED_STAGES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Compute maps (B, channels, size / 8, size / 8) of images (B, C, H, W) in [0, 1]."""
        x, maps = self.stem(self.image_input(images)), []
        for number, block in enumerate(self.blocks):
            x = block(x)
            if number in self.joined:
                maps.append(x)
        return torch.cat([repeat_positions(part, maps[0].shape[-1] // part.shape[-1]) for part in maps], dim=1)


def repeat_positions(maps: torch.Tensor, factor: int) -> torch.Tensor:
    """Repeat each position of maps (B, C, H, W) along both axes, as nearest-neighbour upsampling does.

    Unlike that of `torch.nn.functional.interpolate`, its gradient is deterministic on a GPU.
    """
    batch, channels, height, width = maps.shape
    wide = maps[:, :, :, None, :, None].expand(batch, channels, height, factor, width, factor)
    return wide.reshape(batch, channels, height * factor, width * factor)


class EfficientNetLite0Masks(nn.Module):
    """Segmentation network with the encoder of `EfficientNetLite0`, for images of one size.

    The encoder can start from EfficientNet-lite0's weights; its last convolution has no place here, so use
    ``--start efficientnet_lite0 --start-skip body.final``. With ``--train-part head`` the decoder learns alone.
    The network normalises images in [0, 1] itself, so a bundle must not normalise them before.

    Args:
        in_channels: Number of image channels, 1 or 3.
        out_channels: Number of logit channels, >= 1.
        size: Edge of the square images in pixels, or a pair of equal edges: ``encoder_size / 8`` times 2, 4, 8, ...
        encoder_size: Edge in pixels to which the encoder resizes images, divisible by 32.
        width: Number of channels of the decoder's first layer; each doubling of the resolution halves it.

    Attributes:
        body: Encoder from images to joined feature maps.
        head: Decoder from the maps to logits (B, out_channels, size, size).

    Raises:
        SettingsError: If an argument is invalid.
    """

    __jit_unused_properties__: ClassVar = ["feature_layers"]  # TorchScript has no lists of modules

    def __init__(
        self,
        in_channels: int = 3,
        out_channels: int = 2,
        size: EdgeLengths = 128,
        encoder_size: int = 128,
        width: int = 64,
    ) -> None:
        super().__init__()
        image_input = ImageInput(
            type(self).__name__,
            in_channels,
            size=encoder_size,
            multiple=32,
            mean=EfficientNetLite0.weights_mean,
            std=EfficientNetLite0.weights_std,
        )
        grid = encoder_size // GRID_STRIDE
        edges = [size] if isinstance(size, int) else list(size)
        doublings = math.log2(edges[0] / grid) if len(set(edges)) == 1 and edges[0] > 0 else 0.0
        if doublings < 1 or doublings != int(doublings):
            raise SettingsError(
                "setting_out_of_range",
                f"{type(self).__name__} with encoder_size {encoder_size} expected square images whose edge is {grid} "
                f"times a power of two, such as {grid * 4}, got {size!r}. Prepare images of that size, or choose "
                "another encoder_size.",
                network=type(self).__name__,
                setting="size",
                expected=[grid * 2, grid * 4, grid * 8],
                found=size,
            )
        if width < 2 ** int(doublings):
            raise SettingsError(
                "setting_out_of_range",
                f"{type(self).__name__} expected a width of at least {2 ** int(doublings)}, got {width}",
                network=type(self).__name__,
                setting="width",
                minimum=2 ** int(doublings),
                found=width,
            )
        self.body = FeatureMaps(image_input)
        layers: list[nn.Module] = [_conv(self.body.channels, width, 1), _conv(width, width, 3)]
        for _ in range(int(doublings)):
            layers += [nn.ConvTranspose2d(width, width // 2, 2, stride=2), _conv(width // 2, width // 2, 3)]
            width //= 2
        self.head = nn.Sequential(*layers, nn.Conv2d(width, out_channels, 1))

    @property
    def feature_layers(self) -> list[nn.Module]:
        """Encoder blocks whose maps are joined."""
        return [self.body.blocks[number] for number in self.body.joined]

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Compute logits (B, out_channels, size, size) of images (B, in_channels, size, size) in [0, 1]."""
        logits: torch.Tensor = self.head(self.body(images))
        return logits


def _conv(inputs: int, outputs: int, kernel: int) -> nn.Sequential:
    """Return a convolution with group normalisation and ReLU."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=False),
        nn.GroupNorm(math.gcd(8, outputs), outputs),
        nn.ReLU(),
    )
