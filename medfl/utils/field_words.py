"""Fields of pydantic models in words: what one may be, and its default, as they are typed on the command line."""

from __future__ import annotations

import re
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo


def flow(text: str) -> str:
    """One line of Markdown."""
    return re.sub(r"`{1,2}([^`]+)`{1,2}", r"`\1`", " ".join(text.split()))


def default_of(info: FieldInfo) -> str:
    """Its default as it is typed on the command line, or ``required``."""
    return "required" if info.is_required() else value_of(info.get_default(call_default_factory=True))


def type_of(info: FieldInfo) -> str:
    """What a setting may be, with its bounds, for example ``number, >= 0``."""
    signs = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
    bounds = [
        f"{sign} {value_of(getattr(mark, key))}"
        for mark in info.metadata
        for key, sign in signs.items()
        if hasattr(mark, key)
    ]
    return ", ".join([_annotation(info.annotation), *bounds])


def _annotation(annotation: Any) -> str:
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return type_of(FieldInfo.from_annotation(annotation))
    if origin is Literal:
        return " or ".join(f"`{value_of(part)}`" for part in parts)
    if origin in (Union, UnionType):
        return " or ".join(_annotation(part) for part in parts)
    if origin in (tuple, list):
        return f"list of {_annotation(parts[0])}" if parts else "list"
    if origin is dict:
        return f"{_annotation(parts[0])} to {_annotation(parts[1])}"
    names = {float: "number", int: "whole number", str: "text", bool: "`True` or `False`", NoneType: "`None`"}
    return names.get(annotation, getattr(annotation, "__name__", str(annotation)))


def value_of(value: Any) -> str:
    """A value as it is typed on the command line."""
    if isinstance(value, (tuple, list)):
        return "[" + ", ".join(repr(part) for part in value) + "]"
    return str(value)
