"""Messages between machines as bytes, and the checks of untrusted messages.

A message is one blob of `medfl.utils.wire`; nothing in it is evaluated, imported or unpickled. `unpack` refuses a
message that is too large or has another format before it allocates anything for it. `check_tensors` and
`medfl.engine.reply_checks.check_reply` compare the content with the method's declarations; `check_codec` checks the
entries of quantised tensors. Each raises `RefusedError`, whose message contains sizes, types and names but never
contents.

A codec is a metadata entry that describes how the tensors of a message were quantised to fewer bits, so that the
receiver can decode them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from medfl.engine.filters import CODEC_KEY
from medfl.errors import DamagedError
from medfl.privacy.gaussian import l2_norm
from medfl.task import Task
from medfl.types import Meta, Tensors
from medfl.utils import wire
from medfl.utils.memory import all_finite
from medfl_flare.backend.message_checks import (
    LIMIT_ADVICE,
    Limits,
    check_blob,
    check_shape,
    printable_name,
    refusal_error,
)

__all__ = [
    "Limits",
    "Message",
    "check_codec",
    "check_tensors",
    "pack",
    "tensor_forms",
    "unpack",
]

TensorForm = tuple[tuple[int, ...], torch.dtype]
"""Shape and dtype of a tensor."""

_VERSION_ADVICE = "Sender and receiver need the same method, networks and version of medfl."
_DIVERGENCE_ADVICE = "The sender's training diverged, or it is not honest: see its log."
_CODE_DTYPES = {4: torch.uint8, 8: torch.uint8, 16: torch.uint16}
_FLOAT_DTYPES = {str(kind).removeprefix("torch."): kind for kind in wire.DTYPES if kind.is_floating_point}


@dataclass
class Message:
    """Message between the server and a site, or between two sites.

    Attributes:
        kind: Kind of the message, such as "step"; 1 to 64 printable characters.
        tensors: Maps each name, of 1 to 512 printable characters, to its tensor.
        meta: Metadata as JSON values.
    """

    kind: str
    tensors: Tensors = field(default_factory=dict)
    meta: Meta = field(default_factory=dict)


def pack(message: Message) -> bytes:
    """Return a message as bytes, for `unpack`. Equal messages have equal bytes.

    Raises:
        ContractError: If a tensor or a metadata value can't be sent.
    """
    return wire.encode(message.tensors, {"kind": message.kind, "meta": message.meta})


def unpack(blob: wire.Blob, limits: Limits) -> Message:
    """Check the bytes of a message and return the message. The bytes are untrusted.

    Args:
        blob: Bytes that `pack` returned.
        limits: Limits of the receiver.

    Returns:
        The message with its tensors on the CPU. The tensors are views of the blob if it is writable, otherwise of a
        copy.

    Raises:
        RefusedError: If the blob is above a limit, damaged, or not a message. No memory is allocated for tensors that
            the blob claims but does not contain.
    """
    check_blob(blob, limits)
    try:
        tensors, content = wire.view(blob if isinstance(blob, memoryview) else memoryview(bytearray(blob)))
    except DamagedError:
        raise refusal_error("wrong_checksum", "bytes that match their checksum", f"{len(blob)} other bytes") from None
    return Message(content["kind"], tensors, content["meta"])


def check_tensors(
    tensors: Tensors,
    *,
    prefixes: Collection[str] | None,
    shapes: Mapping[str, Collection[TensorForm]],
    norm_bound: float | None,
    who: str,
) -> None:
    """Raise if a method did not declare the tensors or can't use them.

    Args:
        tensors: Tensors of a message, after decoding.
        prefixes: Prefixes that the names must have; None allows any name.
        shapes: Maps a tensor's name to its allowed shapes and dtypes, see `tensor_forms`. Other names are not checked.
        norm_bound: Largest L2 norm over all floating-point tensors together; None requires only a finite norm.
        who: Sender for the error message, such as "site 'site-01'".

    Raises:
        RefusedError: If a name begins with no prefix, a tensor has another shape or dtype, a number is not finite, or
            the norm is above the bound. The error names the tensor.
    """
    for name in sorted(tensors):
        tensor = tensors[name]
        if prefixes is not None and not any(name.startswith(prefix) for prefix in prefixes):
            raise refusal_error(
                "undeclared_tensor",
                f"names that begin with {sorted(prefixes)}",
                printable_name(name),
                _VERSION_ADVICE,
                who,
                tensor=printable_name(name),
                declared=list(prefixes),
            )
        form = (tuple(tensor.shape), tensor.dtype)
        if name in shapes and form not in shapes[name]:
            known = " or ".join(sorted(_form_text(form) for form in shapes[name]))
            raise refusal_error(
                "wrong_shape",
                f"{printable_name(name)} as {known or 'nothing'}",
                _form_text(form),
                _VERSION_ADVICE,
                who,
                tensor=printable_name(name),
            )
        if tensor.is_floating_point() and not all_finite(tensor):
            raise refusal_error(
                "not_finite",
                f"finite numbers in {printable_name(name)}",
                "NaN or infinity",
                _DIVERGENCE_ADVICE,
                who,
                tensor=printable_name(name),
            )
    norm = l2_norm(tensors)
    if not math.isfinite(norm) or (norm_bound is not None and norm > norm_bound):
        bound = "" if norm_bound is None else f" of at most {norm_bound:g}"
        raise refusal_error(
            "norm_too_large",
            f"tensors of a finite L2 norm{bound}",
            f"{norm:.6g}",
            _DIVERGENCE_ADVICE,
            who,
            maximum=norm_bound,
        )


def tensor_forms(
    task: Task, networks: Iterable[str], prefix: str = "model/", leave_out: Collection[str] = ()
) -> dict[str, set[TensorForm]]:
    """Return the allowed shapes and dtypes of the tensors of a task's networks, for `check_tensors`.

    Args:
        task: Task of the receiver.
        networks: Names of all networks that the sites train.
        prefix: Text before each state-dict name in a message.
        leave_out: State-dict names, without `prefix`, to leave out of the result.

    Raises:
        SettingsError: If the task has no network of that name.
    """
    forms: dict[str, set[TensorForm]] = {}
    for network in sorted(set(networks)):
        with torch.random.fork_rng(devices=[]):
            state = task.build(network).state_dict()
        for name, tensor in state.items():
            if name not in leave_out:
                forms.setdefault(prefix + name, set()).add((tuple(tensor.shape), tensor.dtype))
    return forms


def check_codec(tensors: Tensors, meta: Meta, limits: Limits) -> None:
    """Raise if `medfl.engine.filters.decode` can't safely decode the tensors. Metadata without a codec passes.

    Args:
        tensors: Tensors of a message, before decoding.
        meta: Metadata of the message.
        limits: Limits of the receiver; the decoded tensors together may have `Limits.max_bytes`.

    Raises:
        RefusedError: If the codec does not describe tensors of the message in the format of `medfl.engine.filters`.
    """
    if CODEC_KEY not in meta:
        return
    codec: Any = meta[CODEC_KEY]
    if not isinstance(codec, dict) or codec.keys() != {"bits", "tensors"} or not isinstance(codec["tensors"], dict):
        raise refusal_error("invalid_codec", "a codec of bits and tensors", "something else")
    bits = codec["bits"]
    if type(bits) is not int or bits not in _CODE_DTYPES:
        raise refusal_error("unsupported_bits", "codes of 4, 8 or 16 bits", "something else")
    total = wire.payload_bytes({name: tensor for name, tensor in tensors.items() if name not in codec["tensors"]})
    for name, facts in codec["tensors"].items():
        if name not in tensors:
            raise refusal_error(
                "unknown_codec_tensor",
                "a codec of tensors that the message holds",
                printable_name(name),
                tensor=printable_name(name),
            )
        total += _decoded_bytes(name, tensors[name], bits, facts, limits)
    if total > limits.max_bytes:
        raise refusal_error(
            "decoded_message_too_large",
            f"at most {limits.max_bytes} bytes of decoded tensors",
            str(total),
            LIMIT_ADVICE,
            maximum=limits.max_bytes,
        )


def _decoded_bytes(name: str, packed: torch.Tensor, bits: int, facts: Any, limits: Limits) -> int:
    """Return the size in bytes of one decoded tensor, after a check of its codec entry."""
    if type(facts) is not list or len(facts) != 4:
        raise refusal_error(
            "invalid_codec_entry",
            f"minimum, maximum, dtype and shape of {printable_name(name)}",
            "something else",
            tensor=printable_name(name),
        )
    lo, hi, dtype, shape = facts
    if type(lo) is not float or type(hi) is not float or not math.isfinite(hi - lo) or lo > hi:
        raise refusal_error(
            "invalid_codec_range",
            f"a finite minimum of {printable_name(name)} not above its finite maximum, both floats",
            "something else",
            tensor=printable_name(name),
        )
    if not isinstance(dtype, str) or dtype not in _FLOAT_DTYPES:
        raise refusal_error(
            "unsupported_dtype",
            f"a dtype of {printable_name(name)} among {', '.join(sorted(_FLOAT_DTYPES))}",
            printable_name(dtype),
            tensor=printable_name(name),
        )
    count = check_shape(shape, limits, name)
    expected: TensorForm = (((count + 1) // 2,) if bits == 4 else tuple(shape), _CODE_DTYPES[bits])
    came: TensorForm = (tuple(packed.shape), packed.dtype)
    if came != expected:
        raise refusal_error(
            "wrong_shape",
            f"the {bits}-bit codes of {printable_name(name)} as {_form_text(expected)}",
            _form_text(came),
            tensor=printable_name(name),
            bits=bits,
        )
    return count * _FLOAT_DTYPES[dtype].itemsize


def _form_text(form: TensorForm) -> str:
    """Return the dtype and shape of a tensor as text."""
    shape, dtype = form
    return f"{str(dtype).removeprefix('torch.')} {list(shape)}"
