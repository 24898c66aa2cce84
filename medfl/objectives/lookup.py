"""Objectives by name: lookup in the plugins, reading from JSON, and validation of metric names."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable

from medfl.errors import PluginError, SettingsError, did_you_mean
from medfl.objectives.objective import Objective
from medfl.plugins import known_names, look_up
from medfl.types import Meta


def objective_class(name: str) -> type[Objective]:
    """Return the class of an objective.

    Raises:
        PluginError: If no plugin, or more than one, has an objective of that name, or if the objective can't be
            imported.
    """
    kind: type[Objective] = look_up("objective", name, Objective)
    if kind.name != name:
        raise PluginError(
            "wrong_name",
            f"Expected the objective '{name}' to have this name as its `name`, got '{kind.name}'. Report this to the "
            "plugin's author.",
            expected=name,
            found=kind.name,
        )
    return kind


def read_objective(facts: Meta) -> Objective:
    """Create the objective that `Objective.facts` describes.

    Args:
        facts: JSON with the name of the objective as ``name``, and its fields.

    Raises:
        PluginError: If `objective_class` raises it.
        SettingsError: If a field is unknown, missing or invalid.
    """
    values = dict(facts)
    name = str(values.pop("name", None))
    kind = objective_class(name)
    fields = {field.name: field for field in dataclasses.fields(kind) if field.init}
    needed = {key for key, field in fields.items() if field.default is dataclasses.MISSING}
    if not needed <= values.keys() <= fields.keys():
        raise SettingsError(
            "invalid_settings",
            f"expected {sorted(fields)} of the objective '{name}', at least {sorted(needed)}; got {sorted(values)}.",
            objective=name,
            expected=sorted(fields),
            required=sorted(needed),
            found=sorted(values),
        )
    return kind(**{key: tuple(value) if isinstance(value, list) else value for key, value in values.items()})


def check_metrics(names: Iterable[str]) -> None:
    """Raise if any of the named metrics belongs to no objective.

    The number of a class or finding in a metric's name, as in ``auc_3``, is not checked.

    Raises:
        PluginError: If `objective_class` raises it for any objective.
        SettingsError: If a metric is unknown; the message suggests the most similar name.
    """
    examples = [objective_class(name).example() for name in known_names("objective")]
    known = [metric for example in examples for metric in example.scores]
    forms = {re.sub(r"_\d+$", "_N", name) for name in known}
    for name in names:
        if re.sub(r"_\d+$", "_N", name) not in forms:
            raise SettingsError(
                "unknown_choice", f"Unknown metric '{name}'. {did_you_mean(name, known)}", what="metric", choice=name
            )
