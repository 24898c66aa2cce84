"""The messages of the five operations of a secure aggregation, and the form of each reply.

* `KEYS`: each participant sends two public keys, signed where there are certificates.
* `SHARES`: each participant gets all keys and sends every other one shares of its two secrets, encrypted for it.
* `MASKED`: each participant whose shares the others hold executes the method's own request and sends its update masked.
* `CONFIRM`: each participant that sent an update signs the list of the participants that did.
* `UNMASK`: each participant checks that enough signatures are on the same list. For each participant, it then reveals
  its share of one secret: the key of the pairwise masks if that participant dropped out, otherwise the key of that
  participant's own mask. It never reveals its shares of both secrets, because these would uncover the update.
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
from medfl.engine.secure.shamir import SHARE_BYTES
from medfl.errors import RefusedError
from medfl.types import Meta, Tensors

KEYS, SHARES, MASKED, CONFIRM, UNMASK = (
    "secure_keys",
    "secure_shares",
    "secure_masked",
    "secure_confirm",
    "secure_unmask",
)
"""Names of the five operations, as the field ``op`` of their requests contains them.

The module docstring describes each operation.
"""

OPS = (KEYS, SHARES, MASKED, CONFIRM, UNMASK)
"""Names of all operations, in the order in which they are executed."""

PREFIX = "secure/"
"""Prefix of the names of all tensors of these operations."""

PUBLIC, SIGNATURE, CERTIFICATE = "secure/public", "secure/signature", "secure/certificate"
"""Names of the tensors of `KEYS`.

`PUBLIC`: a site's two public keys. `SIGNATURE`: the site's signature of these keys. `CERTIFICATE`: the site's
certificate.
"""

SEALED, NUMBERS, REVEALED = "secure/sealed", "secure/numbers", "secure/revealed"
"""Names of the tensors of `SHARES`, `MASKED` and `UNMASK`.

`SEALED`: encrypted shares. `NUMBERS`: the masked numbers of an update. `REVEALED`: revealed shares.
"""

CONFIRMED, CONFIRMED_SIGNATURE = "secure/confirmed", "secure/confirmed_signature"
"""Names of the tensors of `CONFIRM`.

`CONFIRMED`: a digest of a site's lists of participants. `CONFIRMED_SIGNATURE`: the site's signature of the digest.
"""

ABOUT = "secure_aggregation"
"""Metadata key of the aggregation: of the `AggregationMeta` in a request, and of the progress in the server's state."""

SEALED_BYTES = NONCE + 2 * SHARE_BYTES + 16
"""Size in bytes of an encrypted pair of shares: nonce, shares and authentication tag."""

PUBLIC_BYTES = 2 * KEY
"""Size in bytes of a site's two public keys."""

DIGEST_BYTES = 32
"""Size of a digest in bytes."""

MAX_SIGNATURE_BYTES = 8192
"""Maximum size of a signature or a certificate in bytes."""


@dataclass(frozen=True)
class AggregationMeta:
    """Metadata of a secure aggregation in a request. A round has one aggregation.

    Attributes:
        sites: Names of all participants (the sites that received the first request of the round), sorted.
        peers: Names of the participants whose shares the other participants hold; empty before `MASKED`.
        masked: Names of the participants that sent their masked numbers; empty before `CONFIRM`.
        op: Name of the operation in the method's own request, which `MASKED` wraps; otherwise empty.
    """

    sites: tuple[str, ...]
    peers: tuple[str, ...] = ()
    masked: tuple[str, ...] = ()
    op: str = ""

    def meta(self) -> Meta:
        """Return the fields as the metadata of a request: a mapping with the single key ``secure_aggregation``."""
        return {ABOUT: {name: list(v) if isinstance(v, tuple) else v for name, v in vars(self).items()}}

    @classmethod
    def from_fields(cls, entry: Mapping[str, Any]) -> AggregationMeta:
        """Return an object with the fields in a mapping, which contains lists instead of tuples."""
        sites, peers, masked = (tuple(entry[name]) for name in ("sites", "peers", "masked"))
        return cls(sites, peers, masked, entry.get("op", ""))

    @classmethod
    def of(cls, request: Request) -> AggregationMeta:
        """Read and check the metadata of a request.

        Raises:
            RefusedError: If the metadata are missing or not valid.
        """
        entry: Any = request.meta.get(ABOUT)
        lists = ("sites", "peers", "masked")
        has_fields = isinstance(entry, dict) and entry.keys() == {"op", *lists}
        if not has_fields or not isinstance(entry["op"], str) or any(not _is_name_list(entry[name]) for name in lists):
            raise RefusedError(
                "invalid_request",
                f"expected a request '{request.op}' with valid metadata of its secure aggregation, got another one",
                op=request.op,
            )
        return cls.from_fields(entry)


def _is_name_list(value: Any) -> bool:
    """Return whether a value is a sorted list of names without duplicates."""
    texts = isinstance(value, list) and all(isinstance(name, str) for name in value)
    return texts and value == sorted(set(value))


def digest(*parts: Any) -> str:
    """Return the SHA-256, in hexadecimal digits, of values that JSON can hold."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def session_digest(round_: int, threshold: int, sites: Sequence[str], public: Mapping[str, bytes]) -> str:
    """Return the digest of an aggregation's participants and keys, from which encryption keys and masks are derived.

    Two participants that received different lists derive different keys. So neither can decrypt the other's shares, and
    their masks do not cancel.

    Args:
        round_: The round.
        threshold: Number of shares that reconstruct a secret.
        sites: Names of the participants: the sites that received a request for keys.
        public: Maps each participant that sent keys to its two public keys.
    """
    keys = {name: public[name].hex() for name in sorted(public)}
    return digest("session", round_, threshold, list(sites), keys)


def mask_context(session: str, peers: Sequence[str], payload: str) -> bytes:
    """Return the context that enters the derivation of pairwise masks.

    Masks cancel only between participants with the same session, the same list of peers and the same model.

    Args:
        session: Result of `session_digest`.
        peers: Participants whose shares the other participants hold.
        payload: Digest of the method's own request, which identifies the model.
    """
    return digest("masks", session, list(peers), payload).encode()


def by_site(tensors: Tensors, prefix: str) -> dict[str, torch.Tensor]:
    """Return the tensors whose names are ``prefix/site``, by the name of the site."""
    start = f"{prefix}/"
    return {name[len(start) :]: tensor for name, tensor in tensors.items() if name.startswith(start)}


def to_bytes(tensor: torch.Tensor) -> bytes:
    """Return the bytes of a uint8 tensor."""
    return tensor.numpy().tobytes()


def to_tensor(raw: bytes) -> torch.Tensor:
    """Return bytes as a uint8 tensor."""
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8)


Layout = list[tuple[str, tuple[int, ...], int]]
"""Name, shape and number of elements of each tensor whose numbers are summed, sorted by name."""


def layout_of(tensors: Tensors, sends: Mapping[str, PayloadKind]) -> Layout:
    """Return the layout of an update: name, shape and number of elements of each tensor whose numbers are summed.

    These are the floating tensors of the request whose names have a declared prefix.

    Args:
        tensors: Tensors of the method's own request.
        sends: Maps each prefix of names to the payload kind of the tensors with that prefix (`Method.sends`).
    """
    chosen = {
        name: tensor
        for name, tensor in sorted(tensors.items())
        if tensor.is_floating_point() and any(name.startswith(prefix) for prefix in sends)
    }
    return [(name, tuple(tensor.shape), tensor.numel()) for name, tensor in chosen.items()]


def numbers_of(layout: Layout) -> int:
    """Return the number of all elements in a layout. The update's weight, which is sent after them, does not count."""
    return sum(count for _, _, count in layout)


def check_reply(request: Request, tensors: Tensors, expected: int) -> None:
    """Check that a reply has the tensors of its operation.

    Args:
        request: Request that the reply answers, with an op in `OPS`.
        tensors: Tensors of the reply.
        expected: Size that the masked numbers must have, in bytes.

    Raises:
        RefusedError: If a name is missing or not expected, or a tensor has another dtype or length.
    """
    about = AggregationMeta.of(request)
    if request.op in (KEYS, CONFIRM):
        sizes = {PUBLIC: PUBLIC_BYTES} if request.op == KEYS else {CONFIRMED: DIGEST_BYTES}
        signed = (SIGNATURE, CERTIFICATE) if request.op == KEYS else (CONFIRMED_SIGNATURE,)
        sizes |= {name: min(tensors[name].numel(), MAX_SIGNATURE_BYTES) for name in signed if name in tensors}
    elif request.op == SHARES:
        others = by_site(request.tensors, PUBLIC).keys() - {request.to}
        sizes = {f"{SEALED}/{name}": SEALED_BYTES for name in others}
    elif request.op == MASKED:
        sizes = {NUMBERS: expected}
    else:
        sizes = {f"{REVEALED}/{name}": SHARE_BYTES for name in about.peers}
    if tensors.keys() != sizes.keys():
        unexpected = sorted(tensors.keys() ^ sizes.keys())[0]
        raise RefusedError(
            "unlike_tensor_names",
            f"A reply to '{request.op}' was refused: expected {len(sizes)} tensors, with other names than it has; the "
            f"first difference is {ascii(unexpected)}.",
            op=request.op,
            tensor=unexpected,
            expected=len(sizes),
        )
    for name, size in sizes.items():
        if (tensors[name].dtype, tuple(tensors[name].shape)) != (torch.uint8, (size,)):
            raise RefusedError(
                "wrong_shape",
                f"A reply to '{request.op}' was refused: expected '{name}' as {size} bytes, got another dtype or size.",
                op=request.op,
                tensor=name,
                expected=size,
            )
