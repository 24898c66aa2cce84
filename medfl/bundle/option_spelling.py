"""Spelling of the options of ``medfl run``: hyphens between words, a dot between an id and its part.

``--batch-size`` sets the id ``batch_size`` of a bundle's configuration, and ``--optimizer.weight-decay`` its id
``optimizer#weight_decay``. MONAI's own command spells options like the ids: ``--batch_size``,
``--optimizer#weight_decay``.
"""

from __future__ import annotations

import re

from medfl.errors import SettingsError

KEYED_BY_DATA = frozenset({"label_map", "networks_by_site"})
"""Settings and ids whose keys are names from the user's data, such as sites and classes. The spelling of a key never
changes."""

SEPARATOR = re.compile(r"::|[#.]")
"""Separator of an id and its part, in either spelling."""


def option_of_id(id_: str) -> str:
    """Return the option of ``medfl run`` that sets an id of a bundle's configuration.

    Args:
        id_: Id or setting in MONAI's spelling, such as ``optimizer#weight_decay``.

    Returns:
        For example ``--optimizer.weight-decay``.
    """
    names, key = _split(id_)
    return "--" + ".".join([*map(_hyphenate, names), *key])


def id_of_option(option: str) -> str:
    """Return the id of a bundle's configuration that an option of ``medfl run`` sets.

    Args:
        option: Option with its leading dashes and without a value, such as ``--optimizer.weight-decay``.

    Returns:
        For example ``optimizer#weight_decay``.

    Raises:
        SettingsError: If the option has another spelling, such as MONAI's spelling, or is ``--plugin``.
    """
    names, key = _split(option.removeprefix("--"))
    id_ = "#".join([*(name.replace("-", "_") for name in names), *key])
    expected = "--plugins" if id_ == "plugin" else option_of_id(id_)  # other commands repeat --plugin FILE
    if option != expected:
        raise SettingsError(
            "wrong_spelling",
            f"Expected the option '{expected}', got '{option}'. Commands of medfl take a hyphen between words and a "
            "dot before a part; `python -m monai.bundle` takes underscores and '#'.",
            option=option,
            expected=expected,
        )
    return id_


def _split(name: str) -> tuple[list[str], list[str]]:
    """Split an option or id into the names of its parts and, if it has one, the key of a mapping in `KEYED_BY_DATA`.

    A key may contain hyphens, underscores and dots.

    Returns:
        Names of the parts, and a list with the key, or [] without a key.
    """
    names = SEPARATOR.split(name)
    mapping = 1 if names[0] == "settings" else 0
    if len(names) <= mapping + 1 or names[mapping].replace("-", "_") not in KEYED_BY_DATA:
        return names, []
    *before, key = SEPARATOR.split(name, maxsplit=mapping + 1)
    return before, [key]


def _hyphenate(name: str) -> str:
    """Replace underscores by hyphens. MONAI's own keys, such as ``_target_``, stay as they are."""
    return name if name.startswith("_") else name.replace("_", "-")
