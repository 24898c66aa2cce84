"""Signatures with the key of a participant's startup kit, and the certificates behind them.

Needs the package `cryptography`, which comes with the extra ``flare``. Keys are NVFlare's (RSA, 2048 bits); a signature
is RSASSA-PSS with SHA-256 (RFC 8017). Each begins with what it is for, so that one made for a parcel is worth nothing
elsewhere.
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
_ASK = "ask whoever made the kit"
MAX_CERTIFICATE = 16_384
"""Bytes of a certificate in PEM, at most; NVFlare's have about 1300."""


@dataclass(frozen=True)
class Signer:
    """A participant's own key with its certificate, as `read_signer` reads them.

    Attributes:
        name: Whose they are: the certificate's common name.
        certificate: In PEM. It may travel.
        root: The project's root certificate in PEM, which the certificates of all participants are checked against.
        server: Name in the server's certificate; empty if the kit does not say it.
    """

    name: str
    certificate: bytes
    root: bytes
    _key: rsa.RSAPrivateKey = field(repr=False)
    server: str = ""

    def sign(self, purpose: str, content: bytes) -> bytes:
        """A signature of some content, 256 bytes.

        Args:
            purpose: What it is for; `verify` must be told the same.
            content: What is signed.
        """
        return self._key.sign(_signed(purpose, content), _PADDING, hashes.SHA256())

    def verify(self, purpose: str, content: bytes, signature: bytes, certificate: bytes, name: str) -> None:
        """`verify` with this participant's own root."""
        verify(purpose, content, signature, certificate, self.root, name)

    def verify_site(self, purpose: str, content: bytes, signature: bytes, certificate: bytes, name: str) -> None:
        """Refuse content that was not signed by a site of this project.

        The root certifies the server and researchers, too, and they must not pose as sites.

        Args:
            purpose: What the signature must have been made for.
            content: What it must be of.
            signature: The signature that came.
            certificate: The signer's, in PEM; it came from anywhere.
            name: Name of the site that must have signed.

        Raises:
            RefusedError: As `verify`; or if the certificate is the server's or a researcher's.
        """
        self.verify(purpose, content, signature, certificate, name)
        subject = x509.load_pem_x509_certificate(certificate).subject
        if name == self.server or subject.get_attributes_for_oid(NameOID.UNSTRUCTURED_NAME):
            raise RefusedError(
                "not_a_site",
                f"expected the certificate of a site, got that of {'the server' if name == self.server else 'a user'}, "
                f"'{name}': the server is not honest",
                name=name,
                owner="server" if name == self.server else "user",
            )


def read_signer(kit: Path) -> Signer:
    """Key and certificate of a startup kit.

    Args:
        kit: A kit's folder, with ``startup`` in it.

    Raises:
        SettingsError: If they can't be read, the key does not belong to the certificate, or that is not of the kit's
            root or at its end.
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
            f"the key and certificates in '{startup}' can't be read ({error}); {_ASK}",
            path=startup,
        ) from None
    if not isinstance(key, rsa.RSAPrivateKey):
        raise SettingsError(
            "unsupported_key",
            f"expected an RSA key in '{startup / f'{who}.key'}', as NVFlare makes them; {_ASK}",
            path=startup / f"{who}.key",
            expected="RSA",
        )
    name = ", ".join(names)
    try:
        public = check_certificate(certificate, root, name)
    except RefusedError as error:
        text = f"'{startup / f'{who}.crt'}': {error}; {_ASK}"
        raise SettingsError(error.code, text, **error.fields) from None
    if public.public_numbers() != key.public_key().public_numbers():
        raise SettingsError(
            "mismatched_key",
            f"'{startup / f'{who}.key'}' is not the key of '{who}.crt' beside it; take both from one kit",
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
            f"'{path}' does not say the server's identity ({type(error).__name__}); {_ASK}",
            path=path,
        ) from None


def verify(purpose: str, content: bytes, signature: bytes, certificate: bytes, root: bytes, name: str) -> None:
    """Refuse content that was not signed, for this purpose, with the key that the project's root certified for a name.

    Args:
        purpose: What the signature must have been made for.
        content: What it must be of.
        signature: What came.
        certificate: The signer's, in PEM; it came from anywhere.
        root: The project's root certificate in PEM, which the reader knows.
        name: Who must have signed.

    Raises:
        RefusedError: If the certificate is not of that name, not of the root, or not valid now; or if the signature
            is not of this content and purpose.
    """
    public = check_certificate(certificate, root, name)
    try:
        public.verify(signature, _signed(purpose, content), _PADDING, hashes.SHA256())
    except InvalidSignature:
        raise RefusedError(
            "invalid_signature",
            f"expected a signature ({purpose}) that fits the content, by '{name}'; got one that does not. It was "
            "altered on its way, or somebody else made it",
            name=name,
            purpose=purpose,
        ) from None


def check_certificate(
    certificate: bytes, root: bytes, name: str, now: datetime.datetime | None = None
) -> rsa.RSAPublicKey:
    """The public key of a certificate that is of a name, issued by the root, and valid.

    Args:
        certificate: In PEM.
        root: The project's root certificate in PEM.
        name: Its common name, as it must be.
        now: The moment at which it must be valid.

    Raises:
        RefusedError: If it is not.
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
            "invalid_certificate", f"expected the certificate of '{name}', got something that is none", name=name
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
                f"{end:%Y-%m-%d %H:%M} UTC; compare the clocks, or have a new one made",
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


def _signed(purpose: str, content: bytes) -> bytes:
    """What is signed: label, purpose with its length, and content, so that no two purposes share a byte string."""
    label = purpose.encode()
    return _LABEL + len(label).to_bytes(2) + label + content


def _common_names(certificate: x509.Certificate) -> list[str]:
    return [str(name.value) for name in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
