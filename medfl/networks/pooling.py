"""Pooling layers whose gradients are the same in every run, also on a GPU.

torch has no deterministic gradient of max and average pooling of volumes on a GPU.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class VolumeSubsample(nn.Module):
    """Keep every `stride`-th position of each axis of a volume, like average pooling with a kernel of one position.

    Args:
        stride: Distance of the positions that are kept, >= 1.
    """

    def __init__(self, stride: int) -> None:
        super().__init__()
        self.stride = stride

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the kept positions (B, C, *smaller) of volumes (B, C, D, H, W)."""
        return x[:, :, :: self.stride, :: self.stride, :: self.stride]


class VolumeMaxPool(nn.Module):
    """`torch.nn.MaxPool3d` with a deterministic gradient on a GPU.

    On a GPU, it pools height and width, and then depth, with 2-D pooling. Outputs and the position that receives each
    gradient are those of `torch.nn.MaxPool3d`.

    Args:
        kernel: Edge of the kernel, >= 1.
        stride: Step of the kernel, >= 1.
        padding: Padding on both sides of each axis, at most half of the kernel.
    """

    def __init__(self, kernel: int, stride: int, padding: int = 0) -> None:
        super().__init__()
        self.kernel, self.stride, self.padding = kernel, stride, padding

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the pooled volumes (B, C, *smaller) of volumes (B, C, D, H, W)."""
        if x.is_cuda:
            return max_pool_by_axes(x, self.kernel, self.stride, self.padding)
        return F.max_pool3d(x, self.kernel, self.stride, self.padding)


def max_pool_by_axes(x: torch.Tensor, kernel: int, stride: int, padding: int) -> torch.Tensor:
    """Pool volumes with two 2-D poolings: over height and width, then over depth.

    Args:
        x: Volumes, shape (B, C, D, H, W).
        kernel: Edge of the kernel, >= 1.
        stride: Step of the kernel, >= 1.
        padding: Padding on both sides of each axis, at most half of the kernel.
    """
    planes = F.max_pool2d(x.flatten(1, 2), kernel, stride, padding)
    columns = planes.reshape(x.shape[0], x.shape[1], x.shape[2], -1)
    pooled = F.max_pool2d(columns, [kernel, 1], [stride, 1], [padding, 0])
    return pooled.reshape(x.shape[0], x.shape[1], -1, planes.shape[2], planes.shape[3])


def max_pool(spatial_dims: int, kernel: int, stride: int, padding: int = 0) -> nn.Module:
    """Return a max-pooling layer for 1-D to 3-D feature maps.

    Args:
        spatial_dims: Number of spatial axes, 1 to 3.
        kernel: Edge of the kernel, >= 1.
        stride: Step of the kernel, >= 1.
        padding: Padding on both sides of each axis, at most half of the kernel.
    """
    layers: dict[int, type[nn.Module]] = {1: nn.MaxPool1d, 2: nn.MaxPool2d, 3: VolumeMaxPool}
    return layers[spatial_dims](kernel, stride, padding)


def subsample(spatial_dims: int, stride: int) -> nn.Module:
    """Return a layer that keeps every `stride`-th position of each axis of 1-D to 3-D feature maps.

    Args:
        spatial_dims: Number of spatial axes, 1 to 3.
        stride: Distance of the positions that are kept, >= 1.
    """
    return VolumeSubsample(stride) if spatial_dims == 3 else {1: nn.AvgPool1d, 2: nn.AvgPool2d}[spatial_dims](1, stride)
