"""Settings in a bundle's configuration: under their bare names as options, under its id ``settings`` in its files.

What a bundle's ``settings`` leave out has the default of `medfl.settings`. A setting that ``settings`` takes from an id
of its own name, as in ``"rounds": "@rounds"``, is that id. An id that merely has the name of a setting is another thing
(`clashes`).
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping

from pydantic_core import to_jsonable_python

from medfl.settings import run_fields
from medfl.types import Meta

SETTINGS = "settings"
"""Id of the settings that differ from their defaults, by name."""


def clashes(config: Mapping[str, object]) -> set[str]:
    """Return the settings of whose name a configuration has an id, though its `SETTINGS` do not take them from there.

    Args:
        config: Maps each id to its value; without the id `SETTINGS` nothing clashes.
    """
    written = config.get(SETTINGS)
    if not isinstance(written, Mapping):
        return set()
    return {name for name in run_fields() if name in config and not _refers(written.get(name), name)}


def _refers(value: object, name: str) -> bool:
    return isinstance(value, str) and re.search(rf"@{name}\b", value) is not None


def values_in(config: Mapping[str, object]) -> Meta:
    """Return the values of the settings that are no ids of the configuration: its `SETTINGS`, or else the defaults.

    Args:
        config: Maps each id to its value; without the id `SETTINGS` it has no further settings.
    """
    written = config.get(SETTINGS)
    if not isinstance(written, Mapping):
        return {}
    values: Meta = default_values() | dict(written)
    own = config.keys() - clashes(config)
    return {name: values[name] for name in run_fields() if name in values and name not in own}


def bare_name(option: str) -> str:
    """An option with ``#`` between its parts, and a setting without ``settings#`` before its name."""
    name = option.replace("::", "#")
    setting = name.removeprefix(f"{SETTINGS}#")
    return setting if setting.partition("#")[0] in run_fields() else name


def to_ids(options: Meta, config: Mapping[str, object]) -> Meta:
    """Id of a configuration to value, for options that may name a setting by its bare name.

    Args:
        options: Option to value.
        config: The configuration before the options.
    """
    values = values_in(config)
    ids: Meta = {}
    for option, value in options.items():
        name = bare_name(option)
        top, _, part = name.partition("#")
        if part and top in values:  # a part of it needs the whole in its place
            ids.setdefault(f"{SETTINGS}#{top}", copy.deepcopy(values[top]))
        ids[f"{SETTINGS}#{name}" if top in values else name] = value
    return ids


def default_values() -> Meta:
    """Name to default, as JSON, of the fields that have one."""
    fields = {name: info for name, info in run_fields().items() if not info.is_required()}
    return {name: to_jsonable_python(info.get_default(call_default_factory=True)) for name, info in fields.items()}
