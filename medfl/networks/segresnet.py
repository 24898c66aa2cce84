"""MONAI's residual network for masks, see `medfl.networks.masks`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from monai.networks import nets
from torch import nn

from medfl.errors import SettingsError
from medfl.networks.masks import Edges, layer_spec, make_ready, refusals
from medfl.networks.resnet_blocks import LayerSpec


class SegResNet(nets.SegResNet):
    """MONAI's residual encoder and decoder (Myronenko 2018), without the variational branch.

    Its way up is by transposed convolutions, where MONAI's default interpolates: that gives other bits each time on a
    GPU.

    Args:
        in_channels: Channels of an image, >= 1.
        out_channels: Channels of the logits, >= 1.
        spatial_dims: 2 for images, 3 for volumes.
        init_filters: Channels of the first level, each further one has twice as many.
        blocks_down: Residual blocks of each level on the way down.
        blocks_up: On the way up, one level fewer.
        norm: Normalisation by MONAI's name, or a pair of name and options.
        act: Activation, as `norm`.
        dropout: After the first convolution, in [0, 1); None leaves it out.
        upsample_mode: ``deconv``, ``nontrainable`` or ``pixelshuffle``.
        size: As for `medfl.networks.unet.UNet`.

    Raises:
        SettingsError: If an argument is impossible.
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
        size: Edges | None = None,
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
        with refusals("SegResNet"):
            super().__init__(
                spatial_dims,
                init_filters,
                in_channels,
                out_channels,
                dropout_prob=dropout,
                norm=layer_spec(norm),
                act=layer_spec(act),
                blocks_down=tuple(blocks_down),
                blocks_up=tuple(blocks_up),
                upsample_mode=upsample_mode,
            )
        make_ready(self, size, [2 ** (len(blocks_down) - 1)] * spatial_dims)

    @property
    def head(self) -> nn.Module:
        """The convolution of one voxel to the logits, ``conv_final.2``."""
        return self.conv_final[2]

    @property
    def feature_layers(self) -> list[nn.Module]:
        """The levels on the way down."""
        return list(self.down_layers)
