"""The network of nnU-Net as MONAI has it, see `medfl.networks.masks`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from monai.networks import nets
from monai.networks.nets.dynunet import DynUNetSkipLayer
from torch import nn

from medfl.networks.masks import Edges, layer_spec, make_ready, refusals
from medfl.networks.resnet_blocks import LayerSpec


class DynUNet(nets.DynUNet):
    """MONAI's form of the network of nnU-Net (Isensee et al. 2021), without deep supervision.

    MONAI keeps each tensor under two names; here it has the one under ``skip_layers``. So ``load_state_dict`` takes the
    tensors of the other class with ``strict=False``, in both directions.

    Args:
        in_channels: Channels of an image, >= 1.
        out_channels: Channels of the logits, >= 1.
        spatial_dims: 2 for images, 3 for volumes.
        filters: Channels of each level, from the top, at least three.
        strides: Of each level, as many; None is 1, then 2 for all.
        kernel_size: Edges of the kernels of each level, as many; None is 3 for all.
        norm: Normalisation by MONAI's name, or a pair of name and options.
        res_block: Whether levels have residual connections.
        dropout: In [0, 1); None leaves it out.
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
        filters: Sequence[int] = (32, 64, 128, 256),
        strides: Sequence[Edges] | None = None,
        kernel_size: Sequence[Edges] | None = None,
        norm: LayerSpec = ("instance", {"affine": True}),
        res_block: bool = False,
        dropout: float | None = None,
        size: Edges | None = None,
    ) -> None:
        strides = [1, *[2] * (len(filters) - 1)] if strides is None else list(strides)
        with refusals("DynUNet"):
            super().__init__(
                spatial_dims,
                in_channels,
                out_channels,
                [3] * len(filters) if kernel_size is None else list(kernel_size),
                strides,
                upsample_kernel_size=strides[1:],
                filters=list(filters),
                norm_name=layer_spec(norm),
                res_block=res_block,
                dropout=dropout,
            )
        del self.input_block, self.downsamples, self.bottleneck, self.upsamples  # `skip_layers` has them
        per_axis = [[stride] * spatial_dims if isinstance(stride, int) else stride for stride in strides]
        make_ready(self, size, [math.prod(steps) for steps in zip(*per_axis, strict=True)])

    @property
    def head(self) -> nn.Module:
        """The convolution of one voxel to the logits, ``output_block``."""
        return self.output_block

    @property
    def feature_layers(self) -> list[nn.Module]:
        """The levels on the way down, and the bottom."""
        layers, level = [], self.skip_layers
        while isinstance(level, DynUNetSkipLayer):
            layers.append(level.downsample)
            level = level.next_layer
        return [*layers, level]
