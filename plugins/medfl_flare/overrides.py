"""Rules for the overrides of a reviewed bundle: JSON scalars for listed ids, and nothing that MONAI evaluates.

An override is a value that replaces a value in a bundle's files, under an id of the bundle or as a setting of the run.
It is part of an offer, the server's proposal of a run. The list of allowed ids contains the settings of a run and of
its task, numbers within optimizer, networks and loss, and numbers that the bundle defines under its own ids, such as
the width of its networks.

MONAI calls the object that a key ``_target_`` names, evaluates a string that begins with ``$``, and follows a reference
that begins with ``@`` or ``%``. No value in a message may be one of these. Paths are not on the list: each participant
decides where data, weights and results lie.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from medfl.engine.runs.setting_ids import setting_values
from medfl.errors import RefusedError, did_you_mean
from medfl.settings import local_fields, run_fields
from medfl.types import Meta
from medfl.utils.field_descriptions import model_of

LOCAL_SETTINGS = local_fields(run_fields())
"""Settings that no server can set at a site."""

RUN_IDS = frozenset({"method", "method_args", "network_assignment", *run_fields()}) - LOCAL_SETTINGS
"""Ids of a run that an offer may set: its method, its network assignment, and the settings that `medfl.settings.Remote`
marks."""

DATA_DEPENDENT_IDS = (
    "num_classes", "goal", "in_channels", "size", "spatial_dims", "channels", "spacing", "window", "in_features",
    "features", "columns", "image_reading", "image_features",
)  # fmt: skip
"""Ids that a bundle computes from local data. In a distributed run the offer supplies them."""

TASK_IDS = frozenset({*DATA_DEPENDENT_IDS, "mean", "std", "metrics", "network_name", "schedule"})
"""Ids of the task that an offer may set."""

COMPONENT_IDS = ("optimizer", "networks", "loss")
"""Ids of components in which an offer may change single numbers, for example ``optimizer#lr``."""

LOCAL_IDS = LOCAL_SETTINGS | {
    "bundle_root", "dataset_dir", "output_dir", "ckpt_dir", "public", "plugins", "disabled_plugins", "site",
}  # fmt: skip
"""Ids that each participant sets for itself."""

MAX_TEXT_CHARACTERS = 1000
"""Maximum number of characters of a string."""

MAX_VALUES = 10_000
"""Maximum number of values of all overrides together."""

MAX_DEPTH = 8
"""Maximum nesting depth of objects and lists."""

_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def check_overrides(overrides: Meta, bundle: Meta) -> None:
    """Raise if overrides name an id that a run may not change, or contain more than JSON scalars.

    Args:
        overrides: Maps ids or settings to values; ``optimizer#lr`` names a part.
        bundle: Values of the bundle's own files (`medfl.engine.runs.provenance.bundle_values`).

    Raises:
        RefusedError: If an override is not allowed. Names the id and the type of the value, never the value itself.
    """
    if not isinstance(overrides, dict):
        raise RefusedError(
            "invalid_overrides",
            f"Expected overrides as an object of ids, got {_type_text(overrides)}.",
            found=_type_text(overrides),
        )
    bundle = bundle | setting_values(bundle)
    count = 0
    for name, value in overrides.items():
        top, *rest = _parts_of(name)
        plain = _is_plain_number(name, value, bundle)
        if top not in RUN_IDS | TASK_IDS | set(COMPONENT_IDS) and not plain:
            raise _unlisted_error(name, top)
        for place, leaf in _leaves(value, name):
            _check_leaf(place, leaf)
            count += 1
        if count > MAX_VALUES:
            raise RefusedError(
                "too_many_values",
                f"The overrides contain more than {MAX_VALUES} values; a run needs far fewer.",
                maximum=MAX_VALUES,
            )
        if top in COMPONENT_IDS:
            _check_part(name, rest, value, bundle)
        elif not plain:
            _check_setting(name, rest, value, bundle)


def _is_plain_number(name: str, value: Any, bundle: Meta) -> bool:
    """Return whether the override replaces a number under one of the bundle's own ids by another number.

    An example is the width of the bundle's networks.
    """
    return name not in LOCAL_IDS and type(bundle.get(name)) in (int, float) and type(value) in (int, float)


def _parts_of(name: Any) -> list[str]:
    """Split an id into its parts; raise if one contains characters with a meaning in MONAI."""
    if not isinstance(name, str):
        raise RefusedError(
            "wrong_type", f"Expected the id of an override as text, got {_type_text(name)}.", found=_type_text(name)
        )
    parts = name.split("#")
    for part in parts:
        _check_key(name, part)
    return parts


def _check_key(place: str, key: Any) -> None:
    """Raise if a key could name code."""
    if not isinstance(key, str) or not _KEY.fullmatch(key) or key.endswith("_target_"):
        raise RefusedError(
            "invalid_key",
            f"The override {place[:MAX_TEXT_CHARACTERS]!r} has a key that is not allowed: expected letters, digits, "
            "'.', '_' and '-', beginning with a letter or digit, and never a key that ends in '_target_' or begins "
            "with '_'. A message can't name code; change the bundle's own files at every participant.",
            place=place[:MAX_TEXT_CHARACTERS],
        )


def _leaves(value: Any, place: str, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield each value that is not an object or list, with its id. Checks the keys on the way."""
    if depth > MAX_DEPTH:
        raise RefusedError(
            "nested_too_deep",
            f"The override '{place[:MAX_TEXT_CHARACTERS]}' nests deeper than {MAX_DEPTH} levels.",
            place=place[:MAX_TEXT_CHARACTERS],
            maximum=MAX_DEPTH,
        )
    if isinstance(value, dict):
        for key, part in value.items():
            _check_key(f"{place}#{key}", key)
            yield from _leaves(part, f"{place}#{key}", depth + 1)
    elif isinstance(value, list):
        for index, part in enumerate(value):
            yield from _leaves(part, f"{place}#{index}", depth + 1)
    else:
        yield place, value


def _check_leaf(place: str, value: Any) -> None:
    """Raise if a value is not a safe JSON scalar."""
    if value is not None and type(value) not in (bool, int, float, str):
        raise RefusedError(
            "wrong_type",
            f"The override '{place}' is {_type_text(value)}: expected text, a number, true, false or null.",
            place=place,
            found=_type_text(value),
        )
    if isinstance(value, float) and not math.isfinite(value):
        raise RefusedError(
            "not_finite", f"The override '{place}' is a number that is not finite. Give a finite one.", place=place
        )
    if isinstance(value, int) and abs(value) >= 2**63:
        raise RefusedError(
            "integer_too_large",
            f"The override '{place}' is an integer of more than 64 bits. Give a smaller one.",
            place=place,
        )
    if isinstance(value, str) and (value.lstrip()[:1] in tuple("$@%") or len(value) > MAX_TEXT_CHARACTERS):
        raise RefusedError(
            "unsafe_text",
            f"The override '{place}' is text that begins with '$', '@' or '%', which MONAI would evaluate, or "
            f"that is longer than {MAX_TEXT_CHARACTERS} characters. A message can't contain code: give a plain value.",
            place=place,
        )


def _check_setting(name: str, rest: list[str], value: Any, bundle: Meta) -> None:
    """Check an override of an id of the run or the task, as a whole or of a part."""
    top = name.partition("#")[0]
    _get_parent(name, [top, *rest], bundle)
    info = run_fields().get(top)
    if info is not None and (model := model_of(info)) is not None:
        parts = {*rest, *(value if isinstance(value, Mapping) else ())}
        if named := sorted(parts & local_fields(model.model_fields)):
            raise RefusedError(
                "local_override",
                f"The override '{name}' names '{named[0]}', which belongs to the site's own ledger over all its runs. "
                "Remove it; a site sets it in its own file.",
                name=name,
                setting=named[0],
            )


def _check_part(name: str, rest: list[str], value: Any, bundle: Meta) -> None:
    """Check an override of a number within the optimizer, a network or the loss."""
    if type(value) not in (bool, int, float):
        raise RefusedError(
            "number_expected",
            f"The override '{name}' is {_type_text(value)}: in the optimizer, the networks and the loss only single "
            "numbers and true or false may be changed, for example 'optimizer#lr'. To change more, edit the bundle's "
            "own files at every participant.",
            name=name,
            found=_type_text(value),
        )
    top = name.partition("#")[0]
    parent = _get_parent(name, [top, *rest], bundle)
    new_option = top == "optimizer" and len(rest) == 1 and rest[0] not in parent
    if new_option:
        return
    held = _get_part(parent, rest[-1]) if rest else None
    if not rest or held is _ABSENT or not (held is None or type(held) in (bool, int, float)):
        held_text = "nothing" if held is _ABSENT else _type_text(held)
        raise RefusedError(
            "irreplaceable_part",
            f"The override '{name}' would replace {held_text} in the bundle's own files: only a number, true, false or "
            "null there may be replaced by a number.",
            name=name,
            found=held_text,
        )


class _Absent:
    """Type of `_ABSENT`, which stands for an absent value."""

    pass


_ABSENT = _Absent()


def _get_parent(name: str, parts: list[str], bundle: Meta) -> Any:
    """Return the value in the bundle's own files that contains an id's last part."""
    place: Any = bundle
    for part in parts[:-1]:
        place = _get_part(place, part)
    if len(parts) == 1 and parts[0] not in bundle:
        raise RefusedError(
            "unknown_override",
            f"The override '{name}' names no id of the bundle. {did_you_mean(name, bundle)}",
            name=name,
        )
    if not isinstance(place, dict | list):
        raise RefusedError(
            "value_without_parts",
            f"The override '{name}' names a part of a value without parts in the bundle. Give '{parts[0]}' as a whole.",
            name=name,
            parent=parts[0],
        )
    return place


def _get_part(place: Any, part: str) -> Any:
    """Return one part of a dict or list, or `_ABSENT` if there is none."""
    if isinstance(place, dict) and part in place:
        return place[part]
    if isinstance(place, list) and part.isdigit() and int(part) < len(place):
        return place[int(part)]
    return _ABSENT


def _unlisted_error(name: str, top: str) -> RefusedError:
    """Return the error for an override that no run may change."""
    if top in LOCAL_IDS:
        return RefusedError(
            "local_override",
            f"The override '{name}' is not allowed: each participant decides '{top}' itself. Set it in the "
            "participant's own file.",
            name=name,
            setting=top,
        )
    listed = RUN_IDS | TASK_IDS | {f"{part}#..." for part in COMPONENT_IDS}
    return RefusedError(
        "unlisted_override", f"The override '{name}' is not allowed. {did_you_mean(top, listed)}", name=name
    )


def _type_text(value: Any) -> str:
    """Return the type of a value as text, without the value."""
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", int: "a number", float: "a number"}
    return "null" if value is None else names.get(type(value), f"a {type(value).__name__}")
