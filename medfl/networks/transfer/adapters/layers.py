"""Linear and convolution layers with a low-rank adapter, and their insertion into a network.

A layer with an adapter computes ``layer(x) + scale * lora_b(lora_a(x))``. Its weight and bias keep their names. B is
zero at first, so that the network computes the same outputs as without adapters, bit by bit.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn
from torch.nn import functional

from medfl.errors import SettingsError
from medfl.networks.transfer.adapters.tensors import FACTOR_A, FACTOR_B, RESIDUAL
from medfl.utils.text import names_and_more

ALL_LAYERS = "all"
"""Value of `AdapterOptions.targets` that selects all layers outside the head."""

OPAQUE_TYPES = (nn.MultiheadAttention, nn.TransformerEncoderLayer)
"""Modules of torch that read the weights of their layers instead of calling the layers."""


@dataclass(frozen=True)
class AdapterOptions:
    """Options of the low-rank adapters of a network.

    Attributes:
        rank: Rank of the weight changes, >= 1. A layer whose weight has a smaller full rank gets this full rank.
        alpha: Numerator of the scale alpha / rank of the weight changes, > 0.
        targets: ``all``, or a regular expression that is searched in the layers' names.
        aggregation: Aggregation of the factors. With ``frozen_a`` A is frozen and only B is trained. With ``exact`` and
            ``naive`` both are trained, and with ``exact`` the layers have a residual.
    """

    rank: int
    alpha: float
    targets: str = ALL_LAYERS
    aggregation: Literal["frozen_a", "exact", "naive"] = "frozen_a"

    @property
    def scale(self) -> float:
        """Factor of the weight changes."""
        return self.alpha / self.rank


class Adapted(nn.Module):
    """Base of the layers with an adapter.

    Attributes:
        weight: Frozen weight of the layer.
        lora_a: Layer that computes the factor A, with the layer's own kernel, stride, padding, dilation and groups.
        lora_b: Layer that computes the factor B; for a convolution, a 1x1 convolution of the same groups.
        lora_residual: Weight change besides B A, of the weight's shape; None unless the aggregation is exact.
        lora_scale: Factor of the weight changes.
    """

    weight: torch.Tensor
    lora_a: nn.Module
    lora_b: nn.Module
    lora_residual: torch.Tensor | None
    lora_scale: float

    def base_weight(self) -> torch.Tensor:
        """Return the layer's weight without the change B A: the frozen weight plus the scaled residual."""
        return self.weight if self.lora_residual is None else self.weight + self.lora_scale * self.lora_residual

    def low_rank_output(self, inputs: torch.Tensor) -> torch.Tensor:
        """Compute the scaled output of the adapter."""
        output: torch.Tensor = self.lora_scale * self.lora_b(self.lora_a(inputs))
        return output

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        """Load the layer. A state dict with its weight but no factors is that of a plain layer: the change is zero."""
        if prefix + "weight" in state_dict and prefix + FACTOR_B not in state_dict:
            state_dict.setdefault(prefix + FACTOR_A, self.get_parameter(FACTOR_A).detach())
            state_dict[prefix + FACTOR_B] = torch.zeros_like(self.get_parameter(FACTOR_B))
            if self.lora_residual is not None:
                state_dict.setdefault(prefix + RESIDUAL, torch.zeros_like(self.lora_residual))
        super()._load_from_state_dict(state_dict, prefix, *others)


class AdaptedLinear(Adapted, nn.Linear):
    """Linear layer with an adapter."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Compute outputs (..., outputs) of inputs (..., inputs)."""
        return functional.linear(input, self.base_weight(), self.bias) + self.low_rank_output(input)


class _AdaptedConvolution(Adapted):
    """Base of the convolutions with an adapter."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Compute outputs (B, C, *spatial) of inputs (B, channels, *spatial)."""
        output: torch.Tensor = self._conv_forward(input, self.base_weight(), self.bias)  # type: ignore[operator]
        return output + self.low_rank_output(input)


class AdaptedConv1d(_AdaptedConvolution, nn.Conv1d):
    """1-D convolution with an adapter."""


class AdaptedConv2d(_AdaptedConvolution, nn.Conv2d):
    """2-D convolution with an adapter."""


class AdaptedConv3d(_AdaptedConvolution, nn.Conv3d):
    """3-D convolution with an adapter."""


ADAPTED_TYPES: dict[type[nn.Module], type[Adapted]] = {
    nn.Linear: AdaptedLinear,
    nn.Conv1d: AdaptedConv1d,
    nn.Conv2d: AdaptedConv2d,
    nn.Conv3d: AdaptedConv3d,
}
"""Maps each type of layer that can have an adapter to its type with an adapter."""


def add_adapters(model: nn.Module, options: AdapterOptions, network: str) -> None:
    """Add adapters to the layers of a network and freeze all other parameters outside its head, in place.

    Linear layers and 1-D to 3-D convolutions outside the head get an adapter if their names match the options. These
    layers don't: depthwise convolutions, whose rows are too short to save anything; subclasses of torch's layers, and
    layers inside the modules `OPAQUE_TYPES`, which may use the weight in another way; and layers that share their
    weight with another layer. Parameters of the head stay as they are.

    Args:
        model: The network.
        options: Options of the adapters. The factor A of each layer is drawn from torch's global generator, as torch
            draws a layer's weight.
        network: Name of the network, for messages.

    Raises:
        SettingsError: If no layer can get an adapter.
    """
    head = getattr(model, "head", None)
    in_head = set(head.modules()) if isinstance(head, nn.Module) else set()
    candidates = {name: layer for name, layer in _adaptable_layers(model) if layer not in in_head}
    layers = {
        name: layer
        for name, layer in candidates.items()
        if options.targets == ALL_LAYERS or re.search(options.targets, name)
    }
    if not layers:
        raise SettingsError(
            "no_match",
            f"The setting 'lora.targets' ({options.targets!r}) selects no layer of network '{network}': expected "
            f"'{ALL_LAYERS}', or a regular expression that is found in the name of a linear or convolution layer. "
            f"These can have an adapter: {names_and_more(list(candidates), 6) or 'none'}.",
            setting="lora.targets",
            network=network,
            names=list(candidates),
        )
    for module in model.modules():
        if module not in in_head:
            for parameter in module.parameters(recurse=False):
                parameter.requires_grad_(False)
    for layer in layers.values():
        _add_adapter(layer, options)


def adapter_scale(model: nn.Module) -> float | None:
    """Return the scale of a network's adapters, which is the same for all layers, or None without adapters."""
    return next((module.lora_scale for module in model.modules() if isinstance(module, Adapted)), None)


def has_residuals(model: nn.Module) -> bool:
    """Return True if the adapters of a network have residuals, for exact aggregation."""
    return any(isinstance(module, Adapted) and module.lora_residual is not None for module in model.modules())


def trains_factor_a(model: nn.Module) -> bool:
    """Return True if a network has adapters of which both factors are trained."""
    return any(
        isinstance(module, Adapted) and module.get_parameter(FACTOR_A).requires_grad for module in model.modules()
    )


def _adaptable_layers(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the layers of a network that can have an adapter, with their names."""
    opaque = {part for module in model.modules() if isinstance(module, OPAQUE_TYPES) for part in module.modules()}
    uses: dict[int, int] = {}
    for module in model.modules():
        for parameter in module._parameters.values():
            uses[id(parameter)] = uses.get(id(parameter), 0) + 1
    for name, module in model.named_modules():
        weight = module._parameters.get("weight")
        if type(module) not in ADAPTED_TYPES or module in opaque or weight is None or uses[id(weight)] > 1:
            continue
        is_depthwise = not isinstance(module, nn.Linear) and weight.shape[1] == 1 and module.groups > 1
        if not is_depthwise:
            yield name, module


def _add_adapter(layer: Any, options: AdapterOptions) -> None:
    """Add an adapter to a layer by a change of its class, in place."""
    weight, kind = layer.weight, type(layer)
    groups = 1 if kind is nn.Linear else layer.groups
    rank = min(options.rank, weight.shape[0] // groups, math.prod(weight.shape[1:]))
    like = {"bias": False, "device": weight.device, "dtype": weight.dtype}
    if kind is nn.Linear:
        a, b = nn.Linear(layer.in_features, rank, **like), nn.Linear(rank, layer.out_features, **like)
    else:
        shape = {name: getattr(layer, name) for name in ("stride", "padding", "dilation", "padding_mode")}
        a = kind(layer.in_channels, rank * groups, layer.kernel_size, groups=groups, **shape, **like)
        b = kind(rank * groups, layer.out_channels, 1, groups=groups, **like)
    a.weight.requires_grad_(options.aggregation != "frozen_a")  # torch's own initialisation is LoRA's
    nn.init.zeros_(b.weight)
    layer.__class__ = ADAPTED_TYPES[kind]
    layer.lora_a, layer.lora_b, layer.lora_scale = a, b, options.scale
    layer.register_buffer(RESIDUAL, torch.zeros_like(weight) if options.aggregation == "exact" else None)
