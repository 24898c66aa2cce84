"""MONAI's DynUNet, the network of nnU-Net, see `medfl.networks.segmentation_common`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from monai.networks import nets
from monai.networks.nets.dynunet import DynUNetSkipLayer
from torch import nn

from medfl.networks.resnet_blocks import LayerSpec
from medfl.networks.segmentation_common import EdgeLengths, convert_monai_errors, finalize_network, monai_layer


class DynUNet(nets.DynUNet):
    """MONAI's implementation of nnU-Net's network (Isensee et al. 2021), without deep supervision.

    MONAI stores each tensor under two names; this class keeps only the name under ``skip_layers``. With
    ``strict=False``, ``load_state_dict`` accepts the tensors of the other class in both directions.

    Args:
        in_channels: Number of image channels, >= 1.
        out_channels: Number of logit channels, >= 1.
        spatial_dims: 2 for images, 3 for volumes.
        filters: Number of channels of each level, from the top, at least three levels.
        strides: Stride of each level; None is 1, then 2 for all others.
        kernel_size: Kernel size of each level; None is 3 for all.
        norm: Name of a normalisation layer in MONAI, or a pair of name and options.
        res_block: Whether levels have residual connections.
        dropout: Dropout rate, in [0, 1); None omits dropout.
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
        filters: Sequence[int] = (32, 64, 128, 256),
        strides: Sequence[EdgeLengths] | None = None,
        kernel_size: Sequence[EdgeLengths] | None = None,
        norm: LayerSpec = ("instance", {"affine": True}),
        res_block: bool = False,
        dropout: float | None = None,
        size: EdgeLengths | None = None,
    ) -> None:
        strides = [1, *[2] * (len(filters) - 1)] if strides is None else list(strides)
        with convert_monai_errors("DynUNet"):
            super().__init__(
                spatial_dims,
                in_channels,
                out_channels,
                [3] * len(filters) if kernel_size is None else list(kernel_size),
                strides,
                upsample_kernel_size=strides[1:],
                filters=list(filters),
                norm_name=monai_layer(norm),
                res_block=res_block,
                dropout=dropout,
            )
        # `skip_layers` contains the same modules.
        del self.input_block, self.downsamples, self.bottleneck, self.upsamples
        per_axis = [[stride] * spatial_dims if isinstance(stride, int) else stride for stride in strides]
        finalize_network(self, size, [math.prod(steps) for steps in zip(*per_axis, strict=True)])

    @property
    def head(self) -> nn.Module:
        """The 1x1 convolution to the logits, ``output_block``."""
        return self.output_block

    @property
    def feature_layers(self) -> list[nn.Module]:
        """Levels of the encoder, with the bottleneck last; their outputs are feature maps."""
        layers, level = [], self.skip_layers
        while isinstance(level, DynUNetSkipLayer):
            layers.append(level.downsample)
            level = level.next_layer
        return [*layers, level]
