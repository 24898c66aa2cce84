"""Normalisation layers of a network, identified by module type and never by name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from medfl.networks.transfer.frozen import modules_outside_frozen

NORM_TYPES: dict[str, tuple[type[nn.Module], ...]] = {
    "batch": (_BatchNorm,),
    "group": (nn.GroupNorm,),
    "layer": (nn.LayerNorm,),
    "instance": (_InstanceNorm,),
}
"""Mapping from each kind of normalisation layer that a setting can name to torch's classes."""

NORM_LAYERS: tuple[type[nn.Module], ...] = (*(kind for kinds in NORM_TYPES.values() for kind in kinds), nn.RMSNorm)
"""Classes of all normalisation layers, including those that no setting names."""


def norm_names(model: nn.Module, kinds: tuple[str, ...] = ("batch",)) -> set[str]:
    """Return the state-dict names (parameters and buffers) of all normalisation layers of the given kinds."""
    types = tuple(t for kind in kinds for t in NORM_TYPES[kind])
    names = set()
    for path, module in model.named_modules():
        if isinstance(module, types):
            names |= {f"{path}.{name}" if path else name for name in module.state_dict()}
    return names


def buffer_names(model: nn.Module) -> set[str]:
    """Return the state-dict names of buffers, such as running statistics: all names that are not parameters."""
    return set(model.state_dict()) - {name for name, _ in model.named_parameters()}


def has_batch_norm(model: nn.Module) -> bool:
    """Return True if the model trains batch-norm layers, so that it can't be trained on a batch of one sample.

    The batch-norm layers of frozen modules don't count.
    """
    return any(isinstance(module, _BatchNorm) for module in modules_outside_frozen(model))


def freeze_norms(model: nn.Module) -> None:
    """Put the batch-norm layers into evaluation mode, in place, for ``norm_sync: frozen``."""
    for module in model.modules():
        if isinstance(module, _BatchNorm):
            module.eval()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode within the block, and restore the mode of each module afterwards."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode
