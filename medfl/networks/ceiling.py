"""Building a network of which nobody knows yet how large it is, within a number of bytes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

SLACK = 3
"""How many times the bytes of a network its construction may make in all: initialising makes tensors that go again."""


class TooLargeError(Exception):
    """A network is larger than it may be."""

    @classmethod
    def behind(cls, error: BaseException | None) -> bool:
        """Whether an error was brought about by this one."""
        while error is not None and not isinstance(error, cls):
            error = error.__cause__ or error.__context__
        return error is not None


def bytes_of(build: Callable[[], nn.Module], most: int) -> int:
    """Bytes of a network's parameters and buffers.

    Args:
        build: Builds it, on the CPU.
        most: What it may have. No tensor beyond it is made, however large the network would be.

    Raises:
        TooLargeError: If it has more.
    """
    with torch.random.fork_rng(devices=[]), Ceiling(most):
        state = build().state_dict()
    total = sum(tensor.numel() * tensor.element_size() for tensor in state.values())
    if total > most:
        raise TooLargeError
    return total


class Ceiling(TorchDispatchMode):
    """A context that refuses operations which would make too large a tensor, or too much in all, before they make it.

    Args:
        most: Bytes of a tensor; in all there may be `SLACK` times as many.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self._left, self._each = SLACK * most, most

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if "device" in kwargs:  # it makes a tensor
            self._count(_planned(func, args, kwargs))
        return func(*args, **kwargs)

    def _count(self, size: int) -> None:
        self._left -= size
        if size > self._each or self._left < 0:
            raise TooLargeError


def _planned(func: Any, args: Any, kwargs: Any) -> int:
    """Bytes of the tensor that an operation would make."""
    shape = next((arg for arg in args if isinstance(arg, list | tuple)), None)
    if shape is not None:
        return math.prod(shape) * (kwargs.get("dtype") or torch.get_default_dtype()).itemsize
    planned = func(*args, **kwargs | {"device": torch.device("meta")})  # the same form and no content
    return planned.numel() * planned.element_size() if isinstance(planned, torch.Tensor) else 0
