"""A narrow ResNet, images for it, and what its tests look at."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from medfl.networks.resnet import ResNet


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def images(spatial_dims: int, n: int = 3, channels: int = 2) -> torch.Tensor:
    return numbers(n, channels, *[20, 18, 17][:spatial_dims])


def small(depth: int = 10, spatial_dims: int = 2, norm: Any = "group", **changes: Any) -> ResNet:
    """A narrow network in evaluation mode, every tensor drawn anew so that no weight is 1 and no bias or mean is 0."""
    model = ResNet(depth, 2, 3, spatial_dims, width=8, norm=norm, **changes).eval()
    generator = torch.Generator().manual_seed(1)
    for tensor in model.state_dict().values():
        if tensor.dim() == 1:
            tensor.uniform_(0.5, 1.5, generator=generator)
    return model


def stage_outputs(model: ResNet, batch: torch.Tensor) -> list[torch.Tensor]:
    outputs: list[torch.Tensor] = []
    handles = [
        layer.register_forward_hook(lambda module, args, output: outputs.append(output))
        for layer in model.feature_layers
    ]
    model(batch)
    for handle in handles:
        handle.remove()
    return outputs


def backward_with_hooks(model: nn.Module) -> int:
    """Backward with a hook on every module, as Opacus and explanation tools set them; how many were called."""
    called: list[nn.Module] = []
    for module in model.modules():
        module.register_full_backward_hook(lambda module, inputs, outputs: called.append(module))
    model(images(2).requires_grad_()).sum().backward()
    return len(called)
