"""Check ``configs/metadata.json`` against the rules of MONAI.

The rules of MONAI's schema ``meta_schema_20240725.json`` are repeated here because MONAI's ``verify_metadata``
downloads the schema. Two rules come from the model zoo: a version has three numbers, and the
changelog has an entry for it.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping
from typing import Any

SCHEMA = "meta_schema_20240725.json"
"""File name of the schema whose rules are checked."""

OLD_PACKAGES = "optional_packages_version"
"""Former name of ``required_packages_version``, which MONAI still reads."""

REQUIRED = {
    "schema": "text",
    "version": "text",
    "monai_version": "text",
    "pytorch_version": "text",
    "numpy_version": "text",
    "required_packages_version": "an object",
    "task": "text",
    "description": "text",
    "authors": "text",
    "copyright": "text",
    "network_data_format": "an object",
    "changelog": "an object",  # required by the model zoo, not by the schema
}
"""Maps each required top-level key of the metadata to the type of its value."""

OPTIONAL = {
    "data_source": "text",
    "data_type": "text",
    "image_classes": "text",
    "label_classes": "text",
    "pred_classes": "text",
    "eval_metrics": "an object",
    "intended_use": "text",
    "references": "a list of texts",
    "supported_apps": "an object",
}
"""Maps each optional top-level key of the metadata to the type of its value."""

TENSOR = {
    "type": "text",
    "format": "text",
    "num_channels": "a whole number",
    "spatial_shape": "a list of whole numbers and texts",
    "dtype": "text",
    "value_range": "a list of numbers",
}
"""Maps each required key of a network input or output in the metadata to the type of its value."""

TENSOR_OPTIONAL = {"is_patch_data": "true or false", "channel_def": "an object"}
"""Maps each optional key of a network input or output in the metadata to the type of its value."""

FORMULA = re.compile(r"\*|[0-9pn+\-*/() ]+")
"""Pattern of a size in ``spatial_shape``: ``*``, or arithmetic on the unknowns ``p`` and ``n`` that MONAI evaluates."""


def check_metadata(content: Any) -> list[str]:
    """Return the problems of a bundle's metadata, a phrase each.

    Args:
        content: Content of the file.
    """
    if not isinstance(content, dict):
        return [f"expected an object, got {_name(content)}"]
    required = dict(REQUIRED)
    if OLD_PACKAGES in content:
        required[OLD_PACKAGES] = required.pop("required_packages_version")
    problems = _check_object("", content, required, OPTIONAL) + _check_version(content)
    for key, value in content.items():
        if not re.fullmatch(r"[_a-zA-Z0-9]+_data_format", str(key)):
            continue
        if isinstance(value, dict):
            problems += _check_format(key, value)
        elif key not in required:
            problems.append(f"'{key}' must be an object, got {_name(value)}")
    return problems


def _check_version(content: Mapping[str, Any]) -> list[str]:
    """Return the problems of the version and of its entry in the changelog."""
    version, changelog = content.get("version"), content.get("changelog")
    if not isinstance(version, str):
        return []
    problems = []
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        problems.append(f"'version' must be three numbers such as 0.1.0, got '{version}'")
    if isinstance(changelog, dict) and version not in changelog:
        problems.append(f"'changelog' has no entry for version {version}; add one")
    return problems


def _check_format(name: str, value: Mapping[str, Any]) -> list[str]:
    """Return the problems of a network's data format."""
    sides = {"inputs": "an object", "outputs": "an object"}
    problems = _check_object(name, value, sides, {"post_processed_outputs": "an object"})
    for side in (*sides, "post_processed_outputs"):
        parts = value.get(side)
        for key, part in parts.items() if isinstance(parts, dict) else ():
            where = f"{name}#{side}#{key}"
            if isinstance(part, dict):
                problems += _check_object(where, part, TENSOR, TENSOR_OPTIONAL) + _check_formulas(where, part)
            elif not isinstance(part, (str, int, float)):
                problems.append(f"'{where}' must be an object, a text or a number, got {_name(part)}")
    return problems


def _check_formulas(where: str, tensor: Mapping[str, Any]) -> list[str]:
    """Return the problems of the sizes in ``spatial_shape``."""
    shape = tensor.get("spatial_shape")
    sizes = [size for size in shape if isinstance(size, str)] if isinstance(shape, list) else []
    return [
        f"'{where}#spatial_shape' holds '{size}'; expected '*' or arithmetic on p and n such as '2**p*n'"
        for size in sizes
        if not FORMULA.fullmatch(size)
    ]


def _check_object(
    where: str, value: Mapping[str, Any], required: Mapping[str, str], optional: Mapping[str, str]
) -> list[str]:
    """Return one phrase with all missing keys, and one for each value of the wrong type."""
    missing = [key for key in required if key not in value]
    at = f" in '{where}'" if where else ""
    problems = [f"these keys are missing{at}: {', '.join(missing)}"] if missing else []
    for key, expected in {**required, **optional}.items():
        if key in value and not _has_type(value[key], expected):
            name = f"{where}#{key}" if where else key
            problems.append(f"'{name}' must be {expected}, got {_name(value[key])}")
    return problems


def _has_type(value: Any, expected: str) -> bool:
    """Return whether a value has a type, given as in `REQUIRED`."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    tests = {
        "text": isinstance(value, str),
        "an object": isinstance(value, dict),
        "a whole number": whole,
        "a number": whole or isinstance(value, float),
        "true or false": isinstance(value, bool),
    }
    if expected in tests:
        return tests[expected]
    kinds = {
        "a list of texts": ("text",),
        "a list of numbers": ("a number",),
        "a list of whole numbers and texts": ("a whole number", "text"),
    }[expected]
    return isinstance(value, list) and all(any(_has_type(part, kind) for kind in kinds) for part in value)


def _name(value: Any) -> str:
    """Return a short text for a value, for a message."""
    names = {dict: "an object", type(None): "null"}
    return names.get(type(value), reprlib.repr(value))
