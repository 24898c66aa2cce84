"""Schema of the metadata beside the tensors of a reply or a peer message.

A method declares each field once, for example ``{"size": MetaField("private", Count)}``: its type, as pydantic reads
it, and whether it may leave a site. A site refuses to send a value that does not fit, and the receiver refuses it again
before the method sees it; the sender then counts as unavailable.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, GetCoreSchemaHandler, TypeAdapter, ValidationError
from pydantic_core import CoreSchema, core_schema

from medfl.errors import ContractError, RefusedError, validation_message
from medfl.utils.field_descriptions import words_of

Visibility = Literal["public", "private", "needed"]
"""Permission of metadata to leave a site under a privacy setting: only ``public`` fields may leave it.

A method declares a field that is not public but that it can't do without as ``needed``, and such a run is refused.
"""

PEER_MESSAGE = "peer_message"
"""Name of peer messages among the operations in `MetaField.after`."""

MAX_COUNT = 10**12
"""Maximum count. Sums over all sites stay far below 64 bits."""

MAX_TEXT_CHARACTERS = 200
"""Maximum number of characters of a text."""


def _check_64_bits(value: Any) -> Any:
    """Raise if an integer has more than 64 bits."""
    if isinstance(value, int) and abs(value) >= 2**63:
        raise ValueError("expected a number of at most 64 bits")
    return value


def _check_printable(value: str) -> str:
    """Raise if a text has unprintable characters."""
    if not value.isprintable():
        raise ValueError("expected printable characters")
    return value


def _check_numbers(value: dict[str, Any]) -> dict[str, Any]:
    """Raise if a JSON object contains a number that is not finite or has more than 64 bits."""
    waiting: list[Any] = [value]
    while waiting:
        entry = waiting.pop()
        waiting += [*entry.values()] if isinstance(entry, dict) else entry if isinstance(entry, list) else []
        if isinstance(entry, int | float) and not abs(entry) < 2**63:  # nor is NaN below it
            raise ValueError("expected finite numbers of at most 64 bits")
    return value


Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
"""Type of a number of items, 0 to `MAX_COUNT`."""

Number = Annotated[float, BeforeValidator(_check_64_bits), Field(allow_inf_nan=False)]
"""Type of a finite number that fits into 64 bits."""

Text = Annotated[str, Field(max_length=MAX_TEXT_CHARACTERS), AfterValidator(_check_printable)]
"""Type of a text of at most `MAX_TEXT_CHARACTERS` printable characters."""

AnyMetadata = Annotated[dict[str, Any], AfterValidator(_check_numbers)]
"""Type of any JSON object with finite numbers of at most 64 bits; a method's replies should have a narrower type."""


@dataclass(frozen=True)
class Length:
    """Annotation of a list type with the length of the list.

    Attributes:
        size: The length, or the name of a number that the receiver knows: ``classes``, or a key of the request's
            metadata.
        shorter: Whether the list may be shorter.
    """

    size: int | str
    shorter: bool = False

    @property
    def words(self) -> str:
        """Description of the required length in words, for messages and documentation."""
        return f"{'at most ' if self.shorter else ''}{self.size!r} entries"

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_info_before_validator_function(self._check, handler(source))

    def _check(self, value: Any, info: core_schema.ValidationInfo) -> Any:
        """Raise if the list has another length."""
        length = (info.context or {}).get(self.size) if isinstance(self.size, str) else self.size
        if type(length) is not int:
            raise ContractError(
                "undeclared_length",
                f"A field of `sends_meta` has the length '{self.size}': expected a number of that name in the request.",
                size=self.size,
            )
        if isinstance(value, list) and not (len(value) == length or (self.shorter and len(value) < length)):
            raise ValueError(f"expected {self.words}")
        return value


@dataclass(frozen=True)
class OneOf:
    """Annotation of a text type whose values the receiver knows.

    Attributes:
        names: Names of texts or lists of texts that the receiver knows: ``networks``, or keys of the request's
            metadata.
        empty: Whether the text may be empty.
    """

    names: tuple[str, ...]
    empty: bool = False

    @property
    def words(self) -> str:
        """Description of the allowed texts in words, for messages and documentation."""
        allowed = " or ".join(f"'{name}'" for name in self.names)
        return f"known to the receiver as {allowed}{', or empty' if self.empty else ''}"

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_info_after_validator_function(self._check, handler(source))

    def _check(self, value: str, info: core_schema.ValidationInfo) -> str:
        """Raise if the receiver does not know the text."""
        texts = [(info.context or {}).get(name) or () for name in self.names]
        known = any(value == text if isinstance(text, str) else value in text for text in texts)
        if not (known or (self.empty and not value)):
            raise ValueError(f"expected a text {self.words}")
        return value


def bounded_number(low: float = -math.inf, high: float = math.inf) -> Any:
    """Return the type of a finite number in [low, high]."""
    return Annotated[Number, Field(ge=None if math.isinf(low) else low, le=None if math.isinf(high) else high)]


def list_of(kind: Any, *shape: int | str, shorter: bool = False) -> Any:
    """Return the type of a list, or of lists within lists.

    Args:
        kind: Type of the innermost entries.
        shape: Lengths from the outermost list inwards, as in `Length`.
        shorter: Whether each list may be shorter.
    """
    for size in reversed(shape):
        kind = Annotated[list[kind], Length(size, shorter)]
    return kind


def dict_of(kind: Any, most: int) -> Any:
    """Return the type of a dict of at most `most` values by name, each of the type `kind`."""
    return Annotated[dict[Text, kind], Field(max_length=most)]


def one_of(*names: str, empty: bool = False) -> Any:
    """Return the type of a text whose values the receiver knows.

    Args:
        names: Names of texts or lists of texts that the receiver knows: ``networks``, or keys of the request's
            metadata.
        empty: Whether the text may be empty.
    """
    return Annotated[str, OneOf(names, empty)]


@dataclass(frozen=True)
class MetaField:
    """Declaration of one field of the metadata of replies or peer messages.

    Attributes:
        visibility: Whether the field may leave a site under a privacy setting.
        type: Type of its values, as pydantic reads it: `Count`, `Number`, `Text`, ``bool``, a type that
            `bounded_number`, `list_of` or `one_of` returns, a ``TypedDict`` of such, or ``type | None``. Values are not
            converted.
        after: Operations of the requests whose replies must have the field; `PEER_MESSAGE` for peer messages. A field
            that a privacy setting withholds may still be missing.
    """

    visibility: Visibility
    type: Any
    after: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """Description of the type in words, without the bound of counts."""
        return words_of(self.type).replace(f", <= {MAX_COUNT}", "")

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        """Pydantic validator of the type."""
        return TypeAdapter(self.type)

    def problem_of(self, value: Any, known: Mapping[str, Any]) -> str | None:
        """Return the reason why a value does not fit, without the value itself; None if it fits.

        Args:
            value: JSON value.
            known: Names and numbers that the receiver knows: ``classes``, the number of classes; ``networks``, the
                names of the run's networks; for a reply also the request's metadata.
        """
        try:
            self._adapter.validate_python(value, strict=True, context=dict(known))
        except ValidationError as error:
            return validation_message(error.errors(include_url=False, include_context=False, include_input=False)[0])
        return None


def check_metadata(
    meta: Any, schema: Mapping[str, MetaField], op: str, known: Mapping[str, Any], who: str, private: bool = False
) -> None:
    """Raise if metadata do not fit their schema.

    Args:
        meta: Metadata of a reply or a peer message.
        schema: Mapping from each field's name to its declaration.
        op: Operation of the request, or `PEER_MESSAGE`.
        known: Names and numbers that the receiver knows, such as ``classes`` and ``networks`` (`MetaField.problem_of`).
        who: Sender, for the message, for example "site 'site-01'".
        private: Whether the run has a privacy setting.

    Raises:
        RefusedError: If the metadata is not a dict, a field is undeclared or missing, or a value has another type. The
            message has the field's name but not its value.
    """
    if not isinstance(meta, dict):
        raise _refusal("wrong_type", "fields by name", type(meta).__name__, who)
    if undeclared := sorted(meta.keys() - schema.keys()):
        raise _refusal("undeclared_metadata", f"fields among {sorted(schema)}", ascii(undeclared[0])[:60], who)
    for key, field in sorted(schema.items()):
        if key not in meta:
            if op in field.after and (field.visibility == "public" or not private):
                raise _refusal("missing_metadata", f"{field.words} as '{key}'", "none", who, key=key)
        elif problem := field.problem_of(meta[key], known):
            kind = type(meta[key]).__name__
            raise _refusal("wrong_metadata", f"{field.words} as '{key}'", kind, who, problem, key=key)


def check_schema(schema: Mapping[str, Any], name: str) -> None:
    """Raise if a method's schema does not declare types.

    Args:
        schema: `medfl.contract.Method.sends_meta`.
        name: Name of the method.

    Raises:
        ContractError: If a value is not a `MetaField`.
    """
    for key, field in sorted(schema.items()):
        if not isinstance(field, MetaField):
            raise ContractError(
                "invalid_schema",
                f"Method '{name}' declares '{key}' in `sends_meta` as {field!r}: expected a field with its type, for "
                'example MetaField("private", Count). See medfl/utils/metadata.py.',
                method=name,
                key=key,
            )


def _refusal(code: str, expected: str, actual: str, who: str, reason: str = "", **fields: str) -> RefusedError:
    """Return the error for metadata that do not fit."""
    return RefusedError(
        code,
        f"The metadata of {who} were refused: expected {expected}, found {actual}{reason and f' ({reason})'}. Sender "
        "and receiver need the same method and version of medfl; if they have, the sender is not honest.",
        sender=who,
        expected=expected,
        found=actual,
        **fields,
    )
