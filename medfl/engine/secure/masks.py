"""Masks: ChaCha20 keystreams that are added to numbers modulo 2^bits and cancel in the sum over all sites."""

from __future__ import annotations

import numpy as np

from medfl.engine.secure.keys import primitives

Words = np.ndarray
"""Vector of N integers modulo 2^bits, shape (N,): uint32 for numbers of 32 bits, otherwise uint64. Sums wrap around."""

CHUNK = 1 << 17
"""Number of elements that are masked at once, so that they stay in the processor's cache."""


def add_mask(words: Words, key: bytes, sign: int = 1) -> None:
    """Add the keystream of a key to a vector in place, or subtract it.

    Args:
        words: Vector, which is changed in place.
        key: Key of 32 bytes. It is used for one vector only, so the nonce is zero.
        sign: 1 to add, -1 to subtract.
    """
    ciphers = primitives("hazmat.primitives.ciphers")
    stream = ciphers.Cipher(ciphers.algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
    zeros = bytes(CHUNK * words.itemsize)
    room = bytearray(len(zeros) + 63)
    for start in range(0, len(words), CHUNK):
        part = words[start : start + CHUNK]
        size = part.nbytes
        stream.update_into(zeros if size == len(zeros) else bytes(size), room)
        mask = np.frombuffer(room, dtype=words.dtype.newbyteorder("<"), count=len(part))
        np.add(part, mask, out=part) if sign > 0 else np.subtract(part, mask, out=part)


def pair_sign(own: str, other: str) -> int:
    """Return 1 if a site adds the mask that it shares with another site, or -1 if it subtracts the mask.

    The two sites have opposite signs, so that the mask cancels in the sum.

    Args:
        own: Name of the site.
        other: Name of the other site.
    """
    return 1 if own < other else -1
