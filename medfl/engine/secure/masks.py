"""Masks: streams of ChaCha20 that are added to numbers modulo 2^bits, and cancel in the sum of all sites."""

from __future__ import annotations

import numpy as np

from medfl.engine.secure.keys import primitives

Words = np.ndarray
"""(N,), uint32 where numbers have 32 bits, otherwise uint64. Sums are modulo the word, and so modulo 2^bits, too."""

CHUNK = 1 << 17
"""Numbers that are masked at once: they stay in the processor's cache."""


def add_mask(words: Words, key: bytes, sign: int = 1) -> None:
    """Add or subtract, in place, the stream of a key.

    Args:
        words: Changed in place.
        key: 32 bytes. It is used for one vector only, so the nonce is zero.
        sign: 1 adds, -1 subtracts.
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
    """Whether a site adds (1) or subtracts (-1) the mask that it has in common with another one."""
    return 1 if own < other else -1
