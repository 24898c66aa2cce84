"""Torchvision's residual networks, written down anew: names and shapes of their tensors, and what they compute."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import safetensors.torch as st
import torch
import torch.nn.functional as F

from medfl.types import Tensors

BLOCKS = {10: (1, 1, 1, 1), 18: (2, 2, 2, 2), 50: (3, 4, 6, 3)}


def norm_shapes(name: str, channels: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    for part in ("weight", "bias", "running_mean", "running_var"):
        yield f"{name}.{part}", (channels,)
    yield f"{name}.num_batches_tracked", ()


def shapes(depth: int, width: int = 64, kernel: int = 7, classes: int = 1000) -> dict[str, tuple[int, ...]]:
    """Name to shape of every tensor of ``torchvision.models.resnet18`` and the like; convolutions have no bias."""
    by_name = {"conv1.weight": (width, 3, kernel, kernel), **dict(norm_shapes("bn1", width))}
    come, wide = width, 4 if depth == 50 else 1
    for stage, count in enumerate(BLOCKS[depth]):
        inner = width * 2**stage
        for number in range(count):
            block = f"layer{stage + 1}.{number}"
            kernels = {1: (3, 3), 4: (1, 3, 1)}[wide]
            edges = [come, *[inner] * (len(kernels) - 1), inner * wide]
            for place, size in enumerate(kernels):
                by_name[f"{block}.conv{place + 1}.weight"] = (edges[place + 1], edges[place], size, size)
                by_name |= norm_shapes(f"{block}.bn{place + 1}", edges[place + 1])
            if number == 0 and (stage > 0 or come != inner * wide):
                by_name[f"{block}.downsample.0.weight"] = (inner * wide, come, 1, 1)
                by_name |= norm_shapes(f"{block}.downsample.1", inner * wide)
            come = inner * wide
    return by_name | {"fc.weight": (classes, come), "fc.bias": (classes,)}


def tensors(depth: int, width: int = 4, kernel: int = 7, seed: int = 0) -> Tensors:
    """Return such tensors without a weight of 1 or a mean or bias of 0; they are no ImageNet weights."""
    generator = torch.Generator().manual_seed(seed)
    made: Tensors = {}
    for name, shape in shapes(depth, width, kernel).items():
        if not shape:
            made[name] = torch.tensor(7)
        elif len(shape) == 1:
            made[name] = torch.rand(shape, generator=generator) + 0.5
        else:
            made[name] = torch.randn(shape, generator=generator) / (shape[1] * shape[-1] * shape[-1]) ** 0.5
    return made


def write(path: Path, content: Tensors) -> Path:
    st.save_file(content, path)
    return path


def features(weights: Tensors, depth: int, images: torch.Tensor) -> torch.Tensor:
    """Pooled features in evaluation: a stem of stride 2, max-pooling, and a block's stride in its 3x3 layer."""

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        mean, var, weight, bias = (weights[f"{name}.{p}"] for p in ("running_mean", "running_var", "weight", "bias"))
        return F.batch_norm(x, mean, var, weight, bias, eps=1e-5)

    x = F.relu(norm(F.conv2d(images, weights["conv1.weight"], stride=2, padding=3), "bn1"))
    x = F.max_pool2d(x, 3, stride=2, padding=1)
    for stage, count in enumerate(BLOCKS[depth]):
        for number in range(count):
            block, stride = f"layer{stage + 1}.{number}", 2 if stage > 0 and number == 0 else 1
            y, layers = x, 3 if depth == 50 else 2
            for place in range(1, layers + 1):
                kernel = weights[f"{block}.conv{place}.weight"]
                step = stride if place == layers - 1 else 1
                y = norm(F.conv2d(y, kernel, stride=step, padding=kernel.shape[2] // 2), f"{block}.bn{place}")
                y = F.relu(y) if place < layers else y
            if f"{block}.downsample.0.weight" in weights:
                x = norm(F.conv2d(x, weights[f"{block}.downsample.0.weight"], stride=stride), f"{block}.downsample.1")
            x = F.relu(y + x)
    return x.mean(dim=(2, 3))
