"""Serialization of tensors and metadata to a safetensors blob with a checksum.

Everything that medfl writes to disk or sends has this format; pickles are not used. A blob is a valid safetensors file.
Its header has the metadata as JSON under ``medfl``, and a checksum under its name, ``sha256`` or ``crc32``. The
checksum covers the JSON and each tensor's name, dtype, shape and bytes, so a truncated or changed blob is refused.

Messages between machines and files of models have a SHA-256. Step files, and messages between the processes of one
machine, have a CRC-32, which takes a quarter of the time: it only has to detect incomplete writes and failing hardware.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import safetensors.torch as st
import torch

from medfl.errors import ContractError, DamagedError
from medfl.types import Meta, Tensors

DTYPES = {
    **{torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.bool: "BOOL"},
    **{torch.uint8: "U8", torch.uint16: "U16", torch.uint32: "U32", torch.uint64: "U64"},
    **{torch.int8: "I8", torch.int16: "I16", torch.int32: "I32", torch.int64: "I64"},
}
"""Mapping from each supported dtype to its name in safetensors."""

_DTYPES = {code: dtype for dtype, code in DTYPES.items()}
"""Mapping from names in safetensors to dtypes."""

Blob = bytes | memoryview
"""Type of a serialized blob."""

Checksum = Literal["sha256", "crc32"]
"""Name of a kind of checksum."""


def encode(tensors: Tensors, meta: Meta, checksum: Checksum = "sha256") -> bytes:
    """Serialize tensors and metadata to one blob; equal content gives equal bytes.

    Args:
        tensors: Dense tensors of any shape, including () and empty ones, on any device. Views and shared memory are
            supported.
        meta: JSON: None, bool, int, float (including NaN), str, and lists and str-keyed dicts of them.
        checksum: Kind of checksum.

    Returns:
        A safetensors blob for `decode`.

    Raises:
        ContractError: If a tensor's name, dtype or layout, or a metadata value, is not supported; the message names it.
    """
    text, plain = _meta_json(meta), _cpu_tensors(tensors)
    header = _build_header(plain, {"medfl": text, checksum: _CHECKSUMS[checksum](plain, text)})
    return b"".join([header, *(_tensor_bytes(plain[name]) for name in _data_order(plain))])


def decode(blob: bytes) -> tuple[Tensors, Meta]:
    """Deserialize a blob of `encode`.

    Args:
        blob: Result of `encode`.

    Returns:
        Tensors on the CPU, sorted by name, each with its own writable memory; and the metadata.

    Raises:
        DamagedError: If the blob differs from the encoded one in any bit or in length. A CRC-32 detects every damage of
            up to 32 consecutive bits, and misses one in four billion others.
    """
    return _load_verified(blob, lambda blob, header: st.load(blob))


def view(blob: memoryview) -> tuple[Tensors, Meta]:
    """Deserialize a blob of `encode` without copying. Each tensor is a view of the blob and keeps the whole blob alive.

    Args:
        blob: Result of `encode` in writable memory: a `bytearray`, or a mapped file (`files.map_file`), whose tensors
            are read from the disk on access.

    Returns:
        Tensors by name and the metadata; writing to a tensor changes the blob.

    Raises:
        DamagedError: If `decode` would raise it.
    """
    return _load_verified(blob, _tensor_views)


def _load_verified(blob: Blob, load: Callable[[Any, dict[str, Any]], Tensors]) -> tuple[Tensors, Meta]:
    """Load the tensors of a blob by `load`, verify the checksum, and return tensors and metadata."""
    try:
        size = 8 + int.from_bytes(blob[:8], "little")
        header = json.loads(bytes(blob[8:size]))
        facts = header["__metadata__"]
        loaded = load(blob, header)
        tensors = {name: loaded[name] for name in sorted(loaded)}
        whole = size + payload_bytes(tensors) == len(blob) and blob[:size] == _build_header(tensors, facts)
        (checksum,) = facts.keys() - {"medfl"}
        intact = whole and facts[checksum] == _CHECKSUMS[checksum](tensors, facts["medfl"])
        meta: Meta = json.loads(facts["medfl"]) if intact else {}
    except Exception as error:  # damaged bytes can cause any error in a parser; the remedy is always the same
        raise DamagedError(
            "invalid_message",
            _DAMAGED_MESSAGE.format(size=len(blob), why=f"{type(error).__name__} when parsed"),
            size=len(blob),
            cause=type(error).__name__,
        ) from error
    if not intact:
        raise DamagedError(
            "wrong_checksum",
            _DAMAGED_MESSAGE.format(size=len(blob), why="its content does not match its checksum"),
            size=len(blob),
        )
    return tensors, meta


def _tensor_views(blob: memoryview, header: dict[str, Any]) -> Tensors:
    """Return the tensors in a header as views of its blob."""
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
    """Return the SHA-256 over the metadata's JSON and over name, dtype, shape and bytes of each tensor, sorted by name.

    Args:
        tensors: Dense tensors of any shape, on any device.
        meta: JSON metadata; None equals empty metadata.

    Returns:
        64 hexadecimal digits.

    Raises:
        ContractError: If `encode` would raise it.
    """
    return _compute_digest(_cpu_tensors(tensors), _meta_json(meta or {}))


def payload_bytes(tensors: Mapping[str, torch.Tensor]) -> int:
    """Return the bytes of the tensors' elements, without names, shapes and metadata."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


_DAMAGED_MESSAGE = (
    "Expected an undamaged medfl blob, got {size} bytes with this problem: {why}. It was truncated, or changed on disk "
    "or in transit. Use an earlier step's file, or send it again."
)
"""Message about a damaged blob."""


def _data_order(plain: Tensors) -> list[str]:
    """Return the names in the order of their data in the blob: the widest dtypes first, so that all are aligned."""
    return sorted(plain, key=lambda name: (-plain[name].element_size(), name))


def _build_header(plain: Tensors, facts: dict[str, str]) -> bytes:
    """Return the size and JSON header of the safetensors format, padded to a multiple of eight bytes.

    The library's own writer orders the metadata at random, while equal content must give equal bytes here. Since there
    is only one valid header for each content, `decode` also detects damage that no parser would notice.
    """
    header: dict[str, Any] = {"__metadata__": facts}
    end = 0
    for name in _data_order(plain):
        tensor = plain[name]
        start, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _content(plain: Tensors, text: str) -> Iterator[bytes | memoryview]:
    """Yield the content that a checksum covers: the metadata, then name, dtype, shape and bytes of each tensor."""
    yield f"{len(text)}:{text}".encode()
    for name in sorted(plain):
        tensor = plain[name]
        yield json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode()
        yield _tensor_bytes(tensor)


def _compute_digest(plain: Tensors, text: str) -> str:
    """Return the SHA-256 over metadata and tensors in hexadecimal digits."""
    total = hashlib.sha256()
    for part in _content(plain, text):
        total.update(part)
    return total.hexdigest()


def _compute_crc32(plain: Tensors, text: str) -> str:
    """Return the CRC-32 over metadata and tensors in hexadecimal digits."""
    total = 0
    for part in _content(plain, text):
        total = zlib.crc32(part, total)
    return f"{total:08x}"


_CHECKSUMS: dict[str, Callable[[Tensors, str], str]] = {"sha256": _compute_digest, "crc32": _compute_crc32}
"""Maps each kind of checksum to the function that computes it over metadata and tensors."""


def _tensor_bytes(tensor: torch.Tensor) -> memoryview:
    """Return the bytes of a contiguous CPU tensor without copying."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def _cpu_tensors(tensors: Tensors) -> Tensors:
    """Return detached contiguous CPU tensors that don't share memory with each other."""
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
    """Raise if a tensor or its name is not supported."""
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
            f"'{name}' should be a tensor, got {type(tensor).__name__}: put other values into the metadata.",
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


def _meta_json(meta: Meta) -> str:
    """Serialize metadata with sorted keys."""
    _check_json(meta, "meta")
    return json.dumps(meta, sort_keys=True, separators=(",", ":"))


_JSON_SCALARS = frozenset({type(None), bool, int, float, str})
"""Types of the values of JSON without inner values. `_check_json` formats no path for them, as there can be many."""


def _check_json(value: Any, where: str) -> None:
    """Raise if a value is not JSON; `where` is its path for the message."""
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
            if type(inner) not in _JSON_SCALARS:
                _check_json(inner, f"{where}[{key!r}]")
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            if type(inner) not in _JSON_SCALARS:
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
    """Return True if two sets of tensors have the same names, dtypes, shapes and bits."""
    return left.keys() == right.keys() and all(
        a.dtype == right[name].dtype
        and a.shape == right[name].shape
        and torch.equal(
            a.contiguous().reshape(-1).view(torch.uint8), right[name].contiguous().reshape(-1).view(torch.uint8)
        )
        for name, a in left.items()
    )


def select(tensors: Tensors, prefix: str) -> Tensors:
    """Return the tensors whose name starts with `prefix`, with the prefix removed from the names."""
    return {name[len(prefix) :]: tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def prefixed(tensors: Tensors, prefix: str) -> Tensors:
    """Return the tensors with `prefix` added to each name."""
    return {prefix + name: tensor for name, tensor in tensors.items()}
