"""Networks whose inputs are the features of their frozen body instead of images.

If only the head of a network learns, the body gives the same features of an image in every round. A run then computes
the features once (`medfl.engine.runs.features.feature_cache`) and trains the network of this module on them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from medfl.networks.transfer.frozen import frozen_modules

_IS_OVERWRITTEN: ContextVar[bool] = ContextVar("_IS_OVERWRITTEN", default=False)
"""Whether the caller overwrites all tensors of the networks that it builds."""

_DRAWS = {
    *(torch.Tensor.uniform_, torch.Tensor.normal_),
    *(nn.init.uniform_, nn.init.normal_, nn.init.kaiming_uniform_, nn.init.kaiming_normal_, nn.init.trunc_normal_),
    *(nn.init.xavier_uniform_, nn.init.xavier_normal_),
}
"""Functions that fill a tensor with random numbers: their first argument, or the argument `tensor`."""


@contextmanager
def overwriting_tensors() -> Iterator[None]:
    """Declare, within the block, that the tensors of all networks built are overwritten, so they need not be drawn.

    Parameters that a constructor fills with random numbers stay uninitialised.
    """
    token = _IS_OVERWRITTEN.set(True)
    try:
        with _SkippedDraws():
            yield
    finally:
        _IS_OVERWRITTEN.reset(token)


class _SkippedDraws(TorchFunctionMode):
    """Mode in which random fills of parameters do nothing. Other tensors, such as buffers, are drawn as usual."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _DRAWS:
            filled = args[0] if args else kwargs.get("tensor")
            if isinstance(filled, nn.Parameter):
                return filled
        return func(*args, **kwargs)


class FeatureNetworkBuilder:
    """Constructor of a network that takes features instead of images.

    A call draws the same random numbers as the constructor of the whole network, so that the head starts with the same
    weights. Within `overwriting_tensors` it copies a network that it has built before, which is much faster.

    Args:
        build: Constructor of the whole network, with frozen body: its logits are head(body(images)).
    """

    def __init__(self, build: Callable[[], nn.Module]) -> None:
        self._build = build
        self._template: nn.Module | None = None

    def __call__(self) -> nn.Module:
        """Build the network."""
        if self._template is None or not _IS_OVERWRITTEN.get():
            self._template = _take_features(self._build())
        return copy.deepcopy(self._template)


def _take_features(model: nn.Module) -> nn.Module:
    """Make a network take features in place: its `body` becomes the identity, and its frozen tensors are deleted."""
    frozen = set(map(id, frozen_modules(model).values()))

    def remove_frozen(module: nn.Module) -> None:
        for name, parameter in list(module._parameters.items()):
            if parameter is not None and not parameter.requires_grad:
                del module._parameters[name]
        for name, child in module._modules.items():
            if id(child) in frozen:
                module._modules[name] = nn.Identity()
            elif child is not None:
                remove_frozen(child)

    remove_frozen(model)
    kind = type(model)
    model.__class__ = type(kind.__name__, (kind,), {"body": nn.Identity(), "forward": _classify_features})
    return model


def _classify_features(model: Any, features: torch.Tensor) -> torch.Tensor:
    """Return the logits of features; it replaces ``forward`` of a network."""
    logits: torch.Tensor = model.head(features)
    return logits
