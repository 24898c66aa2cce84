"""MONAI's SegResNet, a residual segmentation network, see `medfl.networks.segmentation_common`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from monai.networks import nets
from torch import nn

from medfl.errors import SettingsError
from medfl.networks.resnet_blocks import LayerSpec
from medfl.networks.segmentation_common import EdgeLengths, convert_monai_errors, finalize_network, monai_layer


class SegResNet(nets.SegResNet):
    """MONAI's residual encoder and decoder (Myronenko 2018), without the variational branch.

    The decoder uses transposed convolutions. MONAI's default, interpolation, is not deterministic on a GPU.

    Args:
        in_channels: Number of image channels, >= 1.
        out_channels: Number of logit channels, >= 1.
        spatial_dims: 2 for images, 3 for volumes.
        init_filters: Number of channels of the first level; each further level has twice as many.
        blocks_down: Number of residual blocks of each encoder level.
        blocks_up: Number of residual blocks of each decoder level, one level fewer.
        norm: Name of a normalisation layer in MONAI, or a pair of name and options.
        act: Name of an activation in MONAI, or a pair of name and options.
        dropout: Dropout rate after the first convolution, in [0, 1); None omits dropout.
        upsample_mode: ``deconv``, ``nontrainable`` or ``pixelshuffle``.
        size: Edges of an image or patch in voxels. If set, sizes that don't fit the strides are refused; it has no
            other effect.

    Raises:
        SettingsError: If an argument is invalid.
    """

    __jit_unused_properties__: ClassVar = ["head", "feature_layers"]

    def __init__(
        self,
        in_channels: int = 1,
        out_channels: int = 2,
        spatial_dims: int = 3,
        init_filters: int = 8,
        blocks_down: Sequence[int] = (1, 2, 2, 4),
        blocks_up: Sequence[int] = (1, 1, 1),
        norm: LayerSpec = ("group", {"num_groups": 8}),
        act: LayerSpec = "relu",
        dropout: float | None = None,
        upsample_mode: str = "deconv",
        size: EdgeLengths | None = None,
    ) -> None:
        if len(blocks_up) != len(blocks_down) - 1:
            raise SettingsError(
                "wrong_level_count",
                f"SegResNet expected blocks_up for one level fewer than blocks_down, got {len(blocks_up)} and "
                f"{len(blocks_down)} levels",
                network="SegResNet",
                blocks_up=len(blocks_up),
                blocks_down=len(blocks_down),
            )
        with convert_monai_errors("SegResNet"):
            super().__init__(
                spatial_dims,
                init_filters,
                in_channels,
                out_channels,
                dropout_prob=dropout,
                norm=monai_layer(norm),
                act=monai_layer(act),
                blocks_down=tuple(blocks_down),
                blocks_up=tuple(blocks_up),
                upsample_mode=upsample_mode,
            )
        finalize_network(self, size, [2 ** (len(blocks_down) - 1)] * spatial_dims)

    @property
    def head(self) -> nn.Module:
        """The 1x1 convolution to the logits, ``conv_final.2``."""
        return self.conv_final[2]

    @property
    def feature_layers(self) -> list[nn.Module]:
        """Levels of the encoder, from the image to the bottleneck; their outputs are feature maps."""
        return list(self.down_layers)
