"""Tests of pooling layers with deterministic gradients."""

import pytest
import torch
from torch import nn

from medfl.networks.pooling import VolumeMaxPool, max_pool, max_pool_by_axes, subsample


def gradient_of(output: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    weights = torch.arange(output.numel(), dtype=output.dtype).reshape(output.shape) % 7 + 1
    return torch.autograd.grad((output * weights).sum(), x)[0]


@pytest.mark.parametrize(("kernel", "stride", "padding"), [(2, 2, 0), (3, 2, 1), (3, 1, 0)])
@pytest.mark.parametrize("ties", [False, True])
def test_pooling_by_axes_equals_torch_s_pooling_of_volumes(kernel, stride, padding, ties):
    x = torch.randn(2, 3, 7, 6, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = (x.round() if ties else x).requires_grad_()  # integers: many positions of a window have its maximum
    expected = nn.functional.max_pool3d(x, kernel, stride, padding)
    output = max_pool_by_axes(x, kernel, stride, padding)
    assert torch.equal(output, expected)
    assert torch.equal(gradient_of(output, x), gradient_of(expected, x))  # sums of small integers: without rounding


def test_layer_of_volumes_is_torch_s_on_a_cpu():
    x = torch.randn(1, 2, 4, 4, 4)
    assert torch.equal(VolumeMaxPool(3, 2, 1)(x), nn.MaxPool3d(3, 2, 1)(x))
    assert torch.equal(max_pool(3, 2, 2)(x), nn.MaxPool3d(2)(x))
    assert torch.equal(max_pool(2, 2, 2)(x[0]), nn.MaxPool2d(2)(x[0]))


@pytest.mark.parametrize("shape", [(2, 3, 7), (2, 3, 7, 6), (2, 3, 7, 6, 5)])
def test_subsampling_equals_average_pooling_with_a_kernel_of_one_position(shape):
    x = torch.randn(shape, requires_grad=True)
    expected = getattr(nn, f"AvgPool{len(shape) - 2}d")(1, stride=2)(x)
    output = subsample(len(shape) - 2, 2)(x)
    assert torch.equal(output, expected)
    assert torch.equal(gradient_of(output, x), gradient_of(expected, x))
