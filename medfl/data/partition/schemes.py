"""Call a partition scheme: check and convert its options before the call, check its result after the call."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import TypeAdapter, ValidationError

from medfl.data.partition.plan import numbered_site_names
from medfl.errors import DataError, PluginError, SettingsError, did_you_mean, validation_message
from medfl.utils.seeds import seed_of
from medfl.utils.text import name_problem

if TYPE_CHECKING:
    from medfl.data.partition.plan import PartitionPlan

Scheme = Callable[..., list[np.ndarray] | dict[str, np.ndarray]]
"""Partition scheme: a function of labels (n,), a number of sites, options and a generator ``rng``.

It returns the positions of each site; see `medfl.data.partition` for the rules.
"""

_SCHEME_INPUTS = ("labels", "sites", "values", "sets", "rng")
"""Parameters of a scheme that are not options."""


def assign_units(
    scheme: Scheme,
    labels: np.ndarray,
    values: np.ndarray | None,
    plan: PartitionPlan,
    sets: np.ndarray | None = None,
) -> dict[str, np.ndarray]:
    """Assign units to sites by calling a scheme.

    Args:
        scheme: Function that `plan.scheme` names.
        labels: Label of each unit, shape (n,).
        values: Entry of each unit in the column that the plan names, shape (n,), str; None without a column.
        plan: Settings of the partition.
        sets: Labels of each unit if a unit may have several, shape (n, C), bool; passed to schemes with a parameter
            `sets`.

    Returns:
        Maps each site's name to its positions in `labels`. Names are sorted, and no position is at two sites.

    Raises:
        SettingsError: If the scheme does not accept the options, the column or the number of sites.
        DataError: If the scheme's result breaks the rules of `medfl.data.partition`.
        PluginError: If the type annotations of its options can't be resolved.
    """
    options = _options(scheme, plan)
    if needs_column(scheme):
        options["values"] = values
    if "sets" in inspect.signature(scheme).parameters:
        options["sets"] = sets
    rng = np.random.default_rng(seed_of(plan.seed, "partition", plan.scheme))
    parts = scheme(labels, plan.sites, **options, rng=rng)
    if plan.sites is not None and len(parts) != plan.sites:
        raise DataError(
            "wrong_site_count",
            _scheme_error(plan, f"must make {plan.sites} sites; it made {len(parts)}"),
            scheme=plan.scheme,
            expected=plan.sites,
            found=len(parts),
        )
    named = parts if isinstance(parts, Mapping) else dict(zip(numbered_site_names(len(parts)), parts, strict=True))
    named = {name: np.asarray(part, dtype=np.int64).reshape(-1) for name, part in sorted(named.items())}
    if problem := name_problem(named):
        raise DataError(
            "invalid_site_name", f"partition '{plan.scheme}': {problem}", scheme=plan.scheme, sites=list(named)
        )
    _check_positions(named, len(labels), plan)
    return named


def needs_column(scheme: Scheme) -> bool:
    """Return True if a scheme uses a column of the data list, that is, has a parameter `values`."""
    return "values" in inspect.signature(scheme).parameters


def check_column(scheme: Scheme, plan: PartitionPlan) -> None:
    """Raise if the plan lacks the column or the number of sites that its scheme needs, or has a column it does not use.

    Raises:
        SettingsError: If the plan and the scheme do not fit together.
    """
    if needs_column(scheme) and plan.column is None:
        raise SettingsError(
            "missing_setting",
            f"partition '{plan.scheme}' uses a column of the data list: name it with --column.",
            scheme=plan.scheme,
            setting="column",
        )
    if not needs_column(scheme) and plan.column is not None:
        raise SettingsError(
            "unsupported_setting",
            f"partition '{plan.scheme}' does not use a column. Leave out --column {plan.column}.",
            scheme=plan.scheme,
            setting="column",
            found=plan.column,
        )
    if not needs_column(scheme) and plan.sites is None:
        raise SettingsError(
            "missing_setting",
            f"partition '{plan.scheme}' needs a number of sites: give --sites.",
            scheme=plan.scheme,
            setting="sites",
        )


def _options(scheme: Scheme, plan: PartitionPlan) -> dict[str, Any]:
    """Return the options of the plan, converted to the types that the scheme declares."""
    known = {name: kind for name, kind in inspect.signature(scheme).parameters.items() if name not in _SCHEME_INPUTS}
    for name in plan.options:
        if name not in known:
            raise SettingsError(
                "unknown_setting",
                f"partition '{plan.scheme}' has no option '{name}'. {did_you_mean(name, known)}",
                scheme=plan.scheme,
                setting=name,
            )
    missing = [name for name, kind in known.items() if kind.default is kind.empty and name not in plan.options]
    if missing:
        raise SettingsError(
            "missing_setting",
            f"partition '{plan.scheme}' needs the option '{missing[0]}': --option {missing[0]}=VALUE.",
            scheme=plan.scheme,
            setting=missing[0],
        )
    try:
        kinds = typing.get_type_hints(scheme)
    except NameError as error:
        raise PluginError(
            "unresolved_types",
            _scheme_error(plan, f"has types that can't be resolved ({error})"),
            scheme=plan.scheme,
            reason=str(error),
        ) from None
    return {name: _convert_option(kinds.get(name, Any), value, name, plan) for name, value in plan.options.items()}


def _convert_option(kind: Any, value: Any, name: str, plan: PartitionPlan) -> Any:
    """Return an option's value, converted to its type; comma-separated text becomes a list if the type is a list."""
    if isinstance(value, str) and typing.get_origin(kind) is list:  # the command line gives text
        value = value.split(",")
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        message = validation_message(error.errors()[0])
        raise SettingsError(
            "wrong_setting_type",
            f"partition '{plan.scheme}', option '{name}': {message}, got {value!r}",
            scheme=plan.scheme,
            setting=name,
            found=str(value),
        ) from None


def _check_positions(parts: Mapping[str, np.ndarray], units: int, plan: PartitionPlan) -> None:
    """Raise if a position occurs twice or is outside the data set."""
    together = np.concatenate([np.empty(0, np.int64), *parts.values()])
    distinct = np.unique(together)
    inside = not len(together) or 0 <= distinct[0] <= distinct[-1] < units
    if len(distinct) != len(together) or not inside:
        raise DataError(
            "invalid_positions",
            _scheme_error(
                plan,
                f"must put each of {units} images at one site at most; it put {len(together)} at {len(parts)} sites, "
                f"{len(distinct)} of them distinct" + ("" if inside else ", some outside the data set"),
            ),
            scheme=plan.scheme,
            images=units,
            positions=len(together),
            distinct=len(distinct),
            sites=len(parts),
            inside=bool(inside),
        )


def _scheme_error(plan: PartitionPlan, what: str) -> str:
    """Return the message of an error that the scheme's author must correct."""
    return f"partition '{plan.scheme}' {what}. Report this to the author of the scheme."
