"""Signed keys: a server that relays the keys of sites can't put its own in their place.

Each participant of a federation across machines has a startup kit with a certificate of the federation's root. A site
signs its keys with the certificate's private key, and checks those of others against its own copy of the root.
"""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any, Protocol

from medfl.errors import RefusedError, SettingsError
from medfl.privacy.secure_aggregation.keys import primitives


class Signer(Protocol):
    """Signs what a site says, and checks what others say."""

    @property
    def certificate(self) -> bytes:
        """The site's own, as others check it."""
        ...

    def sign(self, message: bytes) -> bytes:
        """The site's signature."""
        ...

    def check(self, name: str, certificate: bytes, signature: bytes, message: bytes) -> None:
        """Refuse what another site did not sign.

        Raises:
            RefusedError: If the certificate is not of that site or not of this federation, or the signature is not of
                the message.
        """
        ...


class KitSigner:
    """A site's signer from its startup kit.

    Args:
        startup: The kit's folder of that name, with ``client.crt``, ``client.key`` and ``rootCA.pem``.

    Raises:
        SettingsError: If a file is missing or can't be used.
    """

    def __init__(self, startup: Path) -> None:
        self._x509 = primitives("x509")
        serialization = primitives("hazmat.primitives.serialization")
        try:
            self.certificate = (startup / "client.crt").read_bytes()
            self._key: Any = serialization.load_pem_private_key((startup / "client.key").read_bytes(), None)
            self._root: Any = self._x509.load_pem_x509_certificate((startup / "rootCA.pem").read_bytes())
        except (OSError, ValueError, TypeError) as error:
            raise SettingsError(
                f"Secure aggregation signs keys with the certificate of the startup kit, and '{startup}' has none that "
                f"can be used ({type(error).__name__}): expected client.crt, client.key and rootCA.pem."
            ) from error

    def sign(self, message: bytes) -> bytes:
        """The signature of this site (RSA-PSS with SHA-256)."""
        return bytes(self._key.sign(message, *_scheme()))

    def check(self, name: str, certificate: bytes, signature: bytes, message: bytes) -> None:
        """Refuse what another site did not sign (see `Signer.check`)."""
        errors, oid = primitives("exceptions"), primitives("x509.oid")
        try:
            theirs: Any = self._x509.load_pem_x509_certificate(certificate)
            theirs.verify_directly_issued_by(self._root)
            now = datetime.datetime.now(datetime.UTC)
            names = [str(part.value) for part in theirs.subject.get_attributes_for_oid(oid.NameOID.COMMON_NAME)]
            if names != [name] or not theirs.not_valid_before_utc <= now <= theirs.not_valid_after_utc:
                raise ValueError
            theirs.public_key().verify(signature, message, *_scheme())
        except (ValueError, TypeError, errors.InvalidSignature):
            raise RefusedError(
                f"The keys of '{name}' were refused: expected them signed with its own certificate of this federation, "
                "in force today. Either a kit is of another federation or too old, or the server is not honest."
            ) from None


def _scheme() -> tuple[Any, Any]:
    padding, hashes = primitives("hazmat.primitives.asymmetric.padding"), primitives("hazmat.primitives.hashes")
    return padding.PSS(mgf=padding.MGF1(hashes.SHA256()), salt_length=padding.PSS.DIGEST_LENGTH), hashes.SHA256()
