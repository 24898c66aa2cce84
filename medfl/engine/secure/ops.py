"""The messages of the five operations of a secure aggregation, and the form of each reply.

* `KEYS`: each participant sends two public keys, signed where there are certificates.
* `SHARES`: each participant gets all keys and sends every other one shares of its two secrets, encrypted for it.
* `MASKED`: each participant whose shares the others hold executes the method's own order and sends its update masked.
* `CONFIRM`: each participant that sent an update signs the list of the participants that did.
* `UNMASK`: each participant checks that enough signatures are on the same list. It then reveals one share of each
  participant: of the key of its masks if the participant dropped out, of its own mask if not. It never reveals both:
  together they would uncover the update.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from medfl.contract import PayloadKind, Request
from medfl.engine.secure.keys import KEY, NONCE
from medfl.engine.secure.shamir import BYTES
from medfl.errors import RefusedError
from medfl.types import Meta, Tensors

KEYS, SHARES, MASKED, CONFIRM, UNMASK = (
    "secure_keys",
    "secure_shares",
    "secure_masked",
    "secure_confirm",
    "secure_unmask",
)
OPS = (KEYS, SHARES, MASKED, CONFIRM, UNMASK)

PREFIX = "secure/"
"""What the names of all tensors of these operations begin with."""

PUBLIC, SIGNATURE, CERTIFICATE = "secure/public", "secure/signature", "secure/certificate"
SEALED, NUMBERS, REVEALED = "secure/sealed", "secure/numbers", "secure/revealed"
CONFIRMED, CONFIRMED_SIGNATURE = "secure/confirmed", "secure/confirmed_signature"

ABOUT = "secure_aggregation"
"""Meta key of an order under which stands what is below, and of the server's state."""

SEALED_BYTES = NONCE + 2 * BYTES + 16
PUBLIC_BYTES = 2 * KEY
DIGEST_BYTES = 32
LONGEST = 8192
"""Bytes of a signature or a certificate, at most."""


@dataclass(frozen=True)
class About:
    """What an order says of its aggregation; a round has one aggregation.

    Attributes:
        sites: All participants, sorted.
        peers: Those whose shares the others hold; empty before `MASKED`.
        masked: Those that sent their numbers; empty before `CONFIRM`.
        op: Of the method's own order, in `MASKED`.
    """

    sites: tuple[str, ...]
    peers: tuple[str, ...] = ()
    masked: tuple[str, ...] = ()
    op: str = ""

    def meta(self) -> Meta:
        """As an order has it."""
        return {ABOUT: {name: list(v) if isinstance(v, tuple) else v for name, v in vars(self).items()}}

    @classmethod
    def named(cls, entry: Mapping[str, Any]) -> About:
        """From its attributes by name, lists for tuples."""
        sites, peers, masked = (tuple(entry[name]) for name in ("sites", "peers", "masked"))
        return cls(sites, peers, masked, entry.get("op", ""))

    @classmethod
    def of(cls, request: Request) -> About:
        """What an order says.

        Raises:
            RefusedError: If it is of another form.
        """
        entry: Any = request.meta.get(ABOUT)
        lists = ("sites", "peers", "masked")
        known = isinstance(entry, dict) and entry.keys() == {"op", *lists}
        if not known or not isinstance(entry["op"], str) or any(not _names(entry[name]) for name in lists):
            raise RefusedError(
                "invalid_request",
                f"expected an order '{request.op}' with what it says of its aggregation, got another one",
                op=request.op,
            )
        return cls.named(entry)


def _names(value: Any) -> bool:
    """Whether a value is a sorted list of names without doubles."""
    texts = isinstance(value, list) and all(isinstance(name, str) for name in value)
    return texts and value == sorted(set(value))


def digest(*parts: Any) -> str:
    """Return the SHA-256, in hexadecimal digits, of values that JSON can hold."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def session_digest(round_: int, threshold: int, sites: Sequence[str], public: Mapping[str, bytes]) -> str:
    """Return the digest that all secrets of an aggregation are bound to.

    Two participants that got different lists derive different keys, so neither can read what the other one sealed and
    their masks do not cancel.

    Args:
        round_: The round.
        threshold: Number of shares that reconstruct a secret.
        sites: Names of the participants that were asked for keys.
        public: Maps each participant that sent keys to its two public keys.
    """
    keys = {name: public[name].hex() for name in sorted(public)}
    return digest("session", round_, threshold, list(sites), keys)


def mask_context(session: str, peers: Sequence[str], payload: str) -> bytes:
    """Return the context from which pairwise masks are derived.

    Masks cancel only between participants that were given the same session, the same list of peers and the same model.

    Args:
        session: `session_digest`.
        peers: Participants whose shares the others hold.
        payload: Digest of the method's own order (`medfl.engine.journal.order_digest`).
    """
    return digest("masks", session, list(peers), payload).encode()


def of_sites(tensors: Tensors, what: str) -> dict[str, torch.Tensor]:
    """Site to tensor, of those named ``what/site``."""
    start = f"{what}/"
    return {name[len(start) :]: tensor for name, tensor in tensors.items() if name.startswith(start)}


def to_bytes(tensor: torch.Tensor) -> bytes:
    """The bytes of an uint8 tensor."""
    return tensor.numpy().tobytes()


def to_tensor(raw: bytes) -> torch.Tensor:
    """An uint8 tensor of bytes."""
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8)


Layout = list[tuple[str, tuple[int, ...], int]]
"""Name, shape and number of elements of each tensor whose numbers are summed, by name."""


def layout_of(tensors: Tensors, sends: Mapping[str, PayloadKind]) -> Layout:
    """The numbers of an update, from the order that it answers: each floating tensor under a prefix that is sent."""
    chosen = {
        name: tensor
        for name, tensor in sorted(tensors.items())
        if tensor.is_floating_point() and any(name.startswith(prefix) for prefix in sends)
    }
    return [(name, tuple(tensor.shape), tensor.numel()) for name, tensor in chosen.items()]


def numbers_of(layout: Layout) -> int:
    """How many numbers there are, without the weight that follows them."""
    return sum(count for _, _, count in layout)


def check_reply(request: Request, tensors: Tensors, expected: int) -> None:
    """Refuse a reply of another form.

    Args:
        order: What it answers, with an op of `OPS`.
        tensors: Of the reply.
        expected: Bytes of the masked numbers.

    Raises:
        RefusedError: If a name is missing or not expected, or a tensor has another dtype or length.
    """
    about = About.of(request)
    if request.op in (KEYS, CONFIRM):
        sizes = {PUBLIC: PUBLIC_BYTES} if request.op == KEYS else {CONFIRMED: DIGEST_BYTES}
        signed = (SIGNATURE, CERTIFICATE) if request.op == KEYS else (CONFIRMED_SIGNATURE,)
        sizes |= {name: min(tensors[name].numel(), LONGEST) for name in signed if name in tensors}
    elif request.op == SHARES:
        others = of_sites(request.tensors, PUBLIC).keys() - {request.to}
        sizes = {f"{SEALED}/{name}": SEALED_BYTES for name in others}
    elif request.op == MASKED:
        sizes = {NUMBERS: expected}
    else:
        sizes = {f"{REVEALED}/{name}": BYTES for name in about.peers}
    if tensors.keys() != sizes.keys():
        odd = sorted(tensors.keys() ^ sizes.keys())[0]
        raise RefusedError(
            "unlike_tensor_names",
            f"A reply to '{request.op}' was refused: expected {len(sizes)} tensors, and not {ascii(odd)}.",
            op=request.op,
            tensor=odd,
            expected=len(sizes),
        )
    for name, size in sizes.items():
        if (tensors[name].dtype, tuple(tensors[name].shape)) != (torch.uint8, (size,)):
            raise RefusedError(
                "wrong_shape",
                f"A reply to '{request.op}' was refused: expected '{name}' as {size} bytes, got another.",
                op=request.op,
                tensor=name,
                expected=size,
            )
