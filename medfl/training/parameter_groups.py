"""Parameter groups of an optimiser: learning rates by the depth of a layer, and weight decay without norms and biases.

The blocks of a network are its layers from the input to the output, as `blocks` lists them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import nn

from medfl.networks.norms import NORM_LAYERS


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters of a model with a common learning rate and weight decay.

    Attributes:
        rate_factor: Factor of the optimiser's learning rate, in (0, 1].
        decays: Whether the optimiser's weight decay applies.
        parameters: The parameters, in the order of the model.
    """

    rate_factor: float
    decays: bool
    parameters: tuple[nn.Parameter, ...]

    def options(self) -> dict[str, Any]:
        """Return the group as torch's optimisers accept it, without a learning rate."""
        return {"params": list(self.parameters)} | ({} if self.decays else {"weight_decay": 0.0})


def parameter_groups(
    model: nn.Module, parameters: Iterable[nn.Parameter], layer_decay: float = 1.0, decay_norms: bool = True
) -> list[ParameterGroup]:
    """Divide parameters of a model into groups by learning rate and weight decay.

    Args:
        model: The model.
        parameters: Parameters of the model that are trained.
        layer_decay: Factor of the learning rate from one block to the block before it, in (0, 1]. The last block has
            the factor 1.
        decay_norms: Whether the parameters of normalisation layers, and parameters with at most one dimension, such as
            biases, have weight decay.

    Returns:
        Groups from the largest learning rate to the smallest, and with weight decay before those without.
    """
    depths, norms = depths_from_output(model), norm_parameters(model)
    grouped: dict[tuple[int, bool], list[nn.Parameter]] = {}
    for parameter in parameters:
        depth = depths[id(parameter)] if layer_decay != 1 else 0
        decays = decay_norms or not (id(parameter) in norms or parameter.dim() <= 1)
        grouped.setdefault((depth, decays), []).append(parameter)
    order = sorted(grouped, key=lambda key: (key[0], not key[1]))
    return [ParameterGroup(layer_decay**depth, decays, tuple(grouped[depth, decays])) for depth, decays in order]


def norm_parameters(model: nn.Module) -> set[int]:
    """Return the ids of the parameters of a model's normalisation layers."""
    layers = [module for module in model.modules() if isinstance(module, NORM_LAYERS)]
    return {id(parameter) for layer in layers for parameter in layer.parameters(recurse=False)}


def blocks(model: nn.Module) -> list[tuple[nn.Module, ...]]:
    """Return the blocks of a model from the input to the output.

    They are the children of the model, in the order in which its constructor creates them, with these rules:

    * A `body`, a `Sequential` and a `ModuleList` count as their children. So does a body's or a model's only child.
    * A normalisation layer, and any other layer whose parameters have at most one dimension, such as an activation,
      belongs to the block before it.
    * A `head`, the classifier, is the last block.
    * Modules without parameters are left out.

    Returns:
        The modules of each block; more than one only with such layers.
    """
    head, body = getattr(model, "head", None), getattr(model, "body", None)
    layers: list[tuple[nn.Module, ...]] = []

    def children(module: nn.Module) -> list[nn.Module]:
        return [child for child in module.children() if child is not head and has_parameters(child)]

    def unwrapped(module: nn.Module) -> nn.Module:
        inner = children(module)
        return unwrapped(inner[0]) if len(inner) == 1 and children(inner[0]) and inner[0] is not body else module

    def visit(module: nn.Module) -> None:
        for child in children(module):
            if child is body and children(child):
                visit(unwrapped(child))
            elif isinstance(child, nn.Sequential | nn.ModuleList):
                visit(child)
            elif layers and _belongs_to_previous(child):
                layers[-1] = (*layers[-1], child)
            else:
                layers.append((child,))

    visit(unwrapped(model))
    return [*layers, (head,)] if isinstance(head, nn.Module) and has_parameters(head) else layers


def _belongs_to_previous(layer: nn.Module) -> bool:
    return isinstance(layer, NORM_LAYERS) or all(parameter.dim() <= 1 for parameter in layer.parameters())


def has_parameters(module: nn.Module) -> bool:
    """Return True if a module or one of its parts has parameters."""
    return next(module.parameters(), None) is not None


def depths_from_output(model: nn.Module) -> dict[int, int]:
    """Return the depth of each parameter of a model, by the parameter's id.

    The depth is the number of blocks between the parameter's block and the output, 0 for the last block. A parameter
    in no block, such as the position embedding of a transformer, belongs to the first block.
    """
    layers = blocks(model)
    first = max(len(layers) - 1, 0)
    depths = {id(parameter): first for parameter in model.parameters()}
    for number, modules in enumerate(layers):
        for module in modules:
            depths |= {id(parameter): first - number for parameter in module.parameters()}
    return depths
