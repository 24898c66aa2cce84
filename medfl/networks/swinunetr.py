"""MONAI's transformer for masks, see `medfl.networks.masks`."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from monai.networks import nets
from torch import nn

from medfl.errors import SettingsError, pip_install
from medfl.networks.masks import Edges, layer_spec, make_ready, refusals
from medfl.networks.resnet_blocks import LayerSpec


class SwinUNETR(nets.SwinUNETR):
    """MONAI's transformer of shifted windows with a convolutional decoder (Hatamizadeh et al. 2022).

    Args:
        in_channels: Channels of an image, >= 1.
        out_channels: Channels of the logits, >= 1.
        spatial_dims: 2 for images, 3 for volumes.
        feature_size: Channels of the first level, a multiple of 12; each further one has twice as many.
        depths: Blocks of each of the four stages.
        num_heads: Of attention in each stage.
        window_size: Edge of the windows.
        norm: Normalisation of the convolutions by MONAI's name, or a pair of name and options.
        dropout: In [0, 1].
        size: As for `medfl.networks.unet.UNet`; edges are multiples of 32.

    Raises:
        SettingsError: If an argument is impossible, or the package einops is not installed.
    """

    def __init__(
        self,
        in_channels: int = 1,
        out_channels: int = 2,
        spatial_dims: int = 3,
        feature_size: int = 24,
        depths: Sequence[int] = (2, 2, 2, 2),
        num_heads: Sequence[int] = (3, 6, 12, 24),
        window_size: Edges = 7,
        norm: LayerSpec = "instance",
        dropout: float = 0.0,
        size: Edges | None = None,
    ) -> None:
        if find_spec("einops") is None:
            raise SettingsError(
                "missing_package",
                "SwinUNETR needs the package einops, which is not installed. Install it with "
                f"{pip_install('swin')}, or choose another network.",
                package="einops",
                extra="swin",
            )
        with refusals("SwinUNETR"):
            super().__init__(
                in_channels,
                out_channels,
                depths=tuple(depths),
                num_heads=tuple(num_heads),
                window_size=window_size,
                feature_size=feature_size,
                norm_name=layer_spec(norm),
                drop_rate=dropout,
                spatial_dims=spatial_dims,
            )
        make_ready(self, size, [2**5] * spatial_dims)

    @property
    def head(self) -> nn.Module:
        """The convolution of one voxel to the logits, ``out``."""
        return self.out

    @property
    def feature_layers(self) -> list[nn.Module]:
        """The convolutions behind the image and the stages of windows, whose outputs go across to the decoder."""
        return [self.encoder1, self.encoder2, self.encoder3, self.encoder4, self.encoder10]
