"""Field types that data set specs share: sizes, choices and lists of words.

A spec is a model whose fields are the options of one data set, that is, of the command ``medfl prep NAME``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, PlainSerializer, ValidationInfo

from medfl.errors import SettingsError, check_choice


class Positional:
    """Mark in the type of a spec's field: ``medfl prep`` takes the field as positional argument, not as an option."""


class CommaSeparated:
    """Mark in the type of a spec's field: ``medfl prep`` takes its words or numbers as one comma-separated text."""


def read_edges(size: Any) -> Any:
    """Convert text such as 224, 224x160 or 64x64x32 to a tuple of one to three edges.

    A number becomes a tuple of one edge. Other types are returned unchanged.

    Raises:
        SettingsError: If a text has another form.
    """
    if isinstance(size, int) and not isinstance(size, bool):
        return (size,)
    if not isinstance(size, str):
        return size
    if not re.fullmatch(r"\d+([x, ]\d+){0,2}", size):
        raise SettingsError(
            "invalid_value", f"expected a size like 224, 224x160 or 64x64x32, got '{size}'", setting="size", found=size
        )
    return tuple(int(edge) for edge in re.split("[x, ]", size))


def read_height_and_width(size: Any) -> Any:
    """Convert text or a number, such as 224 or 448x224, to (height, width). Other types are returned unchanged.

    Raises:
        SettingsError: If a text has another form, or more than two edges.
    """
    edges = read_edges(size)
    if isinstance(size, str | int) and isinstance(edges, tuple):
        if len(edges) > 2:
            raise SettingsError(
                "setting_out_of_range",
                f"expected one or two edges for images, as in 224 or 448x224, got '{size}'",
                setting="size",
                maximum_edges=2,
                found=size,
            )
        return edges[0], edges[-1]
    return size


def size_text(size: tuple[int, ...]) -> int | str:
    """Return a size as users write it: one number if all edges are equal, otherwise for example 448x224."""
    return size[0] if len(set(size)) == 1 else "x".join(map(str, size))


def _check_positive(size: tuple[int, int]) -> tuple[int, int]:
    if min(size) < 1:
        raise SettingsError(
            "setting_out_of_range",
            f"expected a height and a width >= 1, got {size[0]} and {size[1]}",
            setting="size",
            minimum=1,
            found=size,
        )
    return size


def _split_words(words: Any) -> Any:
    return tuple(word.strip() for word in words.split(",") if word.strip()) if isinstance(words, str) else words


def _serialize_size(size: tuple[int, int]) -> int | str:
    return size_text(size)


def check_mirror(url: str | None, download: bool) -> None:
    """Raise if the address of a mirror is given but nothing is downloaded.

    Raises:
        SettingsError: If `url` is given without ``--download``.
    """
    if url and not download:
        raise SettingsError(
            "missing_setting",
            "--url gives the address to download from: give --download as well, or leave --url out.",
            setting="download",
            needed_by="url",
        )


def check_test_share(test_share: float) -> None:
    """Raise if the share of test images is not in [0, 1).

    Raises:
        SettingsError: If the share is out of range.
    """
    if not 0 <= test_share < 1:
        raise SettingsError(
            "setting_out_of_range",
            f"expected 0 <= test share < 1, got {test_share}",
            setting="test_share",
            found=test_share,
        )


def OneOf(known: Collection[str]) -> AfterValidator:  # noqa: N802
    """Return a pydantic validator that accepts only the known values. Its error names the closest known value."""

    def check(value: str | None, info: ValidationInfo) -> str | None:
        if value is not None:
            check_choice(str(info.field_name).replace("_", " "), value, known)
        return value

    return AfterValidator(check)


def _read_spacing(text: Any) -> Any:
    """Convert text such as 1x1x2.5, 1,1,2.5 or 2 to three numbers; other types are returned unchanged."""
    if not isinstance(text, str):
        return text
    try:
        edges = tuple(float(word) for word in re.split(r"[x,\s]+", text.strip()))
        return edges * 3 if len(edges) == 1 else edges
    except ValueError:
        raise SettingsError(
            "invalid_value",
            f"expected three lengths in millimetres such as 1x1x2.5 for --spacing, got '{text}'",
            setting="spacing",
            found=text,
        ) from None


def _check_spacing(spacing: tuple[float, ...] | None) -> tuple[float, ...] | None:
    if spacing is not None and (len(spacing) != 3 or not all(0 < edge < math.inf for edge in spacing)):
        raise SettingsError(
            "setting_out_of_range",
            f"expected three lengths in millimetres above 0 for --spacing, got {spacing}",
            setting="spacing",
            count=3,
            found=spacing,
        )
    return spacing


Spacing = Annotated[tuple[float, ...] | None, BeforeValidator(_read_spacing), AfterValidator(_check_spacing)]
"""Field type for a voxel spacing in millimetres along each axis: 1x1x2.5 or 1,1,2.5, or one number for all axes."""

HeightWidth = Annotated[
    tuple[int, int],
    BeforeValidator(read_height_and_width),
    AfterValidator(_check_positive),
    PlainSerializer(_serialize_size),
]
"""Field type for a size in pixels: 224, or 448x224 (HxW)."""

Words = Annotated[tuple[str, ...], BeforeValidator(_split_words), CommaSeparated()]
"""Field type for words separated by commas, or a list of words."""
