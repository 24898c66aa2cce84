"""Signatures with the key of a participant's startup kit, and checks of the certificates of other participants.

A participant is a site, the server or a researcher. The startup kit is the folder with key, certificate and
configuration that NVFlare makes for each participant of a project; the root certificate of the project issues them all.

The module needs the package ``cryptography``, which comes with the extra ``flare``. The keys are NVFlare's (RSA, 2048
bits). A signature is RSASSA-PSS with SHA-256 (RFC 8017). The signed content begins with the purpose of the
signature, so that a signature of a peer message is not valid for any other purpose.
"""

from __future__ import annotations

import datetime
import json
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.x509.oid import NameOID

from medfl.errors import RefusedError, SettingsError

_PADDING = padding.PSS(mgf=padding.MGF1(hashes.SHA256()), salt_length=padding.PSS.DIGEST_LENGTH)
_LABEL = b"medfl signature\0"
_HINT = "ask the person who made the kit"
MAX_CERTIFICATE = 16_384
"""Maximum size of a certificate in PEM, in bytes. A certificate of NVFlare has about 1300."""


@dataclass(frozen=True)
class Signer:
    """Signer with the private key of one participant. `read_signer` reads it from a startup kit.

    Attributes:
        name: Name of the participant, which is the common name of its certificate.
        certificate: Certificate of the participant in PEM. It is public.
        root: Root certificate of the project in PEM, which must have issued the certificates of all participants.
        server: Name in the server's certificate; empty if the kit does not contain it.
    """

    name: str
    certificate: bytes
    root: bytes
    _key: rsa.RSAPrivateKey = field(repr=False)
    server: str = ""

    def sign(self, purpose: str, content: bytes) -> bytes:
        """Return a signature of some content, 256 bytes.

        Args:
            purpose: Purpose of the signature, which `verify` must be given too.
            content: Content to sign.
        """
        return self._key.sign(_with_purpose(purpose, content), _PADDING, hashes.SHA256())

    def verify(self, purpose: str, content: bytes, signature: bytes, certificate: bytes, name: str) -> None:
        """Verify that a participant signed some content, with the root certificate of this signer's kit.

        The arguments and errors are those of the function `verify`.
        """
        verify(purpose, content, signature, certificate, self.root, name)

    def verify_site(self, purpose: str, content: bytes, signature: bytes, certificate: bytes, name: str) -> None:
        """Verify that a site of this project signed some content.

        The root also certifies the server and researchers, who must not pose as sites.

        Args:
            purpose: Purpose that the signature must have.
            content: Content that must be signed.
            signature: Received signature.
            certificate: Received certificate of the signer in PEM, from an untrusted source.
            name: Name of the site that must have signed.

        Raises:
            RefusedError: If the certificate or the signature is not valid, as in the function `verify`, or if the
                certificate belongs to the server or to a researcher.
        """
        self.verify(purpose, content, signature, certificate, name)
        subject = x509.load_pem_x509_certificate(certificate).subject
        if name == self.server or subject.get_attributes_for_oid(NameOID.UNSTRUCTURED_NAME):
            raise RefusedError(
                "not_a_site",
                "expected the certificate of a site, got the certificate of "
                f"{'the server' if name == self.server else 'a user'}, '{name}': the server is not honest",
                name=name,
                owner="server" if name == self.server else "user",
            )


def read_signer(kit: Path) -> Signer:
    """Read the key and the certificates of a startup kit.

    Args:
        kit: Folder of the kit, which contains the folder ``startup``.

    Raises:
        SettingsError: If the files can't be read, the key does not fit the certificate, or the certificate was not
            issued by the kit's root or has expired.
    """
    startup = kit / "startup"
    who = "server" if (startup / "server.key").is_file() else "client"
    try:
        key = serialization.load_pem_private_key((startup / f"{who}.key").read_bytes(), password=None)
        certificate, root = (startup / f"{who}.crt").read_bytes(), (startup / "rootCA.pem").read_bytes()
        names = _common_names(x509.load_pem_x509_certificate(certificate))
    except (OSError, ValueError, TypeError) as error:
        raise SettingsError(
            "unreadable_credentials",
            f"the key and certificates in '{startup}' can't be read ({error}); {_HINT}",
            path=startup,
        ) from None
    if not isinstance(key, rsa.RSAPrivateKey):
        raise SettingsError(
            "unsupported_key",
            f"expected an RSA key in '{startup / f'{who}.key'}', as NVFlare makes them; {_HINT}",
            path=startup / f"{who}.key",
            expected="RSA",
        )
    name = ", ".join(names)
    try:
        public = check_certificate(certificate, root, name)
    except RefusedError as error:
        text = f"'{startup / f'{who}.crt'}': {error}; {_HINT}"
        raise SettingsError(error.code, text, **error.fields) from None
    if public.public_numbers() != key.public_key().public_numbers():
        raise SettingsError(
            "mismatched_key",
            f"'{startup / f'{who}.key'}' is not the key of '{who}.crt' in the same folder; take both from one kit",
            path=startup / f"{who}.key",
            certificate=f"{who}.crt",
        )
    return Signer(name, certificate, root, key, _server(startup))


def _server(startup: Path) -> str:
    """Return the name in the server's certificate, from the configuration of a site's kit."""
    path = startup / "fed_client.json"
    if not path.is_file():
        return ""
    try:
        server = json.loads(path.read_text(encoding="utf-8"))["servers"][0]
        return str(server.get("identity") or server["service"]["target"].rpartition(":")[0])
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise SettingsError(
            "missing_server_identity",
            f"'{path}' does not contain the server's identity ({type(error).__name__}); {_HINT}",
            path=path,
        ) from None


def verify(purpose: str, content: bytes, signature: bytes, certificate: bytes, root: bytes, name: str) -> None:
    """Verify that a participant signed some content for a purpose, with a key that the project's root certified.

    Args:
        purpose: Purpose that the signature must have.
        content: Content that must be signed.
        signature: Received signature.
        certificate: Received certificate of the signer in PEM, from an untrusted source.
        root: Root certificate of the project in PEM, from a trusted source.
        name: Name of the participant that must have signed.

    Raises:
        RefusedError: If the certificate has another name, was not issued by the root, or is not valid now; or if the
            signature is not one of this content and purpose.
    """
    public = check_certificate(certificate, root, name)
    try:
        public.verify(signature, _with_purpose(purpose, content), _PADDING, hashes.SHA256())
    except InvalidSignature:
        raise RefusedError(
            "invalid_signature",
            f"expected a signature ({purpose}) by '{name}' that fits the content, got one that does not. Either the "
            "content was altered on its way, or someone else signed it",
            name=name,
            purpose=purpose,
        ) from None


def check_certificate(
    certificate: bytes, root: bytes, name: str, now: datetime.datetime | None = None
) -> rsa.RSAPublicKey:
    """Check the name, issuer and validity of a certificate, and return its public key.

    Args:
        certificate: Certificate in PEM, from an untrusted source.
        root: Root certificate of the project in PEM.
        name: Common name that the certificate must have.
        now: Time at which the certificate must be valid; None is the current time.

    Raises:
        RefusedError: If the certificate is malformed, has another name, was not issued by the root, is not valid at
            that time, or has no RSA key.
    """
    issuer = x509.load_pem_x509_certificate(root)
    try:
        if len(certificate) > MAX_CERTIFICATE:
            raise ValueError("it is too long")
        subject = x509.load_pem_x509_certificate(certificate)
        public = subject.public_key()
        names = _common_names(subject)
    except ValueError:
        raise RefusedError(
            "invalid_certificate", f"expected the certificate of '{name}', got an invalid one", name=name
        ) from None
    if names != [name]:
        raise RefusedError(
            "wrong_certificate_name",
            f"expected the certificate of '{name}', got the one of '{', '.join(names)[:200]}'",
            expected=name,
            found=", ".join(names)[:200],
        )
    try:
        subject.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature):
        raise RefusedError(
            "foreign_certificate",
            f"expected a certificate of '{name}' by this project's root, got one by another root",
            name=name,
        ) from None
    moment = now or datetime.datetime.now(datetime.UTC)
    for which, limits in (("certificate", subject), ("root certificate", issuer)):
        begin, end = limits.not_valid_before_utc, limits.not_valid_after_utc
        if not begin <= moment <= end:
            raise RefusedError(
                "certificate_not_current",
                f"expected a {which} of '{name}' that is valid now, got one for {begin:%Y-%m-%d %H:%M} to "
                f"{end:%Y-%m-%d %H:%M} UTC; compare the clocks, or request a new one",
                name=name,
                certificate=which,
            )
    if not isinstance(public, rsa.RSAPublicKey):
        raise RefusedError(
            "unsupported_key",
            f"expected an RSA key in the certificate of '{name}', got another kind",
            name=name,
            expected="RSA",
        )
    return public


def _with_purpose(purpose: str, content: bytes) -> bytes:
    """Return the bytes to sign: label, length of the purpose, purpose and content. No two purposes share such bytes."""
    label = purpose.encode()
    return _LABEL + len(label).to_bytes(2) + label + content


def _common_names(certificate: x509.Certificate) -> list[str]:
    return [str(name.value) for name in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
