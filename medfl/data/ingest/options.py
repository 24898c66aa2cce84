"""Kinds of options that data sets share: sizes, choices, lists of words. To be used as types of fields of a spec."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, PlainSerializer, ValidationInfo

from medfl.errors import SettingsError, check_choice


class Positional:
    """Marks the field that the command takes without its name."""


class Commas:
    """Marks a field of several words or numbers that the command takes as one, separated by commas."""


def read_edges(size: Any) -> Any:
    """One to three edges of an image, as in 224, 224x160 or 64x64x32; what is no text and no number stays.

    Raises:
        SettingsError: If a text is none of these.
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
    """Height and width of an image, as in 224 or 448x224; what is no text and no number stays.

    Raises:
        SettingsError: If a text is none of these.
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
    """A size as users write it: one number if all edges are alike, 448x224 if not."""
    return size[0] if len(set(size)) == 1 else "x".join(map(str, size))


def _at_least_one(size: tuple[int, int]) -> tuple[int, int]:
    if min(size) < 1:
        raise SettingsError(
            "setting_out_of_range",
            f"expected a height and a width >= 1, got {size[0]} and {size[1]}",
            setting="size",
            minimum=1,
            found=size,
        )
    return size


def _split(words: Any) -> Any:
    return tuple(word.strip() for word in words.split(",") if word.strip()) if isinstance(words, str) else words


def _written(size: tuple[int, int]) -> int | str:
    return size_text(size)


def check_mirror(url: str | None, download: bool) -> None:
    """Refuse the address of a mirror where nothing is downloaded.

    Raises:
        SettingsError: If it is given without ``--download``.
    """
    if url and not download:
        raise SettingsError(
            "missing_setting",
            "--url says where to download from: give --download as well, or leave it out.",
            setting="download",
            needed_by="url",
        )


def Choose(known: Collection[str]) -> AfterValidator:  # noqa: N802
    """For a field that has one of several values; a wrong one is refused with the nearest known one."""

    def check(value: str | None, info: ValidationInfo) -> str | None:
        if value is not None:
            check_choice(str(info.field_name).replace("_", " "), value, known)
        return value

    return AfterValidator(check)


HeightWidth = Annotated[
    tuple[int, int],
    BeforeValidator(read_height_and_width),
    AfterValidator(_at_least_one),
    PlainSerializer(_written),
]
"""A size in pixels: 224, or 448x224 (HxW)."""

Words = Annotated[tuple[str, ...], BeforeValidator(_split), Commas()]
"""Words separated by commas, or a list."""
