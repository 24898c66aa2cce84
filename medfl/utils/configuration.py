"""JSON descriptions of objects by class, attributes and source code, to detect changes.

Two objects with the same description compute the same results, so a cached result of one is valid for the other. A
description does not depend on the process: it contains no address, no `hash`, and no order of a set.
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

LIBRARY_PACKAGES = ("monai", "torch", "numpy", "scipy", "skimage", "builtins", "nibabel", "pydicom", "PIL", "itk")
"""Packages whose code changes only with their version. For classes of other packages, the source file is hashed too."""


class OpaqueError(TypeError):
    """An object can't be described, so its changes can't be detected."""


def describe_object(value: Any) -> Any:
    """Return a JSON description of a value that differs if its behaviour may differ.

    Attributes with random generators are left out, because they are state and not configuration.

    Args:
        value: Plain values, containers, arrays, tensors, functions, classes, and objects with attributes of these
            kinds.

    Raises:
        OpaqueError: If the value contains an object without attributes, such as an open file.
    """
    return _describe(value, ())


def configuration_digest(value: Any) -> str:
    """Return the SHA-256 of `describe_object`, 64 hexadecimal digits.

    Raises:
        OpaqueError: If `describe_object` raises it.
    """
    return hashlib.sha256(json.dumps(describe_object(value), sort_keys=True).encode()).hexdigest()


def _describe(value: Any, above: tuple[int, ...]) -> Any:
    """Describe a value; `above` has the ids of the objects that contain it, to detect cycles."""
    if id(value) in above:
        return "an object that holds this one"
    inside = functools.partial(_describe, above=(*above, id(value)))
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
        return _describe_data(value)
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


def _describe_data(value: bytes | bytearray | np.ndarray | torch.Tensor) -> list[Any]:
    """Describe bytes, an array or a tensor by type, shape and SHA-256."""
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
    """Return an object's attributes without random generators."""
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    if not hasattr(value, "__dict__") and not slots:
        raise OpaqueError(f"an object of {_name(type(value))}")
    attributes = {name: getattr(value, name) for name in slots if hasattr(value, name)} | getattr(value, "__dict__", {})
    states = (np.random.RandomState, np.random.Generator, torch.Generator)
    return {name: entry for name, entry in attributes.items() if not isinstance(entry, states)}


def _name(thing: Any) -> str:
    """Return the full name of a class or function."""
    return f"{getattr(thing, '__module__', None)}.{getattr(thing, '__qualname__', getattr(thing, '__name__', '?'))}"


def _source(thing: Any) -> list[str]:
    """Return the name of a class or function, and the SHA-256 of its file unless a library defines it."""
    module = (getattr(thing, "__module__", None) or "builtins").split(".")[0]
    if module in LIBRARY_PACKAGES:
        return [_name(thing)]
    try:
        return [_name(thing), sha256_of(Path(inspect.getfile(thing)))]
    except (TypeError, OSError):  # defined interactively or by `eval`: `_code` describes the function's code
        return [_name(thing)]


def _code(function: types.FunctionType, inside: Any) -> list[Any]:
    """Describe a function's code, its defaults and closure, and the plain global values that it uses."""
    code = function.__code__
    held = [cell.cell_contents for cell in function.__closure__ or ()]
    named = {name: function.__globals__[name] for name in code.co_names if name in function.__globals__}
    plain = {name: entry for name, entry in named.items() if isinstance(entry, bool | int | float | str | tuple)}
    return [_describe_bytecode(code), inside([function.__defaults__, function.__kwdefaults__, held, plain])]


def _describe_bytecode(code: types.CodeType) -> list[Any]:
    """Describe compiled code, including nested functions."""
    constants = [
        _describe_bytecode(each) if isinstance(each, types.CodeType) else repr(each) for each in code.co_consts
    ]
    return [code.co_code.hex(), constants, list(code.co_names), list(code.co_varnames)]
