"""State of an optimiser, such as momentum, as named tensors, so that it can be saved and sent with a model."""

from __future__ import annotations

import torch
from torch import nn

from medfl.errors import SettingsError
from medfl.types import Tensors

OPTIMIZER_PREFIX = "optimizer/"
"""Prefix of the optimiser's tensors when they are stored together with a model's tensors."""


def read_state(optimizer: torch.optim.Optimizer, model: nn.Module) -> Tensors:
    """Return an optimiser's state of each parameter, for example ``body.weight/exp_avg``, as contiguous CPU copies.

    Hyperparameters such as the learning rate are not included; they come from the task.

    Args:
        optimizer: Optimiser of parameters of `model`.
        model: Model whose parameter names are used.

    Raises:
        SettingsError: If the state has values other than tensors.
    """
    names: dict[torch.Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    state: Tensors = {}
    for parameter, entries in optimizer.state.items():
        for key, value in entries.items():
            if value is None:
                continue  # the momentum of SGD without momentum
            if not isinstance(value, torch.Tensor):
                raise SettingsError(
                    "unsupported_optimizer_state",
                    f"The state of {type(optimizer).__name__} can't be kept: expected tensors, got "
                    f"{type(value).__name__} as '{key}'. Choose another optimizer, or optimizer_state 'reset'.",
                    optimizer=type(optimizer).__name__,
                    key=key,
                    found=type(value).__name__,
                )
            copy = value.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
            state[f"{names[parameter]}/{key}"] = copy
    return state


def write_state(optimizer: torch.optim.Optimizer, model: nn.Module, state: Tensors) -> None:
    """Load a state from `read_state` into a new optimiser, in place.

    Further steps then give bit-identical parameters to those of an optimiser that was never saved.

    Args:
        optimizer: New optimiser of the same class for the same parameters.
        model: Model whose parameter names are used.
        state: Result of `read_state`; an empty state leaves the optimiser unchanged.

    Raises:
        SettingsError: If the state names a parameter that the optimiser does not have.
    """
    parameters = dict(model.named_parameters())
    places = {parameter: index for index, parameter in enumerate(_parameters(optimizer))}
    entries: dict[int, dict[str, torch.Tensor]] = {}
    for name, value in state.items():
        path, _, key = name.rpartition("/")
        parameter = parameters.get(path)
        if parameter is None or parameter not in places:
            raise SettingsError(
                "unknown_parameter",
                f"The stored state of the optimizer names '{path}': expected a parameter that is trained.",
                parameter=path,
            )
        entries.setdefault(places[parameter], {})[key] = _in_layout_of(value, parameter)
    if entries:
        optimizer.load_state_dict({"state": entries, "param_groups": optimizer.state_dict()["param_groups"]})


def split_optimizer_state(kept: Tensors) -> tuple[Tensors, Tensors]:
    """Split stored tensors into the model's tensors and the optimiser's tensors, without `OPTIMIZER_PREFIX`."""
    model = {name: tensor for name, tensor in kept.items() if not name.startswith(OPTIMIZER_PREFIX)}
    return model, {
        name[len(OPTIMIZER_PREFIX) :]: tensor for name, tensor in kept.items() if name.startswith(OPTIMIZER_PREFIX)
    }


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Return the optimiser's parameters in the order of its state dict."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _in_layout_of(value: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """Return the tensor in the parameter's memory layout, as in an optimiser that was never saved."""
    if value.dim() == 0 or value.shape != parameter.shape:
        return value
    return torch.empty_like(parameter, dtype=value.dtype).copy_(value)
