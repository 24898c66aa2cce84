"""What a run may change of a reviewed bundle: JSON scalars for ids on a list, and nothing that MONAI evaluates.

On the list are the settings of a run and of its task, numbers within optimiser, networks and loss, and numbers that the
bundle itself has under ids of its own, such as the width of its networks.

MONAI calls what a key ``_target_`` names, evaluates a string that begins with ``$``, and follows one that begins with
``@`` or ``%``. A value that comes in a message is none of these. Paths are on no list: where data, weights and results
lie is each participant's own affair.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from medfl.engine.runs.setting_ids import values_in
from medfl.errors import RefusedError, did_you_mean
from medfl.settings import local_fields, run_fields
from medfl.types import Meta
from medfl.utils.field_words import model_of

LOCAL = local_fields(run_fields())
"""Settings that no server sets at a site."""

RUN = frozenset({"method", "method_args", "network_assignment", *run_fields()}) - LOCAL
"""A run's method, its network assignment, and its settings that `medfl.settings.Remote` marks."""

FACTS = ("num_classes", "in_channels", "size", "spatial_dims", "channels", "spacing", "window")
"""Ids that a bundle, if it has them, reads from a data set at hand; across machines the offer says them."""

TASK = frozenset({*FACTS, "mean", "std", "metrics", "network_name", "schedule"})
"""Ids of what is learned."""

PARTS = ("optimizer", "networks", "loss")
"""Components of which single numbers may be changed, as ``optimizer#lr``."""

OWN = LOCAL | {
    "bundle_root", "dataset_dir", "output_dir", "ckpt_dir", "public", "weights", "plugins", "disabled_plugins", "site",
}  # fmt: skip
"""Ids that each participant settles for itself."""

MAX_TEXT = 1000
"""Letters of a string."""

MAX_VALUES = 10_000
"""Values of all overrides together."""

MAX_DEPTH = 8
"""Objects and lists within each other."""

_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def check_overrides(overrides: Meta, bundle: Meta) -> None:
    """Refuse overrides that name what a run may not change, or that hold more than JSON scalars.

    Args:
        overrides: Id or setting to value; ``optimizer#lr`` names a part.
        bundle: What the bundle's own files say (`medfl.engine.runs.provenance.bundle_values`).

    Raises:
        RefusedError: Naming the id and the kind of value, never a value itself.
    """
    if not isinstance(overrides, dict):
        raise RefusedError(
            "invalid_overrides",
            f"Expected overrides as an object of ids, got {_kind(overrides)}.",
            found=_kind(overrides),
        )
    bundle = bundle | values_in(bundle)
    count = 0
    for name, value in overrides.items():
        top, *rest = _parts_of(name)
        plain = _is_plain_number(name, value, bundle)
        if top not in RUN | TASK | set(PARTS) and not plain:
            raise _unlisted(name, top)
        for place, leaf in _leaves(value, name):
            _check_leaf(place, leaf)
            count += 1
        if count > MAX_VALUES:
            raise RefusedError(
                "too_many_values",
                f"The overrides hold more than {MAX_VALUES} values; a run needs far fewer.",
                maximum=MAX_VALUES,
            )
        if top in PARTS:
            _check_part(name, rest, value, bundle)
        elif not plain:
            _check_setting(name, rest, value, bundle)


def _is_plain_number(name: str, value: Any, bundle: Meta) -> bool:
    """Whether an id of the bundle's own, such as the width of its networks, gets another number."""
    return name not in OWN and type(bundle.get(name)) in (int, float) and type(value) in (int, float)


def _parts_of(name: Any) -> list[str]:
    """The parts of an id, each with letters that mean nothing to MONAI."""
    if not isinstance(name, str):
        raise RefusedError(
            "wrong_type", f"Expected the id of an override as text, got {_kind(name)}.", found=_kind(name)
        )
    parts = name.split("#")
    for part in parts:
        _check_key(name, part)
    return parts


def _check_key(place: str, key: Any) -> None:
    if not isinstance(key, str) or not _KEY.fullmatch(key) or key.endswith("_target_"):
        raise RefusedError(
            "invalid_key",
            f"The override {place[:MAX_TEXT]!r} has a key that is not allowed: expected letters, digits, '.', '_' and "
            "'-', beginning with a letter or digit, and never a key that ends in '_target_' or begins with '_'. A "
            "message can't name code; change the bundle's own files at every participant.",
            place=place[:MAX_TEXT],
        )


def _leaves(value: Any, place: str, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """All values that are no objects or lists, each with its id; keys are checked on the way."""
    if depth > MAX_DEPTH:
        raise RefusedError(
            "nested_too_deep",
            f"The override '{place[:MAX_TEXT]}' nests deeper than {MAX_DEPTH} levels.",
            place=place[:MAX_TEXT],
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
    if value is not None and type(value) not in (bool, int, float, str):
        raise RefusedError(
            "wrong_type",
            f"The override '{place}' holds {_kind(value)}: expected text, a number, true, false or null.",
            place=place,
            found=_kind(value),
        )
    if isinstance(value, float) and not math.isfinite(value):
        raise RefusedError(
            "not_finite", f"The override '{place}' holds a number that is not finite. Give a finite one.", place=place
        )
    if isinstance(value, int) and abs(value) >= 2**63:
        raise RefusedError(
            "integer_too_large",
            f"The override '{place}' holds a whole number of more than 64 bits. Give a smaller one.",
            place=place,
        )
    if isinstance(value, str) and (value.lstrip()[:1] in tuple("$@%") or len(value) > MAX_TEXT):
        raise RefusedError(
            "unsafe_text",
            f"The override '{place}' holds text that begins with '$', '@' or '%', which MONAI would evaluate, or "
            f"that is longer than {MAX_TEXT} letters. A message never holds code: give the plain value.",
            place=place,
        )


def _check_setting(name: str, rest: list[str], value: Any, bundle: Meta) -> None:
    """An override of a run's or a task's own id, as a whole or of a part."""
    top = name.partition("#")[0]
    _parent(name, [top, *rest], bundle)
    info = run_fields().get(top)
    if info is not None and (model := model_of(info)) is not None:
        parts = {*rest, *(value if isinstance(value, Mapping) else ())}
        if named := sorted(parts & local_fields(model.model_fields)):
            raise RefusedError(
                "local_override",
                f"The override '{name}' names '{named[0]}', which is the site's own account over all its runs. Leave "
                "it out; a site writes it into its own file.",
                name=name,
                setting=named[0],
            )


def _check_part(name: str, rest: list[str], value: Any, bundle: Meta) -> None:
    """A number within the optimiser, a network or the loss."""
    if type(value) not in (bool, int, float):
        raise RefusedError(
            "number_expected",
            f"The override '{name}' holds {_kind(value)}: of the optimiser, the networks and the loss only single "
            "numbers and true or false may be changed, for example 'optimizer#lr'. Change the bundle's own files at "
            "every participant for more.",
            name=name,
            found=_kind(value),
        )
    top = name.partition("#")[0]
    parent = _parent(name, [top, *rest], bundle)
    new_option = top == "optimizer" and len(rest) == 1 and rest[0] not in parent
    if new_option:
        return
    held = _part(parent, rest[-1]) if rest else None
    if not rest or held is _NOTHING or not (held is None or type(held) in (bool, int, float)):
        raise RefusedError(
            "irreplaceable_part",
            f"The override '{name}' would replace {'nothing' if held is _NOTHING else _kind(held)} of the bundle's own "
            "files: only a number, true, false or null there may be replaced by a number.",
            name=name,
            found="nothing" if held is _NOTHING else _kind(held),
        )


class _Nothing:
    pass


_NOTHING = _Nothing()


def _parent(name: str, parts: list[str], bundle: Meta) -> Any:
    """What an id's last part lies in, in the bundle's own files."""
    place: Any = bundle
    for part in parts[:-1]:
        place = _part(place, part)
    if len(parts) == 1 and parts[0] not in bundle:
        raise RefusedError(
            "unknown_override",
            f"The override '{name}' names nothing in the bundle. {did_you_mean(name, bundle)}",
            name=name,
        )
    if not isinstance(place, dict | list):
        raise RefusedError(
            "value_without_parts",
            f"The override '{name}' names a part of what has no parts in the bundle. Give '{parts[0]}' as a whole.",
            name=name,
            parent=parts[0],
        )
    return place


def _part(place: Any, part: str) -> Any:
    if isinstance(place, dict) and part in place:
        return place[part]
    if isinstance(place, list) and part.isdigit() and int(part) < len(place):
        return place[int(part)]
    return _NOTHING


def _unlisted(name: str, top: str) -> RefusedError:
    """Return the error for an override that no run may change."""
    if top in OWN:
        return RefusedError(
            "local_override",
            f"The override '{name}' is not allowed: '{top}' is each participant's own affair. Write it into the "
            "participant's own file.",
            name=name,
            setting=top,
        )
    listed = RUN | TASK | {f"{part}#..." for part in PARTS}
    return RefusedError(
        "unlisted_override", f"The override '{name}' is not allowed. {did_you_mean(top, listed)}", name=name
    )


def _kind(value: Any) -> str:
    """What a value is, without telling it."""
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", int: "a number", float: "a number"}
    return "null" if value is None else names.get(type(value), f"a {type(value).__name__}")
