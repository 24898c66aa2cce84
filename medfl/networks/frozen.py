"""Frozen parameters of a network: parameters to which its constructor gives ``requires_grad=False``.

They never change, so they are not part of a network's state: `set_and_remove_frozen` removes them from
``state_dict()``. All objects that are built from state dicts (updates, requests, stored steps, control variates, noise)
then contain only trainable tensors and buffers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from medfl.types import Tensors


class _RemoveParametersHook:
    """State-dict hook that removes some of a module's own parameters.

    Args:
        names: Names of the parameters in the module.
    """

    def __init__(self, names: list[str]) -> None:
        self.names = names

    def __call__(self, module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
        for name in self.names:
            state.pop(prefix + name, None)


def frozen_parameters(model: nn.Module) -> Tensors:
    """Return a network's frozen parameters by name; a parameter with several names occurs under each of them."""
    named = model.named_parameters(remove_duplicate=False)
    return {name: parameter.detach() for name, parameter in named if not parameter.requires_grad}


def set_and_remove_frozen(model: nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
    """Set a network's frozen parameters in place, and remove them permanently from its ``state_dict()``.

    ``load_state_dict()`` then accepts tensors with and without them. If frozen parameters were removed before, this
    function only sets their values.

    Args:
        model: The network.
        tensors: Mapping from the name of each frozen parameter to its value.
    """
    names_by_path: dict[str, list[str]] = {}
    for name, value in tensors.items():
        path, _, own = name.rpartition(".")
        parameter = model.get_parameter(name)
        with torch.no_grad():
            parameter.copy_(value)
        names_by_path.setdefault(path, []).append(own)
    for path, names in names_by_path.items():
        module = model.get_submodule(path)
        if new := [name for name in names if name not in _removed_in_module(module)]:
            module.register_state_dict_post_hook(_RemoveParametersHook(new))
            module.register_load_state_dict_pre_hook(_add_removed_parameters)


def full_state_dict(model: nn.Module) -> Tensors:
    """Return a network's state dict including the frozen parameters that `set_and_remove_frozen` removed."""
    held = {name: model.get_parameter(name).detach() for name in removed_names(model)}
    return {**model.state_dict(), **held}


def removed_names(model: nn.Module) -> Iterator[str]:
    """Yield the names of the parameters that `set_and_remove_frozen` removed from a network's state dict."""
    for path, module in model.named_modules(remove_duplicate=False):
        yield from (f"{path}.{name}" if path else name for name in _removed_in_module(module))


def _removed_in_module(module: nn.Module) -> list[str]:
    """Return the names of the parameters that were removed from a module's state dict."""
    hooks = module._state_dict_hooks.values()
    return [name for hook in hooks if isinstance(hook, _RemoveParametersHook) for name in hook.names]


def _add_removed_parameters(
    module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any, strict: bool, *problems: list[str]
) -> None:
    """Add a module's removed parameters to a state dict that lacks them, so that loading keeps their values."""
    for name in _removed_in_module(module):
        state.setdefault(prefix + name, module.get_parameter(name).detach())
