"""Keys of one aggregation: X25519 pairs, what two sites agree on (HKDF), and messages from one site to another.

All primitives are those of the package ``cryptography``.
"""

from __future__ import annotations

import importlib
from typing import Any

from medfl.errors import RefusedError, SettingsError, pip_install

KEY = 32
"""Bytes of a key, private, public or agreed."""

NONCE = 12
"""Bytes before each sealed message."""

CHANNEL, MASK = b"medfl secure aggregation: channel", b"medfl secure aggregation: mask"
"""What an agreed key is for."""


def primitives(part: str) -> Any:
    """A part of ``cryptography``, loaded when it is needed first.

    Raises:
        SettingsError: If it is not installed.
    """
    try:
        return importlib.import_module(f"cryptography.{part}")
    except ModuleNotFoundError as error:
        raise SettingsError(
            "missing_package",
            "Secure aggregation needs the package 'cryptography', which is not installed. Install the extra: "
            f"{pip_install('secure')}.",
            package="cryptography",
            extra="secure",
        ) from error


def public_key(private: bytes) -> bytes:
    """The public key of a private one, 32 bytes each."""
    pair = primitives("hazmat.primitives.asymmetric.x25519").X25519PrivateKey.from_private_bytes(private)
    return bytes(pair.public_key().public_bytes_raw())


def agreed(private: bytes, public: bytes, use: bytes, *context: bytes) -> bytes:
    """A key that two sites agree on, each from its own private and the other's public key.

    Args:
        private: The own one.
        public: The other's.
        use: `CHANNEL` or `MASK`.
        context: What else both know and the key is bound to.

    Returns:
        32 bytes.

    Raises:
        RefusedError: If the public key is none.
    """
    x25519 = primitives("hazmat.primitives.asymmetric.x25519")
    hashes, hkdf = primitives("hazmat.primitives.hashes"), primitives("hazmat.primitives.kdf.hkdf")
    try:
        shared = x25519.X25519PrivateKey.from_private_bytes(private).exchange(
            x25519.X25519PublicKey.from_public_bytes(public)
        )
    except ValueError:
        raise RefusedError(
            "invalid_public_key", "expected a public key of a site, got bytes that are none: a site is not honest"
        ) from None
    info = b"\0".join([use, *sorted([public_key(private), public]), *context])
    return bytes(hkdf.HKDF(algorithm=hashes.SHA256(), length=KEY, salt=None, info=info).derive(shared))


def seal(key: bytes, nonce: bytes, message: bytes, about: bytes) -> bytes:
    """A message that only who has the key can read, and nobody can change (ChaCha20-Poly1305).

    Args:
        key: Of `agreed`.
        nonce: `NONCE` bytes, others for each message under a key.
        message: Any bytes.
        about: What the message is bound to; it is not sent.

    Returns:
        The nonce, then the message and 16 bytes more.
    """
    aead = primitives("hazmat.primitives.ciphers.aead")
    return nonce + bytes(aead.ChaCha20Poly1305(key).encrypt(nonce, message, about))


def unseal(key: bytes, sealed: bytes, about: bytes) -> bytes:
    """The message of `seal`.

    Raises:
        RefusedError: If it was changed, is bound to something else, or was sealed with another key.
    """
    aead, errors = primitives("hazmat.primitives.ciphers.aead"), primitives("exceptions")
    try:
        return bytes(aead.ChaCha20Poly1305(key).decrypt(sealed[:NONCE], sealed[NONCE:], about))
    except (errors.InvalidTag, ValueError):
        raise RefusedError(
            "undecryptable_share", "expected a share that was sealed for this site, got another one"
        ) from None
