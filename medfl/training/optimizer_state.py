"""The state of an optimiser as named tensors, so that it can be saved with a model and travel with it."""

from __future__ import annotations

import torch
from torch import nn

from medfl.errors import SettingsError
from medfl.types import Tensors

PREFIX = "optimizer/"
"""What names begin with where these tensors stand beside a model's."""


def read_state(optimizer: torch.optim.Optimizer, model: nn.Module) -> Tensors:
    """What an optimiser remembers of each parameter, for example ``body.weight/exp_avg``: contiguous CPU copies.

    Options such as the learning rate are no part of it: they come from the task.

    Args:
        optimizer: Over parameters of `model`.
        model: Gives the names.

    Raises:
        SettingsError: If it remembers anything but tensors.
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
    """Let a new optimiser go on from `read_state`, with the same bits as if it had never stopped.

    Args:
        optimizer: Of the same kind, over the same parameters of `model`.
        model: Gives the names.
        state: What `read_state` returned; empty leaves the optimiser as it is.

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
                f"The kept state of the optimizer names '{path}', which is no parameter in training.",
                parameter=path,
            )
        entries.setdefault(places[parameter], {})[key] = _as_laid_out(value, parameter)
    if entries:
        optimizer.load_state_dict({"state": entries, "param_groups": optimizer.state_dict()["param_groups"]})


def split(kept: Tensors) -> tuple[Tensors, Tensors]:
    """A model's tensors, and the state of its optimiser, where both stand together."""
    model = {name: tensor for name, tensor in kept.items() if not name.startswith(PREFIX)}
    return model, {name[len(PREFIX) :]: tensor for name, tensor in kept.items() if name.startswith(PREFIX)}


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _as_laid_out(value: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """The tensor in the parameter's memory layout, as an optimiser that never stopped would hold it."""
    if value.dim() == 0 or value.shape != parameter.shape:
        return value
    return torch.empty_like(parameter, dtype=value.dtype).copy_(value)
