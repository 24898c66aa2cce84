"""Translate between the names of settings and the ids of a bundle's configuration.

An id is a key of a MONAI configuration file; ``#`` separates the parts of a nested id.

The files of a bundle have their settings under the id ``settings``. A user gives a setting by its bare name. A setting
that the bundle does not contain has the default of `medfl.settings`. If ``settings`` refers to an id of the same name,
as in ``"rounds": "@rounds"``, the setting is that id. Any other id with the name of a setting is unrelated to the
setting; `find_clashes` finds such ids.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping

from pydantic_core import to_jsonable_python

from medfl.settings import run_fields
from medfl.types import Meta

SETTINGS_ID = "settings"
"""Id in a bundle's configuration of a mapping from the names of settings to values other than their defaults."""


def find_clashes(config: Mapping[str, object]) -> set[str]:
    """Return the names of settings that are also unrelated ids of a configuration.

    Args:
        config: Maps each id to its value. Without the id ``settings`` the result is empty.
    """
    written = config.get(SETTINGS_ID)
    if not isinstance(written, Mapping):
        return set()
    return {name for name in run_fields() if name in config and not _refers(written.get(name), name)}


def _refers(value: object, name: str) -> bool:
    return isinstance(value, str) and re.search(rf"@{name}\b", value) is not None


def setting_values(config: Mapping[str, object]) -> Meta:
    """Return the value of each setting that is not an id of the configuration.

    The value is the one under the id ``settings`` or, without one, the default.

    Args:
        config: Maps each id to its value. Without the id ``settings`` the result is empty.
    """
    written = config.get(SETTINGS_ID)
    if not isinstance(written, Mapping):
        return {}
    values: Meta = default_values() | dict(written)
    own = config.keys() - find_clashes(config)
    return {name: values[name] for name in run_fields() if name in values and name not in own}


def bare_name(option: str) -> str:
    """Return the bare name of an option of the command line.

    The parts of the name are separated by ``#``. If the option is a setting, the prefix ``settings#`` is removed.

    Args:
        option: Name of the option, with ``#`` or ``::`` between its parts.
    """
    name = option.replace("::", "#")
    setting = name.removeprefix(f"{SETTINGS_ID}#")
    return setting if setting.partition("#")[0] in run_fields() else name


def options_to_ids(options: Meta, config: Mapping[str, object]) -> Meta:
    """Return options as a mapping from ids of a configuration to values. Bare names of settings become their ids.

    Args:
        options: Maps each option to its value.
        config: The configuration without the options.
    """
    values = setting_values(config)
    ids: Meta = {}
    for option, value in options.items():
        name = bare_name(option)
        top, _, part = name.partition("#")
        if part and top in values:  # to override a part, the id of the whole setting must exist
            ids.setdefault(f"{SETTINGS_ID}#{top}", {} if values[top] is None else copy.deepcopy(values[top]))
        ids[f"{SETTINGS_ID}#{name}" if top in values else name] = value
    return ids


def default_values() -> Meta:
    """Return the default of each setting that has one, as JSON, by name."""
    fields = {name: info for name, info in run_fields().items() if not info.is_required()}
    return {name: to_jsonable_python(info.get_default(call_default_factory=True)) for name, info in fields.items()}
