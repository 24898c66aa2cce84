"""Tensors of low-rank adapters, identified by their names in a state dict.

A layer ``conv`` with an adapter has the factors ``conv.lora_a.weight`` and ``conv.lora_b.weight``. With exact
aggregation it also has ``conv.lora_residual``, the part of the mean weight change that the factors don't represent.
"""

from __future__ import annotations

import re
from collections.abc import Collection

import torch

from medfl.errors import ContractError
from medfl.types import Tensors

FACTOR_A = "lora_a.weight"
"""Name of the factor A of a layer: shape (rank, inputs), or (rank * groups, inputs / groups, *kernel)."""

FACTOR_B = "lora_b.weight"
"""Name of the factor B of a layer: shape (outputs, rank), or (outputs, rank, 1, ...)."""

RESIDUAL = "lora_residual"
"""Name of a layer's residual, a tensor of the weight's shape that is added to B A."""


def is_residual(name: str) -> bool:
    """Return True if a state-dict name, with or without a prefix, is the name of an adapter's residual."""
    return re.split(r"[./]", name)[-1] == RESIDUAL


def is_factor(name: str) -> bool:
    """Return True if a state-dict name, with or without a prefix, is the name of an adapter's factor."""
    return ".".join(re.split(r"[./]", name)[-2:]) in (FACTOR_A, FACTOR_B)


def is_adapter(name: str) -> bool:
    """Return True if a state-dict name is the name of an adapter's factor or residual."""
    return is_residual(name) or is_factor(name)


def adapted_layers(names: Collection[str]) -> list[str]:
    """Return the prefixes of all layers with an adapter, for example ``body.conv1.``, given all state-dict names."""
    return [name.removesuffix(FACTOR_B) for name in names if is_factor(name) and name.endswith(FACTOR_B)]


def low_rank_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return the product B A of an adapter's factors, in the shape of the layer's weight.

    The groups of a grouped convolution have separate factors, so the product is a weight of the same grouping.

    Args:
        a: Factor A, see `FACTOR_A`.
        b: Factor B, see `FACTOR_B`.
    """
    rank = b.shape[1]
    groups = a.shape[0] // rank
    product = b.reshape(groups, -1, rank) @ a.reshape(groups, rank, -1)
    return product.reshape(b.shape[0], *a.shape[1:])


def merge_adapters(tensors: Tensors, scale: float) -> Tensors:
    """Return a state dict in which all adapters are merged into the weights: W + scale * (B A + residual).

    It has the names and shapes of the network without adapters. The sum is computed in float64.

    Args:
        tensors: Full state dict, with the frozen weights.
        scale: Factor of the weight change, alpha / rank.

    Raises:
        ContractError: If the weight or a factor of a layer with an adapter is missing.
    """
    merged = {name: tensor for name, tensor in tensors.items() if not is_adapter(name)}
    for layer in adapted_layers(tensors):
        missing = [name for name in (layer + "weight", layer + FACTOR_A) if name not in tensors]
        if missing:
            raise ContractError(
                "missing_tensor",
                f"Expected the tensor '{missing[0]}' besides '{layer}{FACTOR_B}', to merge the adapter of this layer "
                "into its weight, got none. The method must keep a network's names in its models.",
                tensor=missing[0],
            )
        change = low_rank_product(tensors[layer + FACTOR_A].double(), tensors[layer + FACTOR_B].double())
        if layer + RESIDUAL in tensors:
            change += tensors[layer + RESIDUAL].double()
        weight = tensors[layer + "weight"]
        merged[layer + "weight"] = (weight.double() + scale * change).to(weight.dtype)
    return merged
