"""Convert the result of deterministic transforms to tensors and JSON, so that it can be cached and sent without pickle.

An item is the result of a chain of transforms for one case: a dictionary, or several if the chain crops patches.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from monai.data import MetaTensor

from medfl.errors import DataError
from medfl.types import Tensors
from medfl.utils.wire import DTYPES

Packed = tuple[Any, Tensors]
"""Packed item: its structure as JSON, and its tensors by the names that the structure uses."""


def pack_item(item: Any, case: Mapping[str, Any], where: str) -> Packed:
    """Convert an item to JSON and tensors.

    Entries that the chain left unchanged, such as paths, are stored as references to the case.

    Args:
        item: Dictionaries and lists of tensors, arrays, numbers, text and None.
        case: Case that the chain received.
        where: Name of the case, for the message.

    Raises:
        DataError: If the item contains any other type.
    """
    keys_by_id = {id(value): key for key, value in case.items()}
    tensors: Tensors = {}

    def named(tensor: torch.Tensor) -> str:
        if tensor.dtype not in DTYPES:
            raise TypeError(str(tensor.dtype))
        name = str(len(tensors))
        tensors[name] = tensor.detach().cpu().contiguous()
        return name

    def form(value: Any) -> Any:
        """Return the JSON form of a value: its kind, and its content or the name of its tensor."""
        if isinstance(value, str | int | float | Path) and id(value) in keys_by_id:
            return {"case": keys_by_id[id(value)]}
        if isinstance(value, enum.Enum):
            return form(value.value)
        if value is None or isinstance(value, bool | int | float | str):
            return {"value": value}
        if isinstance(value, MetaTensor):
            return {"image": named(value.as_tensor()), "meta": form(value.meta)}
        if isinstance(value, torch.Tensor):
            return {"tensor": named(value)}
        if isinstance(value, np.ndarray | np.generic):
            array = np.array(value)  # not `ascontiguousarray`, which adds an axis to a number
            return {"array": named(torch.from_numpy(array)), "number": isinstance(value, np.generic)}
        if isinstance(value, list | tuple):
            return {"list": [form(each) for each in value], "tuple": isinstance(value, tuple)}
        if isinstance(value, dict):
            return {"dict": [[_key(key), form(each)] for key, each in value.items()]}
        raise TypeError(type(value).__name__)

    try:
        return form(item), tensors
    except TypeError as error:
        raise DataError(
            "unsupported_value",
            f"expected tensors, arrays, numbers and text before the first random transform, got {error} in {where}. "
            "Convert it there, or choose cache 'none'.",
            where=where,
            found=str(error),
        ) from None


def unpack_item(content: Packed, case: Mapping[str, Any], copy: bool) -> Any:
    """Convert a packed item back to dictionaries and lists of tensors, arrays, numbers and text.

    Args:
        content: Result of `pack_item`.
        case: Case with the entries that are stored as references.
        copy: Whether tensors are copied instead of shared with `content`.
    """
    tensors = content[1]

    def tensor(name: str) -> torch.Tensor:
        return tensors[name].clone() if copy else tensors[name]

    def item(form: Any) -> Any:
        """Return the value that a JSON form describes."""
        if "value" in form:
            return form["value"]
        if "image" in form:
            return MetaTensor(tensor(form["image"]), meta=item(form["meta"]))
        if "tensor" in form:
            return tensor(form["tensor"])
        if "array" in form:
            array = tensor(form["array"]).numpy()
            return array[()] if form["number"] else array
        if "list" in form:
            values = [item(each) for each in form["list"]]
            return tuple(values) if form["tuple"] else values
        if "dict" in form:
            return {key: item(each) for key, each in form["dict"]}
        return case[form["case"]]

    return item(content[0])


def _key(key: Any) -> str:
    if not isinstance(key, str):
        raise TypeError(f"a key of type {type(key).__name__}")
    return key.value if isinstance(key, enum.Enum) else key
