"""What a trial may be: fields of a row with their values, checked against the method and the settings of a run."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import numpy as np
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from medfl.errors import MedflError, SettingsError, did_you_mean
from medfl.plugins import Registry
from medfl.settings import Execution, Settings, read_settings
from medfl.types import Meta
from medfl.utils.dotted import placed
from medfl.utils.field_words import model_of
from medfl_studies.reading import RESERVED
from medfl_studies.schema import StudyRow
from medfl_studies.tuning import ALL, Range, RowSpace, Tuning

ARGS = "method_args#"
"""What the name of a method's setting begins with among the parameters of a trial, as on the command line."""

PRESET = "preset"
"""Stands for a method's presets."""

DIGITS = 4
"""Significant digits of numbers that are drawn."""

FIXED = {"rounds": "all trials have the same budget", "privacy": "all trials promise the same, but for 'privacy#clip'"}
"""Settings that are not tuned, with the reason."""

PLACED = frozenset({"privacy#clip"})
"""Parts of settings that are tuned; rows have the whole of it (`medfl_studies.tune.price.with_ledger`)."""


@dataclass(frozen=True)
class Axis:
    """One field and its values.

    Attributes:
        name: As on the command line: ``method_args#mu``, ``optimizer#lr``.
        values: The values, or None for
        range: a range.
        whole: Whether the range has whole numbers only.
    """

    name: str
    values: tuple[Any, ...] | None
    range: Range | None = None
    whole: bool = False

    def ends(self) -> tuple[Any, ...]:
        """Its values, or both ends of its range: what must be allowed for all to be."""
        if self.values is not None:
            return self.values
        assert self.range is not None
        return self.fitting(self.range.low), self.fitting(self.range.high)

    def fitting(self, number: float) -> int | float:
        """A number of the range that is near another one, short enough to be read."""
        assert self.range is not None
        near = round(number) if self.whole else float(f"{number:.{DIGITS}g}")
        within = min(max(near, self.range.low), self.range.high)
        return int(within) if self.whole else float(within)

    def grid(self) -> tuple[Any, ...]:
        """Its values, or the points of its range.

        Raises:
            SettingsError: If the range does not say how many.
        """
        if self.values is not None:
            return self.values
        assert self.range is not None
        if self.range.points is None:
            raise SettingsError(
                "missing_setting",
                f"'{self.name}': a grid needs the number of 'points' of a range, or a list of values.",
                setting="points",
                axis=self.name,
            )
        spaced = np.geomspace if self.range.log else np.linspace
        points = spaced(float(self.range.low), float(self.range.high), self.range.points)
        return tuple(dict.fromkeys(self.fitting(float(point)) for point in points))


@dataclass(frozen=True)
class Space:
    """All axes of a row.

    Attributes:
        row: Its name.
        axes: At least one.
    """

    row: str
    axes: tuple[Axis, ...]

    def grid(self) -> list[Meta]:
        """Every combination, the last axis fastest."""
        points = itertools.product(*(axis.grid() for axis in self.axes))
        return [dict(zip([axis.name for axis in self.axes], point, strict=True)) for point in points]


def read_space(name: str, row: StudyRow, tuning: Tuning, others: Meta, registry: Registry) -> Space:
    """What is tuned of a row, with every value checked.

    Args:
        name: Of the row.
        row: The row.
        tuning: The section of the study file.
        others: Options of the row's runs, for settings that must fit together.
        registry: Knows the methods.

    Raises:
        SettingsError: If there is nothing to tune, a field is unknown, or a value is not one of it.
    """
    own = tuning.rows.get(name, RowSpace())
    axes = [_method_axis(name, row, key, raw, registry) for key, raw in own.method_args.items()]
    axes += [_setting_axis(name, key, raw, others) for key, raw in (tuning.settings | own.settings).items()]
    if not axes:
        raise SettingsError(
            "nothing_to_tune",
            f"row '{name}' has nothing to tune, and every row gets the same budget. Give it a field under 'tune.rows', "
            "or all rows one under 'tune.settings', such as optimizer#lr: {low: 0.001, high: 0.1, log: true}.",
            row=name,
        )
    return Space(name, tuple(axes))


def with_parameters(row: StudyRow, parameters: Meta) -> StudyRow:
    """A row with the parameters of a trial in it.

    Args:
        row: The row.
        parameters: Name, as in `Axis`, to value.
    """
    method_args, settings = dict(row.method_args), dict(row.settings)
    for name, value in parameters.items():
        if name.startswith(ARGS):
            method_args = placed(method_args, name.removeprefix(ARGS), value)
        else:  # parts of the bundle's components are options of their own
            settings = placed(settings, name, value) if name in PLACED else settings | {name: value}
    return row.model_copy(update={"method_args": method_args, "settings": settings})


def _method_axis(name: str, row: StudyRow, key: str, raw: Any, registry: Registry) -> Axis:
    """A setting of the method, whose every value makes a method."""
    place, kind = f"tune: row '{name}', method_args.{key}", registry.method_class(row.method)
    presets = tuple(kind.presets) if key == PRESET else ()
    axis = _axis(f"{ARGS}{key}", raw, None if presets else _declared(kind, key), presets, place)
    with _naming(place):
        for value in axis.ends():
            registry.make_method(row.method, placed(row.method_args, key, value))
    return axis


def _setting_axis(name: str, key: str, raw: Any, others: Meta) -> Axis:
    """An option of the run; those of medfl's own are read with every value, those of the bundle are not known here."""
    place = f"tune: row '{name}', settings.{key}"
    _check_free(key, place)
    axis = _axis(key, raw, _declared(Settings, key), (), place)
    if key.partition("#")[0] in Settings.model_fields:
        known = {"rounds": 1} | {other: value for other, value in others.items() if other in Settings.model_fields}
        with _naming(place):
            for value in axis.ends():
                read_settings(Settings, placed(known, key, value), "the run")
    return axis


def _check_free(key: str, place: str) -> None:
    """Refuse settings that a search must not change."""
    top = key.partition("#")[0]
    if top in RESERVED:
        raise SettingsError(
            "reserved_setting",
            f"{place}: the study gives each run its own '{top}'. Remove it there.",
            setting=top,
            place=place,
        )
    if top in Execution.model_fields:
        raise SettingsError(
            "execution_setting",
            f"{place}: '{top}' says how a machine computes and changes no score. Remove it.",
            setting=top,
            place=place,
        )
    if top in FIXED and key not in PLACED:
        raise SettingsError(
            "setting_not_tunable",
            f"{place}: '{top}' can't be tuned: {FIXED[top]}. Remove it.",
            setting=top,
            place=place,
        )
    if top in Settings.model_fields and key not in (top, *PLACED):
        raise SettingsError(
            "setting_part_not_tunable",
            f"{place}: parts of '{top}' are tuned together: give a list of its whole values.",
            setting=top,
            place=place,
        )


def _axis(name: str, raw: Any, info: FieldInfo | None, presets: Sequence[str], place: str) -> Axis:
    """A field's values as the file has them."""
    if raw == ALL:
        values = tuple(presets) if presets else _every(info)
        if not values:
            raise SettingsError(
                "all_not_supported",
                f"{place}: 'all' is for presets, choices, and yes or no. Give a list, or low and high.",
                place=place,
            )
        return Axis(name, values)
    if isinstance(raw, list) and raw:
        if any(value in raw[:number] for number, value in enumerate(raw)):
            raise SettingsError(
                "duplicate_value", f"{place}: expected values that are unlike each other, got {raw!r}.", place=place
            )
        return Axis(name, tuple(raw))
    if isinstance(raw, dict):
        limits = read_settings(Range, raw, place)
        kinds = set() if info is None else set(_kinds(info.annotation))
        if info is not None and not kinds & {int, float} or presets:
            raise SettingsError(
                "range_not_supported",
                f"{place}: it is no number, so it has no range. Give a list of values.",
                place=place,
            )
        ends_whole = isinstance(limits.low, int) and isinstance(limits.high, int)
        if (whole := float not in kinds if info is not None else ends_whole) and not ends_whole:
            raise SettingsError(
                "not_whole_numbers",
                f"{place}: expected whole numbers, got {limits.low} and {limits.high}.",
                place=place,
                low=limits.low,
                high=limits.high,
            )
        return Axis(name, None, limits, whole)
    raise SettingsError(
        "invalid_range", f"{place}: expected a list of values, {{low: , high: }}, or 'all', got {raw!r}.", place=place
    )


def _declared(model: type[BaseModel], key: str) -> FieldInfo | None:
    """The field that a key names; None inside of what is no model, and for options of the bundle.

    Raises:
        SettingsError: If a method has no such field.
    """
    info: FieldInfo | None = None
    kind: type[BaseModel] | None = model
    for part in key.split("#"):
        if kind is None:
            return None
        info = kind.model_fields.get(part)
        if info is None and model is not Settings:
            known = [*kind.model_fields, *([PRESET] if kind is model else [])]
            raise SettingsError(
                "unknown_setting",
                f"tune: '{model.__name__}' has no field '{key}'. {did_you_mean(part, known)}",
                name=key,
                place=model.__name__,
            )
        kind = model_of(info) if info is not None else None
    return info


def _kinds(annotation: Any) -> Iterator[Any]:
    """The plain types that a field may have."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        yield from _kinds(parts[0])
    elif origin in (Union, UnionType):
        for part in parts:
            yield from _kinds(part)
    else:
        yield annotation


def _every(info: FieldInfo | None) -> tuple[Any, ...]:
    """All values of a choice, or of yes and no; none of anything else."""
    values: list[Any] = []
    for kind in _kinds(info.annotation) if info is not None else ():
        values += [False, True] if kind is bool else get_args(kind) if get_origin(kind) is Literal else []
    return tuple(values)


@contextmanager
def _naming(place: str) -> Iterator[None]:
    """Say where a value stands that is refused."""
    try:
        yield
    except MedflError as error:
        raise SettingsError(error.code, f"{place}: {error}", **error.fields) from None
