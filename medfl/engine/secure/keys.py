"""Keys of a secure aggregation: X25519 key pairs, key agreement of two sites (HKDF), and authenticated encryption.

All primitives come from the package ``cryptography``.
"""

from __future__ import annotations

import importlib
from typing import Any

from medfl.errors import RefusedError, SettingsError, pip_install

KEY = 32
"""Size in bytes of a private, public or agreed key."""

NONCE = 12
"""Size in bytes of the nonce before each encrypted message."""

CHANNEL, MASK = b"medfl secure aggregation: channel", b"medfl secure aggregation: mask"
"""Uses of a key that two sites share.

`CHANNEL`: encryption of messages between the two sites. `MASK`: random numbers (the mask) that one site adds to its
update and the other subtracts.
"""


def primitives(part: str) -> Any:
    """Import and return a module of ``cryptography`` with primitives.

    Args:
        part: Dotted name of the module below ``cryptography``.

    Raises:
        SettingsError: If the package is not installed.
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
    """Return the X25519 public key that belongs to a private key; both have 32 bytes."""
    pair = primitives("hazmat.primitives.asymmetric.x25519").X25519PrivateKey.from_private_bytes(private)
    return bytes(pair.public_key().public_bytes_raw())


def agree_key(private: bytes, public: bytes, use: bytes, *context: bytes) -> bytes:
    """Derive the key that two sites share, by X25519 and HKDF-SHA256.

    Each site computes the same key, from its own private key and the public key of the other site.

    Args:
        private: Private key of one site.
        public: Public key of the other site.
        use: Use of the key, `CHANNEL` or `MASK`.
        context: Further values that both sites know and that enter the derivation.

    Returns:
        Key of 32 bytes.

    Raises:
        RefusedError: If the public key is not valid.
    """
    x25519 = primitives("hazmat.primitives.asymmetric.x25519")
    hashes, hkdf = primitives("hazmat.primitives.hashes"), primitives("hazmat.primitives.kdf.hkdf")
    try:
        shared = x25519.X25519PrivateKey.from_private_bytes(private).exchange(
            x25519.X25519PublicKey.from_public_bytes(public)
        )
    except ValueError:
        raise RefusedError(
            "invalid_public_key", "expected a public key of a site, got an invalid key: a site is not honest"
        ) from None
    info = b"\0".join([use, *sorted([public_key(private), public]), *context])
    return bytes(hkdf.HKDF(algorithm=hashes.SHA256(), length=KEY, salt=None, info=info).derive(shared))


def seal(key: bytes, nonce: bytes, message: bytes, about: bytes) -> bytes:
    """Encrypt and authenticate a message with ChaCha20-Poly1305.

    Args:
        key: Key from `agree_key`.
        nonce: `NONCE` bytes, which must be new for each message under a key.
        message: Message to encrypt.
        about: Associated data, which are authenticated and not sent.

    Returns:
        The nonce, followed by the ciphertext with its authentication tag of 16 bytes.
    """
    aead = primitives("hazmat.primitives.ciphers.aead")
    return nonce + bytes(aead.ChaCha20Poly1305(key).encrypt(nonce, message, about))


def unseal(key: bytes, sealed: bytes, about: bytes) -> bytes:
    """Verify and decrypt a message from `seal`.

    Args:
        key: Key from `agree_key`.
        sealed: Result of `seal`.
        about: Associated data that `seal` authenticated.

    Raises:
        RefusedError: If the message was changed, or was encrypted with another key or other associated data.
    """
    aead, errors = primitives("hazmat.primitives.ciphers.aead"), primitives("exceptions")
    try:
        return bytes(aead.ChaCha20Poly1305(key).decrypt(sealed[:NONCE], sealed[NONCE:], about))
    except (errors.InvalidTag, ValueError):
        raise RefusedError(
            "undecryptable_share", "expected a share that was encrypted for this site, got another one"
        ) from None
