"""Messages between machines: bytes, and the checks that stand between a network and a method.

A message is one blob of `medfl.utils.wire`; nothing in it is evaluated, imported or unpickled. `unpack` refuses what is
too large or has another form before anything is allocated for it. What a method expects of the content is checked by
`check_tensors` and `medfl.engine.reply_checks.check_reply`, and what stands for quantised tensors by `check_codec`.
Each ends in `RefusedError`, whose sentence tells sizes, types and names but never contents.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from medfl.engine.filters import CODEC
from medfl.errors import DamagedError
from medfl.privacy.gaussian import l2_norm
from medfl.task import Task
from medfl.types import Meta, Tensors
from medfl.utils import wire
from medfl.utils.memory import all_finite
from medfl_flare.backend.message_checks import HONEST, Limits, check_blob, check_shape, refusal, shown

__all__ = [
    "Limits",
    "Message",
    "check_codec",
    "check_tensors",
    "pack",
    "shapes_of",
    "unpack",
]

Form = tuple[tuple[int, ...], torch.dtype]
"""Shape and dtype of a tensor."""

_UNLIKE = "Sender and receiver need the same method, networks and version of medfl."
_DIVERGED = "The sender's training diverged, or it is not honest: see its log."
_CODES = {4: torch.uint8, 8: torch.uint8, 16: torch.uint16}
_FLOATS = {str(kind).removeprefix("torch."): kind for kind in wire.DTYPES if kind.is_floating_point}


@dataclass
class Message:
    """What travels between server and site.

    Attributes:
        kind: What it is for, such as "step"; 1 to 64 printable characters.
        tensors: By name; names have 1 to 512 printable characters.
        meta: JSON.
    """

    kind: str
    tensors: Tensors = field(default_factory=dict)
    meta: Meta = field(default_factory=dict)


def pack(message: Message) -> bytes:
    """A message as bytes, for `unpack`; the same message gives the same bytes.

    Raises:
        ContractError: If a tensor or a value in meta can't be sent.
    """
    return wire.encode(message.tensors, {"kind": message.kind, "meta": message.meta})


def unpack(blob: wire.Blob, limits: Limits) -> Message:
    """The message of `pack`, from bytes that nobody has looked at yet.

    Args:
        blob: What came.
        limits: What the receiver takes.

    Returns:
        The message, its tensors on the CPU: pieces of the blob if it may be written, else of a copy of it.

    Raises:
        RefusedError: If the blob is above a limit, damaged, or no message. Nothing has been allocated for tensors that
            the blob only claims to hold.
    """
    check_blob(blob, limits)
    try:
        tensors, content = wire.view(blob if isinstance(blob, memoryview) else memoryview(bytearray(blob)))
    except DamagedError:
        raise refusal("wrong_checksum", "a blob that fits its checksum", f"{len(blob)} bytes that don't") from None
    return Message(content["kind"], tensors, content["meta"])


def check_tensors(
    tensors: Tensors,
    *,
    prefixes: Collection[str] | None,
    shapes: Mapping[str, Collection[Form]],
    norm_bound: float | None,
    who: str,
) -> None:
    """Refuse tensors that a method did not declare or can't use.

    Args:
        tensors: Of a message, after its codec was undone.
        prefixes: What names may begin with; None allows any.
        shapes: For names of which it is known: the shapes and dtypes that a tensor may have, see `shapes_of`.
        norm_bound: Largest L2 norm over all floating tensors together; None asks only that it is finite.
        who: Who sent them, for the message: "site 'site-01'".

    Raises:
        RefusedError: If a name begins with none of the prefixes, a tensor has another shape or dtype, a number is not
            finite, or the norm is above the bound. It names the tensor.
    """
    for name in sorted(tensors):
        tensor = tensors[name]
        if prefixes is not None and not any(name.startswith(prefix) for prefix in prefixes):
            raise refusal(
                "undeclared_tensor",
                f"names that begin with {sorted(prefixes)}",
                shown(name),
                _UNLIKE,
                who,
                tensor=shown(name),
                declared=list(prefixes),
            )
        form = (tuple(tensor.shape), tensor.dtype)
        if name in shapes and form not in shapes[name]:
            known = " or ".join(sorted(_form(form) for form in shapes[name]))
            raise refusal(
                "wrong_shape", f"{shown(name)} as {known or 'nothing'}", _form(form), _UNLIKE, who, tensor=shown(name)
            )
        if tensor.is_floating_point() and not all_finite(tensor):
            raise refusal(
                "not_finite", f"finite numbers in {shown(name)}", "NaN or infinity", _DIVERGED, who, tensor=shown(name)
            )
    norm = l2_norm(tensors)
    if not math.isfinite(norm) or (norm_bound is not None and norm > norm_bound):
        bound = "" if norm_bound is None else f" of at most {norm_bound:g}"
        raise refusal(
            "norm_too_large", f"tensors of a finite L2 norm{bound}", f"{norm:.6g}", _DIVERGED, who, maximum=norm_bound
        )


def shapes_of(
    task: Task, networks: Iterable[str], prefix: str = "model/", leave_out: Collection[str] = ()
) -> dict[str, set[Form]]:
    """Shapes and dtypes that the tensors of a task's networks may have, for `check_tensors`.

    Args:
        task: The receiver's own.
        networks: Names of all networks that the sites train.
        prefix: What a message puts before the names of the state dict.
        leave_out: State-dict names, without the prefix, of which nothing is promised.

    Raises:
        SettingsError: If the task has no network of that name.
    """
    forms: dict[str, set[Form]] = {}
    for network in sorted(set(networks)):
        with torch.random.fork_rng(devices=[]):
            state = task.build(network).state_dict()
        for name, tensor in state.items():
            if name not in leave_out:
                forms.setdefault(prefix + name, set()).add((tuple(tensor.shape), tensor.dtype))
    return forms


def check_codec(tensors: Tensors, meta: Meta, limits: Limits) -> None:
    """Refuse a codec that `medfl.engine.filters.decode` should not see; meta without one passes.

    Args:
        tensors: Of a message, as they came.
        meta: That came with them.
        limits: What the receiver takes; the decoded tensors together may have `Limits.max_bytes`.

    Raises:
        RefusedError: If the codec does not describe tensors of the message as `medfl.engine.filters` writes it.
    """
    if CODEC not in meta:
        return
    codec: Any = meta[CODEC]
    if not isinstance(codec, dict) or codec.keys() != {"bits", "tensors"} or not isinstance(codec["tensors"], dict):
        raise refusal("invalid_codec", "a codec of bits and tensors", "something else")
    bits = codec["bits"]
    if type(bits) is not int or bits not in _CODES:
        raise refusal("unsupported_bits", "codes of 4, 8 or 16 bits", "something else")
    total = wire.payload_bytes({name: tensor for name, tensor in tensors.items() if name not in codec["tensors"]})
    for name, facts in codec["tensors"].items():
        if name not in tensors:
            raise refusal(
                "unknown_codec_tensor", "a codec of tensors that the message holds", shown(name), tensor=shown(name)
            )
        total += _decoded_bytes(name, tensors[name], bits, facts, limits)
    if total > limits.max_bytes:
        raise refusal(
            "decoded_message_too_large",
            f"at most {limits.max_bytes} bytes of decoded tensors",
            str(total),
            HONEST,
            maximum=limits.max_bytes,
        )


def _decoded_bytes(name: str, packed: torch.Tensor, bits: int, facts: Any, limits: Limits) -> int:
    """Bytes that one quantised tensor will have, after a check of all that is said about it."""
    if type(facts) is not list or len(facts) != 4:
        raise refusal(
            "invalid_codec_entry",
            f"minimum, maximum, dtype and shape of {shown(name)}",
            "something else",
            tensor=shown(name),
        )
    lo, hi, dtype, shape = facts
    if type(lo) is not float or type(hi) is not float or not math.isfinite(hi - lo) or lo > hi:
        raise refusal(
            "invalid_codec_range",
            f"a finite minimum of {shown(name)} not above its finite maximum, both floats",
            "something else",
            tensor=shown(name),
        )
    if not isinstance(dtype, str) or dtype not in _FLOATS:
        raise refusal(
            "unsupported_dtype",
            f"a dtype of {shown(name)} among {', '.join(sorted(_FLOATS))}",
            shown(dtype),
            tensor=shown(name),
        )
    count = check_shape(shape, limits, name)
    expected: Form = (((count + 1) // 2,) if bits == 4 else tuple(shape), _CODES[bits])
    came: Form = (tuple(packed.shape), packed.dtype)
    if came != expected:
        raise refusal(
            "wrong_shape",
            f"the {bits}-bit codes of {shown(name)} as {_form(expected)}",
            _form(came),
            tensor=shown(name),
            bits=bits,
        )
    return count * _FLOATS[dtype].itemsize


def _form(form: Form) -> str:
    shape, dtype = form
    return f"{str(dtype).removeprefix('torch.')} {list(shape)}"
