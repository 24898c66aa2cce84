"""The objectives by name, and how one is read from JSON."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable

from medfl.errors import SettingsError, did_you_mean
from medfl.objectives.binary import Binary
from medfl.objectives.multiclass import Multiclass
from medfl.objectives.multilabel import Multilabel
from medfl.objectives.objective import Objective
from medfl.objectives.regression import Regression
from medfl.objectives.segmentation import Segmentation
from medfl.objectives.survival import Survival
from medfl.types import Meta

OBJECTIVES: dict[str, type[Objective]] = {
    kind.name: kind for kind in (Multiclass, Binary, Multilabel, Regression, Survival, Segmentation)
}
"""Name to objective."""


def read_objective(facts: Meta) -> Objective:
    """The objective that `Objective.facts` describes.

    Args:
        facts: Its name under ``name``, and its own fields. JSON.

    Raises:
        SettingsError: If there is no such objective, or a field is unknown, missing or not possible.
    """
    values = dict(facts)
    name = values.pop("name", None)
    if name not in OBJECTIVES:
        raise SettingsError(
            "unknown_choice",
            f"unknown objective {name!r}. {did_you_mean(str(name), OBJECTIVES)}",
            what="objective",
            choice=str(name),
        )
    kind = OBJECTIVES[name]
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
    """Refuse a metric that no objective has; the number of a class or finding in it may be any.

    Raises:
        SettingsError: Naming the nearest known one.
    """
    kinds = (Multiclass(2), Binary(), Multilabel(1), Regression(), Survival(), Segmentation())
    known = [name for kind in kinds for name in kind.scores]
    forms = {re.sub(r"_\d+$", "_N", name) for name in known}
    for name in names:
        if re.sub(r"_\d+$", "_N", name) not in forms:
            raise SettingsError(
                "unknown_choice", f"Unknown metric '{name}'. {did_you_mean(name, known)}", what="metric", choice=name
            )
