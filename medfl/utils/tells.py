"""What goes beside the tensors of replies and parcels: of which type, shape and range, and whether it may leave a site.

A method declares each fact once, for example ``{"size": Tell("private", count())}``. A site refuses to send what does
not fit, and the server (of a parcel: its receiver) refuses it again, before the method sees it: whoever sent it counts
as missing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from medfl.errors import ContractError, RefusedError

Visibility = Literal["public", "private", "needed"]
"""What a fact is. Under a privacy setting only ``public`` ones leave a site; a method that can't do without one that is
not says that it is ``needed``, and is refused then."""

PARCEL = "parcel"
"""Stands among the ops of `Tell.after` for parcels."""

LARGEST = 10**12
"""The largest number of things: sums over all sites stay far within 64 bits."""

LETTERS = 200
"""Of a text, at most."""


class Form(Protocol):
    """What a JSON value has to be."""

    def fits(self, value: Any, known: Mapping[str, Any]) -> bool:
        """Whether a value is so.

        Args:
            value: JSON; of which nothing is known yet.
            known: The receiver's own facts: ``classes``, the number of classes; ``networks``, the names of the run's;
                for a reply also the order's meta.
        """
        ...

    def words(self) -> str:
        """It in words."""
        ...


@dataclass(frozen=True)
class Tell:
    """A fact that replies or parcels may hold.

    Attributes:
        kind: Whether it may leave under a privacy setting.
        form: What it has to be.
        after: Ops of orders whose replies have to hold it; `PARCEL` for parcels. What a privacy setting keeps at its
            site may be missing all the same.
    """

    kind: Visibility
    form: Form
    after: tuple[str, ...] = ()


def count(*shape: int | str, shorter: bool = False) -> Form:
    """A number of things, 0 to `LARGEST`, or lists of such.

    Args:
        shape: Lengths of lists within lists; none is a single number. A name stands for a number among the known facts,
            for example ``classes``, or a key of the order's meta.
        shorter: Whether lists may be shorter than that.
    """
    return _shaped(_Number(0, LARGEST, True), shape, shorter)


def number(low: float = -math.inf, high: float = math.inf, *shape: int | str) -> Form:
    """A finite number in [low, high], or lists of such; `shape` as in `count`."""
    return _shaped(_Number(low, high, False), shape)


def flag() -> Form:
    """True or false."""
    return _Flag()


def text(*shape: int | str, shorter: bool = False) -> Form:
    """At most `LETTERS` printable characters, or lists of such; `shape` and `shorter` as in `count`."""
    return _shaped(_Text(), shape, shorter)


def one_of(*names: str, none: bool = False) -> Form:
    """A text that is one of the known facts.

    Args:
        names: Of facts, for example of keys of the order's meta, each a text or a list of texts.
        none: Whether it may be empty.
    """
    return _OneOf(names, none)


def fields(**forms: Form) -> Form:
    """A dict of exactly these keys."""
    return _Fields(forms)


def numbers_by_name(low: float, high: float, most: int) -> Form:
    """A dict of at most `most` finite numbers in [low, high], by names of at most `LETTERS` characters."""
    return _NumbersByName(_Number(low, high, False), most)


def or_none(form: Form) -> Form:
    """What `form` says, or nothing."""
    return _OrNone(form)


def facts() -> Form:
    """A dict of any JSON whose numbers are finite and of at most 64 bits; a method's replies should say more."""
    return _Facts()


def check_told(
    meta: Any, tells: Mapping[str, Tell], op: str, known: Mapping[str, Any], who: str, private: bool = False
) -> None:
    """Refuse what does not fit its declaration.

    Args:
        meta: Of a reply or a parcel.
        tells: The declarations.
        op: Of the order, or `PARCEL`.
        known: See `Form.fits`.
        who: Who sent it, for the message: "site 'site-01'".
        private: Whether the run has a privacy setting.

    Raises:
        RefusedError: If it is no dict, a key is not declared or missing, or a value has another form. It names the key
            and shows nothing of the value.
    """
    if not isinstance(meta, dict):
        raise _refusal("wrong_type", "facts by name", _kind(meta), who)
    if undeclared := sorted(meta.keys() - tells.keys()):
        raise _refusal("undeclared_metadata", f"facts among {sorted(tells)}", ascii(undeclared[0])[:60], who)
    for key, tell in sorted(tells.items()):
        if key not in meta:
            if op in tell.after and (tell.kind == "public" or not private):
                raise _refusal("missing_metadata", f"{tell.form.words()} as '{key}'", "none", who, key=key)
        elif not tell.form.fits(meta[key], known):
            raise _refusal("wrong_metadata", f"{tell.form.words()} as '{key}'", _kind(meta[key]), who, key=key)


def check_tells(tells: Mapping[str, Any], name: str) -> None:
    """Refuse a declaration that says nothing of types.

    Raises:
        ContractError: If a value is no `Tell`.
    """
    for key, tell in sorted(tells.items()):
        if not isinstance(tell, Tell):
            raise ContractError(
                "invalid_schema",
                f"Method '{name}' declares '{key}' in `sends_meta` as {tell!r}: expected what it is, too, for example "
                'Tell("private", count()). See medfl/utils/tells.py.',
                method=name,
                key=key,
            )


def _refusal(code: str, expected: str, got: str, who: str, **fields: str) -> RefusedError:
    return RefusedError(
        code,
        f"What {who} tells was refused: expected {expected}, got {got}. Sender and receiver need the same method and "
        "version of medfl; if they have it, the sender is not honest.",
        sender=who,
        expected=expected,
        found=got,
        **fields,
    )


@dataclass(frozen=True)
class _Number:
    low: float
    high: float
    whole: bool

    def fits(self, value: Any, known: Mapping[str, Any]) -> bool:
        if type(value) is float and not self.whole:
            return math.isfinite(value) and self.low <= value <= self.high
        return type(value) is int and abs(value) < 2**63 and self.low <= value <= self.high

    def words(self) -> str:
        kind = "whole number" if self.whole else "finite number"
        if math.isfinite(self.high) and self.high != LARGEST:
            return f"{kind} in [{self.low:g}, {self.high:g}]"
        return f"{kind} >= {self.low:g}" if math.isfinite(self.low) else kind


@dataclass(frozen=True)
class _Lists:
    form: Form
    shape: tuple[int | str, ...]
    shorter: bool

    def fits(self, value: Any, known: Mapping[str, Any]) -> bool:
        return self._within(value, [_length(size, known) for size in self.shape], known)

    def _within(self, value: Any, shape: list[int], known: Mapping[str, Any]) -> bool:
        if not shape:
            return self.form.fits(value, known)
        right = isinstance(value, list) and (len(value) == shape[0] or (self.shorter and len(value) < shape[0]))
        return right and all(self._within(entry, shape[1:], known) for entry in value)

    def words(self) -> str:
        lengths = " x ".join(str(size) for size in self.shape)
        return f"list of {'at most ' if self.shorter else ''}{lengths}, each a {self.form.words()}"


@dataclass(frozen=True)
class _Flag:
    def fits(self, value: Any, known: Mapping[str, Any]) -> bool:
        return isinstance(value, bool)

    def words(self) -> str:
        return "true or false"


@dataclass(frozen=True)
class _Text:
    def fits(self, value: Any, known: Mapping[str, Any]) -> bool:
        return isinstance(value, str) and len(value) <= LETTERS and value.isprintable()

    def words(self) -> str:
        return f"text of at most {LETTERS} letters"


@dataclass(frozen=True)
class _OneOf:
    names: tuple[str, ...]
    none: bool

    def fits(self, value: Any, known: Mapping[str, Any]) -> bool:
        if not isinstance(value, str):
            return False
        allowed = [known.get(name) or () for name in self.names]
        return (self.none and not value) or any(
            value == names if isinstance(names, str) else value in names for names in allowed
        )

    def words(self) -> str:
        allowed = " or ".join(f"'{name}'" for name in self.names)
        return f"what the receiver knows as {allowed}{', or nothing' if self.none else ''}"


@dataclass(frozen=True)
class _Fields:
    forms: Mapping[str, Form]

    def fits(self, value: Any, known: Mapping[str, Any]) -> bool:
        if not isinstance(value, dict) or value.keys() != self.forms.keys():
            return False
        return all(form.fits(value[name], known) for name, form in self.forms.items())

    def words(self) -> str:
        return "; ".join(f"{name}: {form.words()}" for name, form in self.forms.items())


@dataclass(frozen=True)
class _NumbersByName:
    number: _Number
    most: int

    def fits(self, value: Any, known: Mapping[str, Any]) -> bool:
        if not isinstance(value, dict) or len(value) > self.most:
            return False
        return all(_Text().fits(name, known) and self.number.fits(entry, known) for name, entry in value.items())

    def words(self) -> str:
        return f"at most {self.most} entries by name, each a {self.number.words()}"


@dataclass(frozen=True)
class _OrNone:
    form: Form

    def fits(self, value: Any, known: Mapping[str, Any]) -> bool:
        return value is None or self.form.fits(value, known)

    def words(self) -> str:
        return f"{self.form.words()}, or nothing"


@dataclass(frozen=True)
class _Facts:
    def fits(self, value: Any, known: Mapping[str, Any]) -> bool:
        waiting = [value]
        while waiting:
            entry = waiting.pop()
            waiting += [*entry.values()] if isinstance(entry, dict) else entry if isinstance(entry, list) else []
            if isinstance(entry, int | float) and not abs(entry) < 2**63:  # nor is NaN below it
                return False
        return isinstance(value, dict)

    def words(self) -> str:
        return "facts by name"


def _shaped(form: Form, shape: tuple[int | str, ...], shorter: bool = False) -> Form:
    return _Lists(form, shape, shorter) if shape else form


def _length(size: int | str, known: Mapping[str, Any]) -> int:
    length = known.get(size) if isinstance(size, str) else size
    if type(length) is not int:
        raise ContractError(
            "undeclared_length",
            f"A fact of `sends_meta` is as long as '{size}': expected a number of that name in the order.",
            size=size,
        )
    return length


def _kind(value: Any) -> str:
    """What a value is, without what it says."""
    if isinstance(value, bool) or value is None:
        return "nothing" if value is None else "true or false"
    if isinstance(value, int | float):
        return "another number" if isinstance(value, int) or math.isfinite(value) else "NaN or infinity"
    names: dict[type, str] = {str: "a text", list: "a list", dict: "a dict"}
    return names.get(type(value), type(value).__name__) + " that is something else"
