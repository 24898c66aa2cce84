"""Tensors and meta as bytes: one safetensors blob that carries its own checksum.

Everything that medfl writes to disk or sends has this form; there are no pickles. A blob is an ordinary safetensors
file whose metadata hold the meta as JSON under ``medfl`` and a SHA-256 under ``sha256``. The checksum covers the JSON
and each tensor's name, dtype, shape and bytes: a blob cut short or changed anywhere is refused, never half read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

import safetensors.torch as st
import torch

from medfl.errors import ContractError, DamagedError
from medfl.types import Meta, Tensors

DTYPES = {
    **{torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.bool: "BOOL"},
    **{torch.uint8: "U8", torch.uint16: "U16", torch.uint32: "U32", torch.uint64: "U64"},
    **{torch.int8: "I8", torch.int16: "I16", torch.int32: "I32", torch.int64: "I64"},
}
"""Dtypes that may be stored or sent, and what safetensors calls them."""

_DTYPES = {code: dtype for dtype, code in DTYPES.items()}

Blob = bytes | memoryview
"""What `encode` returns, or the same bytes elsewhere."""


def encode(tensors: Tensors, meta: Meta) -> bytes:
    """Tensors and meta as one blob; the same content gives the same bytes.

    Args:
        tensors: Dense tensors of any shape, also () and empty ones, on any device. Views and shared memory are fine.
        meta: JSON: None, bool, int, float (NaN too), str, and lists and str-keyed dicts of them.

    Returns:
        A safetensors blob for `decode`.

    Raises:
        ContractError: If a tensor's name, dtype or layout, or a value in meta, can't be stored; it is named.
    """
    text, plain = _json(meta), _plain(tensors)
    header = _header(plain, {"medfl": text, "sha256": _digest(plain, text)})
    return b"".join([header, *(_raw(plain[name]) for name in _layout(plain))])


def decode(blob: bytes) -> tuple[Tensors, Meta]:
    """The tensors and meta of `encode`.

    Args:
        blob: What `encode` returned.

    Returns:
        Tensors on the CPU, in name order, each with writable memory of its own; and meta.

    Raises:
        DamagedError: If a single bit differs from what was encoded, or bytes are missing or added.
    """
    return _verified(blob, lambda blob, header: st.load(blob))


def view(blob: memoryview) -> tuple[Tensors, Meta]:
    """The tensors and meta of `encode`, without a copy: each tensor is a piece of the blob, and keeps all of it alive.

    Args:
        blob: What `encode` returned, in memory that may be written: of a `bytearray`, or a file (`files.mapped`), whose
            tensors are then read from the disk when they are looked at.

    Returns:
        As `decode`; what is written into a tensor is written into the blob.

    Raises:
        DamagedError: As `decode`.
    """
    return _verified(blob, _pieces)


def _verified(blob: Blob, load: Callable[[Any, dict[str, Any]], Tensors]) -> tuple[Tensors, Meta]:
    """What `load` makes of a blob and its header, if it is undamaged."""
    try:
        size = 8 + int.from_bytes(blob[:8], "little")
        header = json.loads(bytes(blob[8:size]))
        facts = header["__metadata__"]
        loaded = load(blob, header)
        tensors = {name: loaded[name] for name in sorted(loaded)}
        whole = size + payload_bytes(tensors) == len(blob) and blob[:size] == _header(tensors, facts)
        intact = whole and facts["sha256"] == _digest(tensors, facts["medfl"])
        meta: Meta = json.loads(facts["medfl"]) if intact else {}
    except Exception as error:  # whatever a parser meets in damaged bytes, the reader has one thing to do
        raise DamagedError(
            "invalid_message",
            _DAMAGED.format(size=len(blob), why=f"{type(error).__name__} when parsed"),
            size=len(blob),
            cause=type(error).__name__,
        ) from error
    if not intact:
        raise DamagedError(
            "wrong_checksum",
            _DAMAGED.format(size=len(blob), why="its content does not match its checksum"),
            size=len(blob),
        )
    return tensors, meta


def _pieces(blob: memoryview, header: dict[str, Any]) -> Tensors:
    """The tensors that a header describes, as pieces of its blob."""
    first, tensors = 8 + int.from_bytes(blob[:8], "little"), dict[str, torch.Tensor]()
    for name, entry in header.items():
        if name != "__metadata__":
            kind, (start, stop) = _DTYPES[entry["dtype"]], entry["data_offsets"]
            flat = torch.empty(0, dtype=kind)
            if stop > start:
                flat = torch.frombuffer(blob[first + start : first + stop], dtype=kind)
            tensors[name] = flat.reshape(entry["shape"])
    return tensors


def digest(tensors: Tensors, meta: Meta | None = None) -> str:
    """SHA-256 over the meta's JSON and over name, dtype, shape and bytes of each tensor, in name order.

    Args:
        tensors: As for `encode`.
        meta: As for `encode`; None is the same as empty.

    Returns:
        64 hexadecimal digits.

    Raises:
        ContractError: As `encode`.
    """
    return _digest(_plain(tensors), _json(meta or {}))


def payload_bytes(tensors: Mapping[str, torch.Tensor]) -> int:
    """Bytes of the tensors' numbers alone, without names, shapes and meta."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


_DAMAGED = (
    "Expected an undamaged medfl blob, got {size} bytes of which this is known: {why}. It was cut short, or changed on "
    "disk or on its way. Use an earlier step's file, or have it sent again."
)


def _layout(plain: Tensors) -> list[str]:
    """Names in the order of their numbers in the blob: the widest dtypes first, so that all are aligned."""
    return sorted(plain, key=lambda name: (-plain[name].element_size(), name))


def _header(plain: Tensors, facts: dict[str, str]) -> bytes:
    """Size and JSON header of the safetensors format, padded to eight bytes.

    It is written here because the library's own writer orders the metadata at random, and the same content should give
    the same bytes. As there is but one way to write it, `decode` also finds damage that no parser would notice.
    """
    header: dict[str, Any] = {"__metadata__": facts}
    end = 0
    for name in _layout(plain):
        tensor = plain[name]
        start, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _digest(plain: Tensors, text: str) -> str:
    total = hashlib.sha256(f"{len(text)}:{text}".encode())
    for name in sorted(plain):
        tensor = plain[name]
        total.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        total.update(_raw(tensor))
    return total.hexdigest()


def _raw(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous CPU tensor, without a copy."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def _plain(tensors: Tensors) -> Tensors:
    """Detached contiguous CPU tensors, no two of which share memory."""
    plain: Tensors = {}
    seen: set[int] = set()
    for name in sorted(tensors, key=str):
        _check_tensor(name, tensors[name])
        tensor = tensors[name].detach().cpu().contiguous()
        storage = tensor.untyped_storage().data_ptr()
        plain[name] = tensor.clone() if storage in seen else tensor
        seen.add(storage)
    return plain


def _check_tensor(name: object, tensor: object) -> None:
    if not isinstance(name, str) or not name.isprintable() or not name or name == "__metadata__":
        raise ContractError(
            "invalid_name",
            f"A tensor's name is printable text other than '__metadata__', got {name!r}: rename it.",
            what="tensor",
            name=repr(name),
        )
    if not isinstance(tensor, torch.Tensor):
        raise ContractError(
            "wrong_type",
            f"'{name}' should be a tensor, got {type(tensor).__name__}: small facts belong in meta.",
            tensor=name,
            expected="tensor",
            found=type(tensor).__name__,
        )
    if tensor.layout != torch.strided or tensor.dtype not in DTYPES or tensor.device.type == "meta":
        got = f"{tensor.dtype}, {tensor.layout} on {tensor.device}"
        raise ContractError(
            "tensor_not_supported",
            f"Tensor '{name}' should be a dense real, integer or bool tensor, got {got}: convert it.",
            tensor=name,
            found=got,
        )


def _json(meta: Meta) -> str:
    _check_json(meta, "meta")
    return json.dumps(meta, sort_keys=True, separators=(",", ":"))


def _check_json(value: Any, where: str) -> None:
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise ContractError(
                    "wrong_key_type",
                    f"Keys of {where} should be str, got {key!r} ({type(key).__name__}): use str(key).",
                    place=where,
                    key=repr(key),
                    found=type(key).__name__,
                )
            _check_json(inner, f"{where}[{key!r}]")
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            _check_json(inner, f"{where}[{index}]")
    elif not (value is None or isinstance(value, bool | int | float | str)):
        kind = type(value).__name__
        raise ContractError(
            "wrong_type",
            f"{where} should be JSON (bool, int, float, str, list, dict or None), got {kind}.",
            place=where,
            expected="JSON",
            found=kind,
        )


def tensors_equal(left: Tensors, right: Tensors) -> bool:
    """Whether two sets of tensors have the same names, types, shapes and bits."""
    return left.keys() == right.keys() and all(
        a.dtype == right[name].dtype
        and a.shape == right[name].shape
        and torch.equal(
            a.contiguous().reshape(-1).view(torch.uint8), right[name].contiguous().reshape(-1).view(torch.uint8)
        )
        for name, a in left.items()
    )


def select(tensors: Tensors, prefix: str) -> Tensors:
    """The tensors whose name begins with `prefix`, without it."""
    return {name[len(prefix) :]: tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def prefixed(tensors: Tensors, prefix: str) -> Tensors:
    """The same tensors with `prefix` before each name."""
    return {prefix + name: tensor for name, tensor in tensors.items()}
