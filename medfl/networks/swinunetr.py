"""MONAI's SwinUNETR, a transformer for segmentation, see `medfl.networks.segmentation_common`."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from monai.networks import nets
from torch import nn

from medfl.errors import SettingsError, pip_install
from medfl.networks.resnet_blocks import LayerSpec
from medfl.networks.segmentation_common import EdgeLengths, convert_monai_errors, finalize_network, monai_layer


class SwinUNETR(nets.SwinUNETR):
    """MONAI's shifted-window transformer with a convolutional decoder (Hatamizadeh et al. 2022).

    Args:
        in_channels: Number of image channels, >= 1.
        out_channels: Number of logit channels, >= 1.
        spatial_dims: 2 for images, 3 for volumes.
        feature_size: Number of channels of the first level, a multiple of 12; each further level has twice as many.
        depths: Number of blocks of each of the four stages.
        num_heads: Number of attention heads of each stage.
        window_size: Edge of the windows.
        norm: Name of the convolutions' normalisation layer in MONAI, or a pair of name and options.
        dropout: Dropout rate, in [0, 1].
        size: Edges of an image or patch in voxels, multiples of 32. If set, sizes that don't fit the strides are
            refused; it has no other effect.

    Raises:
        SettingsError: If an argument is invalid, or the package einops is not installed.
    """

    def __init__(
        self,
        in_channels: int = 1,
        out_channels: int = 2,
        spatial_dims: int = 3,
        feature_size: int = 24,
        depths: Sequence[int] = (2, 2, 2, 2),
        num_heads: Sequence[int] = (3, 6, 12, 24),
        window_size: EdgeLengths = 7,
        norm: LayerSpec = "instance",
        dropout: float = 0.0,
        size: EdgeLengths | None = None,
    ) -> None:
        if find_spec("einops") is None:
            raise SettingsError(
                "missing_package",
                "SwinUNETR needs the package einops, which is not installed. Install it with "
                f"{pip_install('swin')}, or choose another network.",
                package="einops",
                extra="swin",
            )
        with convert_monai_errors("SwinUNETR"):
            super().__init__(
                in_channels,
                out_channels,
                depths=tuple(depths),
                num_heads=tuple(num_heads),
                window_size=window_size,
                feature_size=feature_size,
                norm_name=monai_layer(norm),
                drop_rate=dropout,
                spatial_dims=spatial_dims,
            )
        finalize_network(self, size, [2**5] * spatial_dims)

    @property
    def head(self) -> nn.Module:
        """The 1x1 convolution to the logits, ``out``."""
        return self.out

    @property
    def feature_layers(self) -> list[nn.Module]:
        """Convolutions after the image and the transformer's stages.

        Their outputs are skip connections to the decoder.
        """
        return [self.encoder1, self.encoder2, self.encoder3, self.encoder4, self.encoder10]
