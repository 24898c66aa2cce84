"""Memory limit for building a network whose size is unknown."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

MAX_TOTAL_FACTOR = 3
"""Maximum total bytes of tensors created while a network is built, as a multiple of the network's limit.

Initialisation creates temporary tensors.
"""


class TooLargeError(Exception):
    """A network is larger than its memory limit."""

    @classmethod
    def behind(cls, error: BaseException | None) -> bool:
        """Return True if the given error is a `TooLargeError` or was caused by one."""
        while error is not None and not isinstance(error, cls):
            error = error.__cause__ or error.__context__
        return error is not None


def network_bytes(build: Callable[[], nn.Module], most: int) -> int:
    """Return the bytes of a network's parameters and buffers, without creating a tensor above the limit.

    Args:
        build: Function that builds the network on the CPU.
        most: Limit: maximum bytes of all parameters and buffers together.

    Raises:
        TooLargeError: If the network is larger.
    """
    with torch.random.fork_rng(devices=[]), MemoryLimit(most):
        state = build().state_dict()
    total = sum(tensor.numel() * tensor.element_size() for tensor in state.values())
    if total > most:
        raise TooLargeError
    return total


class MemoryLimit(TorchDispatchMode):
    """Context that refuses an operation before it creates a tensor above the limit, or too many tensors in total.

    Args:
        most: Maximum bytes of one tensor; the total may be `MAX_TOTAL_FACTOR` times as large.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self._left, self._each = MAX_TOTAL_FACTOR * most, most

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if "device" in kwargs:  # the operation creates a tensor
            self._count(_planned_bytes(func, args, kwargs))
        return func(*args, **kwargs)

    def _count(self, size: int) -> None:
        """Add a tensor's bytes to the total. Raise if a limit is exceeded."""
        self._left -= size
        if size > self._each or self._left < 0:
            raise TooLargeError


def _planned_bytes(func: Any, args: Any, kwargs: Any) -> int:
    """Return the bytes of the tensor that an operation would create."""
    shape = next((arg for arg in args if isinstance(arg, list | tuple)), None)
    if shape is not None:
        return math.prod(shape) * (kwargs.get("dtype") or torch.get_default_dtype()).itemsize
    planned = func(*args, **kwargs | {"device": torch.device("meta")})  # the same shape without memory
    return planned.numel() * planned.element_size() if isinstance(planned, torch.Tensor) else 0
