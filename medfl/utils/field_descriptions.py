"""Descriptions of pydantic fields in words: type, default, and validation errors."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import AfterValidator, BaseModel, Field
from pydantic.fields import FieldInfo
from typing_extensions import is_typeddict

from medfl.errors import did_you_mean, validation_message

SELF_EXPLANATORY_ERRORS = re.compile(
    r"(\w+_)?(type|parsing|parsing_size|from_float)|literal_error|finite_number|(greater|less)_than(_equal)?"
)
"""Pattern of pydantic's error types that a field's type and bounds explain completely."""


def flow(text: str) -> str:
    """Convert a docstring to one line of Markdown with single backticks."""
    return re.sub(r"`{1,2}([^`]+)`{1,2}", r"`\1`", " ".join(text.split()))


def default_of(info: FieldInfo) -> str:
    """Return a field's default as typed on the command line, or ``required``."""
    return "required" if info.is_required() else value_of(info.get_default(call_default_factory=True))


def type_of(info: FieldInfo) -> str:
    """Return a field's type in words, with its bounds, for example ``number, >= 0``."""
    signs = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
    bounds = [
        f"{sign} {value_of(getattr(mark, key))}"
        for mark in info.metadata
        for key, sign in signs.items()
        if hasattr(mark, key)
    ]
    lengths = [f"at most {mark.max_length} characters" for mark in info.metadata if hasattr(mark, "max_length")]
    words = [mark.words for mark in info.metadata if hasattr(mark, "words")]
    return ", ".join([_annotation(info.annotation), *bounds, *lengths, *words])


def words_of(kind: Any) -> str:
    """Return a type in words, with its bounds and the attribute ``words`` of its annotations, if they have one."""
    return type_of(FieldInfo.from_annotation(kind))


def _annotation(annotation: Any) -> str:
    """Return a type annotation in words."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return words_of(annotation)
    if origin is Literal:
        return " or ".join(f"`{value_of(part)}`" for part in parts)
    if origin in (Union, UnionType):
        return " or ".join(_annotation(part) for part in parts)
    if origin in (tuple, list):
        return f"list of {_annotation(parts[0])}" if parts else "list"
    if origin is dict:
        return f"{_annotation(parts[0])} to {_annotation(parts[1])}"
    if is_typeddict(annotation):
        return "; ".join(
            f"{name}: {words_of(kind)}" for name, kind in get_type_hints(annotation, None, None, True).items()
        )
    names = {float: "number", int: "whole number", str: "text", bool: "`True` or `False`", NoneType: "`None`"}
    return names.get(annotation, getattr(annotation, "__name__", str(annotation)))


def value_of(value: Any) -> str:
    """Return a value as typed on the command line."""
    if isinstance(value, (tuple, list)):
        return "[" + ", ".join(repr(part) for part in value) + "]"
    return str(value.model_dump(mode="json") if isinstance(value, BaseModel) else value)


def model_of(info: FieldInfo) -> type[BaseModel] | None:
    """Return the pydantic model in a field's type, also in ``Model | None``; None if the type has no model."""
    parts = [part for part in (info.annotation, *get_args(info.annotation)) if isinstance(part, type)]
    return next((part for part in parts if issubclass(part, BaseModel)), None)


def explain(kind: type[BaseModel], problem: Mapping[str, Any], also: Collection[str] = ()) -> str:
    """Describe a validation error in one line.

    Args:
        kind: Model that was validated.
        problem: An entry of pydantic's ``ValidationError.errors()``.
        also: Known names besides the model's fields, for the message about an unknown name.
    """
    *within, key = problem["loc"] or ("",)
    name = ".".join(str(part) for part in problem["loc"])
    model = _model_at(kind, within)
    if problem["type"] == "extra_forbidden":
        known = [*model.model_fields, *(() if within else also)]
        return f"unknown option '{name}'. " + did_you_mean(str(key), known)
    if problem["type"] == "missing":
        return f"'{name}' is required and was not given"
    if problem["type"] == "value_error":  # raised by medfl's validators, whose messages say what they expected
        return f"'{name}': {problem['ctx']['error']}" if name else str(problem["ctx"]["error"])
    return f"'{name or '(all)'}': {_expected(model, str(key), problem)}; got {problem['input']!r}"


def _expected(model: type[BaseModel], key: str, problem: Mapping[str, Any]) -> str:
    """Return the expected value of a field. Use pydantic's message if type and bounds don't explain the error."""
    info = model.model_fields.get(key)
    if info is None or not SELF_EXPLANATORY_ERRORS.fullmatch(problem["type"]):
        return validation_message(problem)
    inner = model_of(info)
    words = type_of(info) if inner is None else _notation_of_parts(inner)
    words = re.sub(r"^(whole number|number|list|text)", r"a \1", re.sub(r"`([\d.]+|True|False|None)`", r"\1", words))
    finite = ", finite" if problem["type"] == "finite_number" else ""
    return f"expected {words}{finite}".replace("`", "'")


def _notation_of_parts(model: type[BaseModel]) -> str:
    """Return the notation of a setting with several parts, and their types."""
    needed = {name: type_of(info) for name, info in model.model_fields.items() if info.is_required()}
    others = [name for name in model.model_fields if name not in needed]
    written = ", ".join(f"'{name}': ..." for name in needed)
    words = f'"{{{written}}}" with ' + ", ".join(f"{name} ({what})" for name, what in needed.items())
    return f"{words}; optional: {', '.join(others)}" if others else words


def _model_at(kind: type[BaseModel], within: Sequence[str | int]) -> type[BaseModel]:
    """Return the model at the given keys, or `kind` for no keys."""
    for key in within:
        info = kind.model_fields.get(str(key))
        kind = (info and model_of(info)) or kind
    return kind


def check_device(name: str) -> str:
    """Return a device's name if it is valid.

    Raises:
        ValueError: If it is invalid.
    """
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", name):
        raise ValueError(f"expected auto, cpu, cuda, or cuda:N for one of several GPUs, as cuda:0; got '{name}'")
    return name


PluginName = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_]{0,62}$")]
"""Name of a plugin's record, such as a robust rule. Only its characters are checked here."""


Device = Annotated[str, AfterValidator(check_device)]
"""Name of a device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``."""


WorkerDevice = Annotated[str, Field(pattern=r"^(cpu|cuda:\d+)$")]
"""Name of the device of one worker process: ``cpu`` or ``cuda:N``."""
