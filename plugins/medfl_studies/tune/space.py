"""Search space of a row: fields with their values, checked against the method and the settings of a run.

A row of a study is a method with settings. An axis is one field that a search varies; a trial is one combination of
values, a value for each axis. The name ``a#b`` means the part ``b`` of the setting ``a``.
"""

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
from medfl.utils.field_descriptions import model_of
from medfl.utils.nested import with_nested_value
from medfl_studies.schema import StudyRow
from medfl_studies.study_reader import RESERVED_SETTINGS
from medfl_studies.tuning_section import ALL_VALUES, RowSpace, Tuning, ValueRange

METHOD_ARGS_PREFIX = "method_args#"
"""Prefix of a method's settings among the parameters of a trial."""

PRESET_KEY = "preset"
"""Key that selects among a method's presets."""

SIGNIFICANT_DIGITS = 4
"""Number of significant digits to which sampled numbers are rounded."""

REASONS_NOT_TUNABLE = {
    "rounds": "all trials must have the same number",
    "privacy": "all trials must have the same guarantee; only 'privacy#clip' can be tuned",
}
"""Maps settings that can't be tuned to the reason."""

TUNABLE_PARTS = frozenset({"privacy#clip"})
"""Parts that can be tuned of settings that can't be tuned as a whole.

The row must give the whole setting.
"""


@dataclass(frozen=True)
class SearchAxis:
    """One field of a search space with its values.

    Attributes:
        name: Name of the field, such as ``method_args#mu`` or ``optimizer#lr``.
        values: Values to choose from, or None for a range.
        range: Range of numbers, or None for values.
        whole: Whether the range contains integers only.
    """

    name: str
    values: tuple[Any, ...] | None
    range: ValueRange | None = None
    whole: bool = False

    def extreme_values(self) -> tuple[Any, ...]:
        """Return the values, or both ends of the range. If these values are valid, every value of the axis is valid."""
        if self.values is not None:
            return self.values
        assert self.range is not None
        return self.round_into_range(self.range.low), self.round_into_range(self.range.high)

    def round_into_range(self, number: float) -> int | float:
        """Round a number to `SIGNIFICANT_DIGITS`, or to an integer if `whole`, and clip it to the range."""
        assert self.range is not None
        near = round(number) if self.whole else float(f"{number:.{SIGNIFICANT_DIGITS}g}")
        within = min(max(near, self.range.low), self.range.high)
        return int(within) if self.whole else float(within)

    def grid(self) -> tuple[Any, ...]:
        """Return the values that a grid search tries: all values, or evenly spaced points of the range.

        Raises:
            SettingsError: If the range has no number of points.
        """
        if self.values is not None:
            return self.values
        assert self.range is not None
        if self.range.points is None:
            raise SettingsError(
                "missing_setting",
                f"'{self.name}': a grid needs the number of 'points' of the range, or a list of values.",
                setting="points",
                axis=self.name,
            )
        spaced = np.geomspace if self.range.log else np.linspace
        points = spaced(float(self.range.low), float(self.range.high), self.range.points)
        return tuple(dict.fromkeys(self.round_into_range(float(point)) for point in points))


@dataclass(frozen=True)
class SearchSpace:
    """Search space of a row.

    Attributes:
        row: Name of the row.
        axes: Fields that the search varies; at least one.
    """

    row: str
    axes: tuple[SearchAxis, ...]

    def grid(self) -> list[Meta]:
        """Return every combination of values; the last axis varies fastest."""
        points = itertools.product(*(axis.grid() for axis in self.axes))
        return [dict(zip([axis.name for axis in self.axes], point, strict=True)) for point in points]


def read_space(name: str, row: StudyRow, tuning: Tuning, others: Meta, registry: Registry) -> SearchSpace:
    """Read the search space of a row, and check every value.

    Args:
        name: Name of the row.
        row: The row.
        tuning: Section ``tune`` of the study file.
        others: Other options of the row's runs; some settings are valid only together.
        registry: Registry of the methods.

    Raises:
        SettingsError: If the row has nothing to tune, a field is unknown, or a value is not valid.
    """
    row_space = tuning.rows.get(name, RowSpace())
    axes = [_parse_method_axis(name, row, key, raw, registry) for key, raw in row_space.method_args.items()]
    axes += [_parse_setting_axis(name, key, raw, others) for key, raw in (tuning.settings | row_space.settings).items()]
    if not axes:
        raise SettingsError(
            "nothing_to_tune",
            f"Row '{name}' has nothing to tune. Give it a field under 'tune.rows', or give all rows a field under "
            "'tune.settings', such as optimizer#lr: {low: 0.001, high: 0.1, log: true}.",
            row=name,
        )
    return SearchSpace(name, tuple(axes))


def with_parameters(row: StudyRow, parameters: Meta) -> StudyRow:
    """Return a copy of a row in which the parameters of a trial replace the row's own values.

    Args:
        row: The row.
        parameters: Mapping from the names of axes (`SearchAxis.name`) to values.
    """
    method_args, settings = dict(row.method_args), dict(row.settings)
    for name, value in parameters.items():
        if name.startswith(METHOD_ARGS_PREFIX):
            method_args = with_nested_value(method_args, name.removeprefix(METHOD_ARGS_PREFIX), value)
        else:  # a part of a bundle's component is a separate option
            settings = with_nested_value(settings, name, value) if name in TUNABLE_PARTS else settings | {name: value}
    return row.model_copy(update={"method_args": method_args, "settings": settings})


def _parse_method_axis(name: str, row: StudyRow, key: str, raw: Any, registry: Registry) -> SearchAxis:
    """Parse the values of a method's setting; check that each value builds a method."""
    place, kind = f"tune: row '{name}', method_args.{key}", registry.method_class(row.method)
    presets = tuple(kind.presets) if key == PRESET_KEY else ()
    axis = _parse_axis(f"{METHOD_ARGS_PREFIX}{key}", raw, None if presets else _find_field(kind, key), presets, place)
    with _prefix_errors(place):
        for value in axis.extreme_values():
            registry.make_method(row.method, with_nested_value(row.method_args, key, value))
    return axis


def _parse_setting_axis(name: str, key: str, raw: Any, others: Meta) -> SearchAxis:
    """Parse the values of an option of the run.

    Values of medfl's own options are validated; options of the bundle are unknown here.
    """
    place = f"tune: row '{name}', settings.{key}"
    _check_tunable(key, place)
    axis = _parse_axis(key, raw, _find_field(Settings, key), (), place)
    if key.partition("#")[0] in Settings.model_fields:
        known = {"rounds": 1} | {other: value for other, value in others.items() if other in Settings.model_fields}
        with _prefix_errors(place):
            for value in axis.extreme_values():
                read_settings(Settings, with_nested_value(known, key, value), "the run")
    return axis


def _check_tunable(key: str, place: str) -> None:
    """Raise SettingsError for settings that a search must not change."""
    top = key.partition("#")[0]
    if top in RESERVED_SETTINGS:
        raise SettingsError(
            "reserved_setting",
            f"{place}: the study sets '{top}' for each run itself. Remove it.",
            setting=top,
            place=place,
        )
    if top in Execution.model_fields:
        raise SettingsError(
            "execution_setting",
            f"{place}: '{top}' controls the execution and does not change the scores. Remove it.",
            setting=top,
            place=place,
        )
    if top in REASONS_NOT_TUNABLE and key not in TUNABLE_PARTS:
        raise SettingsError(
            "setting_not_tunable",
            f"{place}: '{top}' can't be tuned: {REASONS_NOT_TUNABLE[top]}. Remove it.",
            setting=top,
            place=place,
        )
    if top in Settings.model_fields and key not in (top, *TUNABLE_PARTS):
        raise SettingsError(
            "setting_part_not_tunable",
            f"{place}: parts of '{top}' can't be tuned separately. Give a list of whole values.",
            setting=top,
            place=place,
        )


def _parse_axis(name: str, raw: Any, info: FieldInfo | None, presets: Sequence[str], place: str) -> SearchAxis:
    """Parse the values of a field."""
    if raw == ALL_VALUES:
        values = tuple(presets) if presets else _all_values(info)
        if not values:
            raise SettingsError(
                "all_not_supported",
                f"{place}: 'all' is supported for presets, choices and booleans only. Give a list, or low and high.",
                place=place,
            )
        return SearchAxis(name, values)
    if isinstance(raw, list) and raw:
        if any(value in raw[:number] for number, value in enumerate(raw)):
            raise SettingsError("duplicate_value", f"{place}: expected distinct values, got {raw!r}.", place=place)
        return SearchAxis(name, tuple(raw))
    if isinstance(raw, dict):
        limits = read_settings(ValueRange, raw, place)
        plain_types = set() if info is None else set(_plain_types(info.annotation))
        if info is not None and not plain_types & {int, float} or presets:
            raise SettingsError(
                "range_not_supported",
                f"{place}: a range is supported for numbers only. Give a list of values.",
                place=place,
            )
        ends_whole = isinstance(limits.low, int) and isinstance(limits.high, int)
        if (whole := float not in plain_types if info is not None else ends_whole) and not ends_whole:
            raise SettingsError(
                "not_whole_numbers",
                f"{place}: expected integers, got {limits.low} and {limits.high}.",
                place=place,
                low=limits.low,
                high=limits.high,
            )
        return SearchAxis(name, None, limits, whole)
    raise SettingsError(
        "invalid_range", f"{place}: expected a list of values, {{low: , high: }}, or 'all', got {raw!r}.", place=place
    )


def _find_field(model: type[BaseModel], key: str) -> FieldInfo | None:
    """Return the field that a key names; None for parts of a value that is no model, and for options of the bundle.

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
            known = [*kind.model_fields, *([PRESET_KEY] if kind is model else [])]
            raise SettingsError(
                "unknown_setting",
                f"tune: '{model.__name__}' has no field '{key}'. {did_you_mean(part, known)}",
                name=key,
                place=model.__name__,
            )
        kind = model_of(info) if info is not None else None
    return info


def _plain_types(annotation: Any) -> Iterator[Any]:
    """Yield the plain types of a field."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        yield from _plain_types(parts[0])
    elif origin in (Union, UnionType):
        for part in parts:
            yield from _plain_types(part)
    else:
        yield annotation


def _all_values(info: FieldInfo | None) -> tuple[Any, ...]:
    """Return all values of a choice or boolean; empty for other fields."""
    values: list[Any] = []
    for kind in _plain_types(info.annotation) if info is not None else ():
        values += [False, True] if kind is bool else get_args(kind) if get_origin(kind) is Literal else []
    return tuple(values)


@contextmanager
def _prefix_errors(place: str) -> Iterator[None]:
    """Prefix the message of a raised error with the place of the value."""
    try:
        yield
    except MedflError as error:
        raise SettingsError(error.code, f"{place}: {error}", **error.fields) from None
