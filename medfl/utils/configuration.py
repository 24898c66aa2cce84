"""What decides the work of an object, as JSON: its class, its attributes and the code of its functions.

Two objects with the same description do the same work, so that what the one made can stand for what the other would
make. Nothing of it depends on the process: no address, no `hash`, no order of a set.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import inspect
import json
import re
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from medfl.utils.files import sha256_of

LIBRARIES = ("monai", "torch", "numpy", "scipy", "skimage", "builtins", "nibabel", "pydicom", "PIL", "itk")
"""Packages whose code changes with their version only; of other classes the file counts as well."""


class OpaqueError(TypeError):
    """An object can't be described, so nobody can tell when it changes."""


def described(value: Any) -> Any:
    """A value as JSON that differs where its work may differ.

    Attributes that hold random generators are left out: they are state, not configuration.

    Args:
        value: Plain values, containers, arrays, tensors, functions, classes, and objects with attributes of these.

    Raises:
        OpaqueError: If it holds an object without attributes, such as an open file.
    """
    return _described(value, ())


def configuration_digest(value: Any) -> str:
    """SHA-256 over `described`, 64 hexadecimal digits.

    Raises:
        OpaqueError: As `described`.
    """
    return hashlib.sha256(json.dumps(described(value), sort_keys=True).encode()).hexdigest()


def _described(value: Any, above: tuple[int, ...]) -> Any:
    if id(value) in above:
        return "an object that holds this one"
    inside = functools.partial(_described, above=(*above, id(value)))
    if value is None or isinstance(value, bool | str) or type(value) is int:
        return value
    if isinstance(value, float | int | complex | np.generic | torch.dtype | torch.device | np.dtype | Path):
        return [type(value).__name__, repr(value)]
    if isinstance(value, enum.Enum):
        return [_name(type(value)), value.name]
    if isinstance(value, Mapping):
        pairs = [[inside(key), inside(entry)] for key, entry in value.items()]
        return [type(value).__name__, sorted(pairs, key=json.dumps)]
    if isinstance(value, list | tuple):
        return [type(value).__name__, *map(inside, value)]
    if isinstance(value, set | frozenset):
        return [type(value).__name__, *sorted(map(inside, value), key=json.dumps)]
    if isinstance(value, bytes | bytearray | np.ndarray | torch.Tensor):
        return _content(value)
    if isinstance(value, re.Pattern):
        return ["pattern", value.pattern, value.flags]
    if isinstance(value, functools.partial):
        return ["partial", inside(value.func), inside(value.args), inside(value.keywords)]
    if isinstance(value, types.MethodType):
        return ["method", inside(value.__self__), value.__name__]
    if isinstance(value, types.FunctionType):
        return ["function", *_source(value), _code(value, inside)]
    if isinstance(value, type | types.BuiltinFunctionType | np.ufunc):
        return ["name", *_source(value)]
    if isinstance(value, types.ModuleType):
        return ["module", value.__name__]
    return [*_source(type(value)), inside(_attributes(value))]


def _content(value: bytes | bytearray | np.ndarray | torch.Tensor) -> list[Any]:
    if isinstance(value, bytes | bytearray):
        return ["bytes", hashlib.sha256(value).hexdigest()]
    if isinstance(value, torch.Tensor):
        plain = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    elif value.dtype.hasobject:
        raise OpaqueError("an array of python objects")
    else:
        plain = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    return [str(value.dtype), list(value.shape), hashlib.sha256(plain.data).hexdigest()]


def _attributes(value: Any) -> dict[str, Any]:
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    if not hasattr(value, "__dict__") and not slots:
        raise OpaqueError(f"an object of {_name(type(value))}")
    attributes = {name: getattr(value, name) for name in slots if hasattr(value, name)} | getattr(value, "__dict__", {})
    states = (np.random.RandomState, np.random.Generator, torch.Generator)
    return {name: entry for name, entry in attributes.items() if not isinstance(entry, states)}


def _name(thing: Any) -> str:
    return f"{getattr(thing, '__module__', None)}.{getattr(thing, '__qualname__', getattr(thing, '__name__', '?'))}"


def _source(thing: Any) -> list[str]:
    """The name of a class or function, and a hash of its file where that is not a library's."""
    module = (getattr(thing, "__module__", None) or "builtins").split(".")[0]
    if module in LIBRARIES:
        return [_name(thing)]
    try:
        return [_name(thing), sha256_of(Path(inspect.getfile(thing)))]
    except (TypeError, OSError):  # typed in, or made by `eval`: a function's code is described, too
        return [_name(thing)]


def _code(function: types.FunctionType, inside: Any) -> list[Any]:
    """The code of a function with the values that it holds and the plain global ones that it names."""
    code = function.__code__
    held = [cell.cell_contents for cell in function.__closure__ or ()]
    named = {name: function.__globals__[name] for name in code.co_names if name in function.__globals__}
    plain = {name: entry for name, entry in named.items() if isinstance(entry, bool | int | float | str | tuple)}
    return [_compiled(code), inside([function.__defaults__, function.__kwdefaults__, held, plain])]


def _compiled(code: types.CodeType) -> list[Any]:
    constants = [_compiled(each) if isinstance(each, types.CodeType) else repr(each) for each in code.co_consts]
    return [code.co_code.hex(), constants, list(code.co_names), list(code.co_varnames)]
