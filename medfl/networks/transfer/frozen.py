"""Frozen tensors of a network: parameters with ``requires_grad=False``, and all buffers of frozen modules.

A frozen module has frozen parameters and no trainable ones, such as the body of a network of which only the head is
trained. It runs in evaluation mode also during training: its batch-norm layers use their running statistics and don't
update them, and its dropout layers are inactive.

Frozen tensors never change, so they are not part of a network's state: `set_and_remove_frozen` removes them from
``state_dict()``. All objects that are built from state dicts (updates, requests, stored steps, control variates, noise)
then contain only trainable parameters and the buffers of modules that are not frozen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MethodType
from typing import Any

import torch
from torch import nn

from medfl.types import Tensors


class _RemoveTensorsHook:
    """State-dict hook that removes some of a module's own parameters and buffers.

    Args:
        names: Names of the tensors in the module.
    """

    def __init__(self, names: list[str]) -> None:
        self.names = names

    def __call__(self, module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
        for name in self.names:
            state.pop(prefix + name, None)


def frozen_tensors(model: nn.Module) -> Tensors:
    """Return a network's frozen parameters, and the buffers of its frozen modules, by name.

    A tensor with several names occurs under each of them.
    """
    tensors = {
        name: parameter.detach()
        for name, parameter in model.named_parameters(remove_duplicate=False)
        if not parameter.requires_grad
    }
    for path, module in frozen_modules(model).items():
        prefix = f"{path}." if path else ""
        buffers = dict(module.named_buffers(remove_duplicate=False))
        saved = module.state_dict(keep_vars=True).keys() | set(removed_names(module))
        tensors |= {prefix + name: buffer.detach() for name, buffer in buffers.items() if name in saved}
    return tensors


def frozen_modules(model: nn.Module) -> dict[str, nn.Module]:
    """Return a network's outermost modules that have frozen parameters and no trainable ones, by their paths."""
    modules: dict[str, nn.Module] = {}

    def visit(path: str, module: nn.Module) -> None:
        parameters = list(module.parameters())
        if parameters and not any(parameter.requires_grad for parameter in parameters):
            modules[path] = module
            return
        for name, child in module._modules.items():  # unlike named_children, with all names of a module
            if child is not None:
                visit(f"{path}.{name}" if path else name, child)

    visit("", model)
    return modules


def set_and_remove_frozen(model: nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
    """Set a network's frozen tensors in place, and remove them permanently from its ``state_dict()``.

    ``load_state_dict()`` then accepts tensors with and without them. The network's frozen modules stay in evaluation
    mode from then on; ``train()`` has no effect on them. If frozen tensors were removed before, this function only
    sets their values.

    Args:
        model: The network.
        tensors: Mapping from the name of each frozen tensor to its value (`frozen_tensors`).
    """
    set_tensors(model, tensors)
    names_by_path: dict[str, list[str]] = {}
    for name in tensors:
        path, _, own = name.rpartition(".")
        names_by_path.setdefault(path, []).append(own)
    for path, names in names_by_path.items():
        module = model.get_submodule(path)
        if new := [name for name in names if name not in _removed_in_module(module)]:
            module.register_state_dict_post_hook(_RemoveTensorsHook(new))
            module.register_load_state_dict_pre_hook(_add_removed_tensors)
    for module in frozen_modules(model).values():
        module.eval()
        module.train = MethodType(_stay_in_evaluation_mode, module)  # type: ignore[method-assign]


def is_frozen(module: nn.Module) -> bool:
    """Return True if `set_and_remove_frozen` keeps the module in evaluation mode, so that its buffers don't change."""
    return isinstance(module.train, MethodType) and module.train.__func__ is _stay_in_evaluation_mode


def modules_outside_frozen(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the modules of a network that are not, and are not in, a module for which `is_frozen` is true."""
    if is_frozen(model):
        return
    yield model
    for child in model.children():
        yield from modules_outside_frozen(child)


def full_state_dict(model: nn.Module) -> Tensors:
    """Return a network's state dict including the frozen tensors that `set_and_remove_frozen` removed."""
    removed = {name: get_tensor(model, name).detach() for name in removed_names(model)}
    return {**model.state_dict(), **removed}


@torch.no_grad()
def set_tensors(model: nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
    """Set parameters and buffers of a network in place, given their values by name.

    Raises:
        AttributeError: If the network has no tensor of a name.
    """
    for name, value in tensors.items():
        get_tensor(model, name).copy_(value)


def get_tensor(model: nn.Module, name: str) -> torch.Tensor:
    """Return the parameter or buffer of a network that has this name.

    Raises:
        AttributeError: If there is none.
    """
    path, _, own = name.rpartition(".")
    module = model.get_submodule(path)
    return model.get_parameter(name) if own in module._parameters else model.get_buffer(name)


def removed_names(model: nn.Module) -> Iterator[str]:
    """Yield the names of the tensors that `set_and_remove_frozen` removed from a network's state dict."""
    for path, module in model.named_modules(remove_duplicate=False):
        yield from (f"{path}.{name}" if path else name for name in _removed_in_module(module))


def _removed_in_module(module: nn.Module) -> list[str]:
    """Return the names of the tensors that were removed from a module's state dict."""
    hooks = module._state_dict_hooks.values()
    return [name for hook in hooks if isinstance(hook, _RemoveTensorsHook) for name in hook.names]


def _stay_in_evaluation_mode(module: nn.Module, mode: bool = True) -> nn.Module:
    """Return the module unchanged; it replaces ``train`` of a frozen module."""
    return module


def _add_removed_tensors(
    module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any, strict: bool, *problems: list[str]
) -> None:
    """Add a module's removed tensors to a state dict that lacks them, so that loading keeps their values."""
    for name in _removed_in_module(module):
        state.setdefault(prefix + name, get_tensor(module, name).detach())
