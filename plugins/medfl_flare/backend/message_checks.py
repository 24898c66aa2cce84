"""Checks of a message's bytes before anything in it is built: sizes, header, names, shapes, offsets, JSON.

Bytes from a network are not trusted. Every size that a parser would allocate is first compared with limits and with the
length of the bytes. Only the text of the header is parsed. Its JSON needs up to about thirty times its own size in
memory, so `Limits.max_header_bytes` bounds that, too. Error messages contain sizes, types and truncated names, never
the content of a tensor or of the metadata.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from medfl.errors import RefusedError
from medfl.utils import wire

MAX_NAME_CHARACTERS = 512
"""Maximum number of characters of a tensor's name."""

LIMIT_ADVICE = "If the sender is right, raise the receiver's limit."
"""Advice in the error for a message above a limit."""

FORMAT_ADVICE = "It was changed on its way, or medfl did not make it: have it sent again, by the same version of medfl."
"""Advice in the error for a message that does not have medfl's format."""

_DTYPES = {code: dtype for dtype, code in wire.DTYPES.items()}
_MAX_KIND_CHARACTERS = 64
_MAX_PRINTED_CHARACTERS = 60


@dataclass(frozen=True)
class Limits:
    """Limits of the messages that a receiver accepts.

    Attributes:
        max_bytes: Maximum size of the whole message in bytes. It also limits the total bytes of the decoded tensors and
            the number of elements in any one tensor.
        max_header_bytes: Maximum size in bytes of the header, which contains names, shapes and metadata.
        max_tensors: Maximum number of tensors.
        max_dims: Maximum number of dimensions of a tensor.
        max_meta_bytes: Maximum size in bytes of the message kind and the metadata as JSON.
        max_meta_depth: Maximum nesting depth of lists and dicts in the metadata, which is itself the first level.
    """

    max_bytes: int = 512 * 2**20
    max_header_bytes: int = 16 * 2**20
    max_tensors: int = 100_000
    max_dims: int = 8
    max_meta_bytes: int = 8 * 2**20
    max_meta_depth: int = 16


def check_size(size: int, limits: Limits) -> None:
    """Raise if a message is too large.

    Args:
        size: Size of the message in bytes.
        limits: Limits of the receiver.

    Raises:
        RefusedError: If the size is above the limit.
    """
    if size > limits.max_bytes:
        raise refusal_error(
            "message_too_large", f"at most {limits.max_bytes} bytes", f"{size}", LIMIT_ADVICE, maximum=limits.max_bytes
        )


def check_blob(blob: wire.Blob, limits: Limits) -> None:
    """Raise if bytes are not a well-formed message. This check must precede `medfl.utils.wire.view`.

    Args:
        blob: Received bytes.
        limits: Limits of the receiver.

    Raises:
        RefusedError: If the blob is above a limit, or does not have the format of `medfl_flare.backend.messages`. The
            checksum is left to `medfl.utils.wire.view`.
    """
    if type(blob) is not bytes and (type(blob) is not memoryview or blob.readonly):  # a mapped file is writable
        raise refusal_error("wrong_type", "bytes", type(blob).__name__)
    check_size(len(blob), limits)
    size = int.from_bytes(blob[:8], "little")
    if size > limits.max_header_bytes:
        raise refusal_error(
            "header_too_large",
            f"a header of at most {limits.max_header_bytes} bytes",
            f"one of {size}",
            LIMIT_ADVICE,
            maximum=limits.max_header_bytes,
        )
    if len(blob) < 8 + size:
        raise refusal_error("truncated_message", f"at least {8 + size} bytes, as its first eight state", f"{len(blob)}")
    header = _parse_json_object(_decode_header(bytes(blob[8 : 8 + size])), "the header")
    _check_meta_text(header.pop("__metadata__", None), limits)
    _check_layout(header, len(blob) - 8 - size, limits)


def check_shape(shape: object, limits: Limits, name: str) -> int:
    """Return the number of elements of a shape in a message, after a check of the shape.

    Args:
        shape: JSON value of the shape.
        limits: Limits of the receiver.
        name: Name of the tensor.

    Raises:
        RefusedError: If the shape is not a list of integers >= 0, has too many dimensions, or has more elements than
            the limit on bytes. For this limit, dimensions of size 0 count as 1.
    """
    if type(shape) is not list or any(type(size) is not int or size < 0 for size in shape):
        raise refusal_error(
            "invalid_tensor_shape",
            f"the shape of {printable_name(name)} as a list of integers >= 0",
            f"another {type(shape).__name__}",
            tensor=printable_name(name),
        )
    if len(shape) > limits.max_dims:
        raise refusal_error(
            "too_many_dimensions",
            f"at most {limits.max_dims} dimensions of {printable_name(name)}",
            f"{len(shape)}",
            LIMIT_ADVICE,
            tensor=printable_name(name),
            maximum=limits.max_dims,
        )
    if math.prod(max(size, 1) for size in shape) > limits.max_bytes:
        raise refusal_error(
            "too_many_elements",
            f"at most {limits.max_bytes} elements of {printable_name(name)}",
            "more",
            LIMIT_ADVICE,
            tensor=printable_name(name),
            maximum=limits.max_bytes,
        )
    return math.prod(shape)


def walk_json(value: Any) -> Iterator[tuple[Any, int, str]]:
    """Yield each value within a JSON value, with its depth and its key.

    Args:
        value: JSON value.

    Yields:
        A triple for the value itself and for each value within it: the inner value; the number of lists and dicts
        around the inner value; the nearest key that leads to the inner value.
    """
    waiting: list[tuple[Any, int, str]] = [(value, 0, "")]
    while waiting:
        inner, depth, key = waiting.pop()
        yield inner, depth, key
        if isinstance(inner, dict):
            waiting += [(element, depth + 1, name) for name, element in inner.items()]
        elif isinstance(inner, list):
            waiting += [(element, depth + 1, key) for element in inner]


def refusal_error(
    code: str, expected: str, got: str, advice: str = FORMAT_ADVICE, who: str = "", **fields: Any
) -> RefusedError:
    """Return the error for a refused message.

    Args:
        code: Error code, see `medfl.errors.MedflError`.
        expected: Text of the accepted form.
        got: Text of the received form, without contents.
        advice: Text that says what to do.
        who: Sender, or an empty text if unknown.
        fields: Fields of the error in addition to ``expected``, ``found`` and ``sender``.
    """
    sender = f" from {who}" if who else ""
    text = f"A message{sender} was refused: expected {expected}, got {got}. {advice}"
    return RefusedError(code, text, expected=expected, found=got, sender=who or None, **fields)


def printable_name(name: object) -> str:
    """Return a name for use in an error message: quoted, printable, and truncated to about sixty characters.

    If the value is not a string, return the name of its type.
    """
    if not isinstance(name, str):
        return type(name).__name__
    text = repr(name[: _MAX_PRINTED_CHARACTERS + 1])
    return text if len(text) <= _MAX_PRINTED_CHARACTERS else text[:_MAX_PRINTED_CHARACTERS] + "..."


def _check_layout(header: dict[str, Any], room: int, limits: Limits) -> None:
    """Raise if the tensors don't fill the `room` bytes behind the header exactly."""
    if len(header) > limits.max_tensors:
        raise refusal_error(
            "too_many_tensors",
            f"at most {limits.max_tensors} tensors",
            f"{len(header)}",
            LIMIT_ADVICE,
            maximum=limits.max_tensors,
        )
    end = 0
    for start, stop, name in sorted((*_check_tensor_entry(name, header[name], limits), name) for name in header):
        if start != end:
            raise refusal_error(
                "misplaced_tensor",
                f"the data of {printable_name(name)} at {end}",
                _byte_text(start),
                tensor=printable_name(name),
            )
        end = stop
    if end != room:
        raise refusal_error("wrong_tensor_bytes", f"tensors of {end} bytes, as the header states", f"{room}")


def _check_tensor_entry(name: str, entry: Any, limits: Limits) -> tuple[int, int]:
    """Return the start and end offset of a tensor, after a check of its header entry."""
    if not name or len(name) > MAX_NAME_CHARACTERS or not name.isprintable():
        raise refusal_error(
            "invalid_tensor_name",
            f"names of tensors of 1 to {MAX_NAME_CHARACTERS} printable characters",
            f"{printable_name(name)} ({len(name)})",
            tensor=printable_name(name),
            maximum=MAX_NAME_CHARACTERS,
        )
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise refusal_error(
            "invalid_tensor_entry",
            f"dtype, shape and data_offsets of {printable_name(name)}",
            "something else",
            tensor=printable_name(name),
        )
    code, offsets = entry["dtype"], entry["data_offsets"]
    if not isinstance(code, str) or code not in _DTYPES:
        raise refusal_error(
            "unsupported_dtype",
            f"a dtype of {printable_name(name)} among {', '.join(sorted(_DTYPES))}",
            printable_name(code),
            tensor=printable_name(name),
        )
    size = check_shape(entry["shape"], limits, name) * torch.empty(0, dtype=_DTYPES[code]).element_size()
    if type(offsets) is not list or [type(offset) for offset in offsets] != [int, int]:
        raise refusal_error(
            "invalid_tensor_offsets",
            f"two integers as the data_offsets of {printable_name(name)}",
            "something else",
            tensor=printable_name(name),
        )
    start, stop = offsets
    if start < 0 or stop - start != size:
        raise refusal_error(
            "wrong_tensor_size",
            f"{size} bytes of {printable_name(name)}, as its shape and dtype require",
            _byte_text(stop - start),
            tensor=printable_name(name),
        )
    return start, stop


def _check_meta_text(facts: Any, limits: Limits) -> None:
    """Raise if the message kind and the metadata are too large, nested too deep, or not JSON objects."""
    if not isinstance(facts, dict) or facts.keys() != {"medfl", "sha256"}:
        raise refusal_error(
            "invalid_header_metadata", "'medfl' and 'sha256' in the header's metadata", "something else"
        )
    text = facts["medfl"]
    if not isinstance(text, str) or not text.isascii():
        raise refusal_error("unsupported_encoding", "the meta as ASCII text", f"another {type(text).__name__}")
    if len(text) > limits.max_meta_bytes:
        raise refusal_error(
            "metadata_too_large",
            f"meta of at most {limits.max_meta_bytes} bytes",
            f"{len(text)}",
            LIMIT_ADVICE,
            maximum=limits.max_meta_bytes,
        )
    content = _parse_json_object(text, "the meta")
    if content.keys() != {"kind", "meta"} or not isinstance(content["meta"], dict):
        raise refusal_error("invalid_message", "a kind and a dict of meta", "something else")
    kind = content["kind"]
    if not isinstance(kind, str) or not 1 <= len(kind) <= _MAX_KIND_CHARACTERS or not kind.isprintable():
        raise refusal_error(
            "invalid_message_kind", f"a kind of 1 to {_MAX_KIND_CHARACTERS} printable characters", printable_name(kind)
        )
    if any(depth >= limits.max_meta_depth and isinstance(v, dict | list) for v, depth, _ in walk_json(content["meta"])):
        raise refusal_error(
            "metadata_too_deep",
            f"meta nested at most {limits.max_meta_depth} deep",
            "a deeper one",
            LIMIT_ADVICE,
            maximum=limits.max_meta_depth,
        )


class _DuplicateKeyError(ValueError):
    """A JSON object contains a duplicate key."""


def _refuse_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the pairs as a dict; raise if a key is a duplicate."""
    by_key = dict(pairs)
    if len(by_key) != len(pairs):
        raise _DuplicateKeyError
    return by_key


def _parse_json_object(text: str, what: str) -> dict[str, Any]:
    """Parse a JSON object. Errors of the parser are replaced, as they contain the text."""
    try:
        value = json.loads(text, object_pairs_hook=_refuse_duplicate_keys)
    except RecursionError:
        value, got = None, "JSON with too deep nesting"
    except _DuplicateKeyError:
        value, got = None, "an object with a duplicate key"
    except ValueError:
        value, got = None, "no JSON"
    else:
        got = type(value).__name__
    if not isinstance(value, dict):
        raise refusal_error("invalid_json", f"{what} as a JSON object", got, part=what)
    return value


def _decode_header(raw: bytes) -> str:
    """Decode a header in UTF-8, or raise."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        raise refusal_error("unsupported_encoding", "a header in UTF-8", "other bytes") from None


def _byte_text(number: int) -> str:
    """Return a number of bytes as text; an integer beyond 64 bits is not printed."""
    return str(number) if abs(number) < 2**63 else "a number beyond 64 bits"
