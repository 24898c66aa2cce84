"""Checks of a message's bytes before anything in it is built: sizes, header, names, shapes, offsets, JSON.

A blob from a network is not trusted. All that a parser would allocate for is compared with limits and with the blob's
own length first, and the header's text is the only thing that is parsed. Its JSON takes up to about thirty times its
own size in memory, so `Limits.max_header_bytes` bounds that, too. Refusals tell sizes, types and names, which are cut
short, never the content of a tensor or of meta.
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

MAX_NAME = 512
"""Longest name of a tensor, in characters."""

HONEST = "If the sender is right, raise the receiver's limit."
"""What to do about a message above a limit."""

FOREIGN = "It was changed on its way, or medfl did not make it: have it sent again, by the same version of medfl."
"""What to do about a message of another form."""

_DTYPES = {code: dtype for dtype, code in wire.DTYPES.items()}
_KIND = 64
_MAX_CHARACTERS = 60


@dataclass(frozen=True)
class Limits:
    """What a receiver takes at most.

    Attributes:
        max_bytes: Bytes of a whole message, of the tensors that its codec stands for, and elements of one tensor.
        max_header_bytes: Bytes of its header, in which names, shapes and meta stand.
        max_tensors: Number of tensors.
        max_dims: Dimensions of a tensor.
        max_meta_bytes: Bytes of kind and meta as JSON.
        max_meta_depth: Lists and dicts within each other, with meta itself as the first.
    """

    max_bytes: int = 512 * 2**20
    max_header_bytes: int = 16 * 2**20
    max_tensors: int = 100_000
    max_dims: int = 8
    max_meta_bytes: int = 8 * 2**20
    max_meta_depth: int = 16


def check_size(size: int, limits: Limits) -> None:
    """Refuse a message by its size alone.

    Raises:
        RefusedError: If it is larger than the limits allow.
    """
    if size > limits.max_bytes:
        raise refusal(
            "message_too_large", f"at most {limits.max_bytes} bytes", f"{size}", HONEST, maximum=limits.max_bytes
        )


def check_blob(blob: wire.Blob, limits: Limits) -> None:
    """Refuse bytes that `medfl.utils.wire.view` should not see.

    Args:
        blob: What came.
        limits: What the receiver takes.

    Raises:
        RefusedError: If the blob is larger than the limits allow, or has another form than
            `medfl_flare.backend.messages` gives it. Only the checksum is left to `medfl.utils.wire.view`.
    """
    if type(blob) is not bytes and (type(blob) is not memoryview or blob.readonly):  # that of a file may be written
        raise refusal("wrong_type", "bytes", type(blob).__name__)
    check_size(len(blob), limits)
    size = int.from_bytes(blob[:8], "little")
    if size > limits.max_header_bytes:
        raise refusal(
            "header_too_large",
            f"a header of at most {limits.max_header_bytes} bytes",
            f"one of {size}",
            HONEST,
            maximum=limits.max_header_bytes,
        )
    if len(blob) < 8 + size:
        raise refusal("truncated_message", f"{8 + size} bytes or more, as its first eight say", f"{len(blob)}")
    header = _json_object(_text(bytes(blob[8 : 8 + size])), "the header")
    _check_meta_text(header.pop("__metadata__", None), limits)
    _check_layout(header, len(blob) - 8 - size, limits)


def check_shape(shape: object, limits: Limits, name: str) -> int:
    """The number of elements of a shape that a message tells.

    Args:
        shape: What came as JSON.
        limits: What the receiver takes.
        name: The tensor's name.

    Raises:
        RefusedError: If it is no list of integers >= 0, has too many dimensions, or has more elements than the limit
            on bytes (those of empty dimensions counted as one).
    """
    if type(shape) is not list or any(type(size) is not int or size < 0 for size in shape):
        raise refusal(
            "invalid_tensor_shape",
            f"the shape of {shown(name)} as a list of integers >= 0",
            f"another {type(shape).__name__}",
            tensor=shown(name),
        )
    if len(shape) > limits.max_dims:
        raise refusal(
            "too_many_dimensions",
            f"at most {limits.max_dims} dimensions of {shown(name)}",
            f"{len(shape)}",
            HONEST,
            tensor=shown(name),
            maximum=limits.max_dims,
        )
    if math.prod(max(size, 1) for size in shape) > limits.max_bytes:
        raise refusal(
            "too_many_elements",
            f"at most {limits.max_bytes} elements of {shown(name)}",
            "more",
            HONEST,
            tensor=shown(name),
            maximum=limits.max_bytes,
        )
    return math.prod(shape)


def walk(value: Any) -> Iterator[tuple[Any, int, str]]:
    """Each value within a JSON value, with its depth and its key.

    Args:
        value: JSON.

    Yields:
        The value itself and all within it; how many lists and dicts hold it; the nearest key that leads to it.
    """
    waiting: list[tuple[Any, int, str]] = [(value, 0, "")]
    while waiting:
        inner, depth, key = waiting.pop()
        yield inner, depth, key
        if isinstance(inner, dict):
            waiting += [(element, depth + 1, name) for name, element in inner.items()]
        elif isinstance(inner, list):
            waiting += [(element, depth + 1, key) for element in inner]


def refusal(code: str, expected: str, got: str, advice: str = FOREIGN, who: str = "", **fields: Any) -> RefusedError:
    """Return the error for a message that is refused.

    Args:
        code: Name of the kind of fault, as in `medfl.errors.MedflError`.
        expected: What the receiver takes.
        got: What came, without contents.
        advice: What to do.
        who: Who sent it, if that is known.
        fields: Fields of the error beside ``expected``, ``found`` and ``sender``.
    """
    sender = f" from {who}" if who else ""
    text = f"A message{sender} was refused: expected {expected}, got {got}. {advice}"
    return RefusedError(code, text, expected=expected, found=got, sender=who or None, **fields)


def shown(name: object) -> str:
    """A name as it may stand in a message: quoted, printable, about sixty characters of it. Of others, the type."""
    if not isinstance(name, str):
        return type(name).__name__
    text = repr(name[: _MAX_CHARACTERS + 1])
    return text if len(text) <= _MAX_CHARACTERS else text[:_MAX_CHARACTERS] + "..."


def _check_layout(header: dict[str, Any], room: int, limits: Limits) -> None:
    """Refuse tensors that don't fill the room behind the header exactly."""
    if len(header) > limits.max_tensors:
        raise refusal(
            "too_many_tensors",
            f"at most {limits.max_tensors} tensors",
            f"{len(header)}",
            HONEST,
            maximum=limits.max_tensors,
        )
    end = 0
    for start, stop, name in sorted((*_offsets(name, header[name], limits), name) for name in header):
        if start != end:
            raise refusal(
                "misplaced_tensor", f"the numbers of {shown(name)} at {end}", _place(start), tensor=shown(name)
            )
        end = stop
    if end != room:
        raise refusal("wrong_tensor_bytes", f"tensors of {end} bytes, as the header says", f"{room}")


def _offsets(name: str, entry: Any, limits: Limits) -> tuple[int, int]:
    """Where the numbers of a tensor begin and end, by its entry of the header."""
    if not name or len(name) > MAX_NAME or not name.isprintable():
        raise refusal(
            "invalid_tensor_name",
            f"names of tensors of 1 to {MAX_NAME} printable characters",
            f"{shown(name)} ({len(name)})",
            tensor=shown(name),
            maximum=MAX_NAME,
        )
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise refusal(
            "invalid_tensor_entry",
            f"dtype, shape and data_offsets of {shown(name)}",
            "something else",
            tensor=shown(name),
        )
    code, offsets = entry["dtype"], entry["data_offsets"]
    if not isinstance(code, str) or code not in _DTYPES:
        raise refusal(
            "unsupported_dtype",
            f"a dtype of {shown(name)} among {', '.join(sorted(_DTYPES))}",
            shown(code),
            tensor=shown(name),
        )
    size = check_shape(entry["shape"], limits, name) * torch.empty(0, dtype=_DTYPES[code]).element_size()
    if type(offsets) is not list or [type(offset) for offset in offsets] != [int, int]:
        raise refusal(
            "invalid_tensor_offsets",
            f"two integers as the data_offsets of {shown(name)}",
            "something else",
            tensor=shown(name),
        )
    start, stop = offsets
    if start < 0 or stop - start != size:
        raise refusal(
            "wrong_tensor_size",
            f"{size} bytes of {shown(name)}, as its shape and dtype say",
            _place(stop - start),
            tensor=shown(name),
        )
    return start, stop


def _check_meta_text(facts: Any, limits: Limits) -> None:
    """Refuse a kind and meta that are too large, too deep, or no JSON objects."""
    if not isinstance(facts, dict) or facts.keys() != {"medfl", "sha256"}:
        raise refusal("invalid_header_metadata", "'medfl' and 'sha256' in the header's metadata", "something else")
    text = facts["medfl"]
    if not isinstance(text, str) or not text.isascii():
        raise refusal("unsupported_encoding", "the meta as ASCII text", f"another {type(text).__name__}")
    if len(text) > limits.max_meta_bytes:
        raise refusal(
            "metadata_too_large",
            f"meta of at most {limits.max_meta_bytes} bytes",
            f"{len(text)}",
            HONEST,
            maximum=limits.max_meta_bytes,
        )
    content = _json_object(text, "the meta")
    if content.keys() != {"kind", "meta"} or not isinstance(content["meta"], dict):
        raise refusal("invalid_message", "a kind and a dict of meta", "something else")
    kind = content["kind"]
    if not isinstance(kind, str) or not 1 <= len(kind) <= _KIND or not kind.isprintable():
        raise refusal("invalid_message_kind", f"a kind of 1 to {_KIND} printable characters", shown(kind))
    if any(depth >= limits.max_meta_depth and isinstance(v, dict | list) for v, depth, _ in walk(content["meta"])):
        raise refusal(
            "metadata_too_deep",
            f"meta nested at most {limits.max_meta_depth} deep",
            "a deeper one",
            HONEST,
            maximum=limits.max_meta_depth,
        )


class _TwiceError(ValueError):
    """A JSON object holds a key twice."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    by_key = dict(pairs)
    if len(by_key) != len(pairs):
        raise _TwiceError
    return by_key


def _json_object(text: str, what: str) -> dict[str, Any]:
    """A JSON object; the errors of the parser are not passed on, as they carry the text."""
    try:
        value = json.loads(text, object_pairs_hook=_once)
    except RecursionError:
        value, got = None, "JSON that is nested too deep"
    except _TwiceError:
        value, got = None, "one that holds a key twice"
    except ValueError:
        value, got = None, "no JSON"
    else:
        got = type(value).__name__
    if not isinstance(value, dict):
        raise refusal("invalid_json", f"{what} as a JSON object", got, part=what)
    return value


def _text(raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        raise refusal("unsupported_encoding", "a header in UTF-8", "other bytes") from None


def _place(number: int) -> str:
    """A number of bytes; a number too long to print is none."""
    return str(number) if abs(number) < 2**63 else "a number beyond 64 bits"
