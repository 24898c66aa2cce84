"""Kits with nothing but keys: a root, and participants' keys and certificates as NVFlare lays them out."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

NOW = datetime.datetime.now(datetime.UTC)


def _name(common: str, role: str = "") -> x509.Name:
    roles = [x509.NameAttribute(NameOID.UNSTRUCTURED_NAME, role)] if role else []  # as NVFlare writes it
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common), *roles])


@dataclass
class Root:
    """A project's root certificate and its key."""

    name: str = "medfl"

    def __post_init__(self) -> None:
        self.key = rsa.generate_private_key(65537, 2048)
        self.pem = self.certify(self.name, self.key.public_key())

    def certify(
        self, name: str, public: rsa.RSAPublicKey, days: tuple[float, float] = (-1, 100), role: str = ""
    ) -> bytes:
        """Return a certificate of a name and a key, valid for days from now; certificates of users have a role."""
        begin, end = (NOW + datetime.timedelta(days=number) for number in days)
        builder = (
            x509.CertificateBuilder().subject_name(_name(name, role)).issuer_name(_name(self.name)).public_key(public)
        )
        builder = builder.serial_number(x509.random_serial_number()).not_valid_before(begin).not_valid_after(end)
        return builder.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def kit(
        self, folder: Path, name: str, who: str = "client", days: tuple[float, float] = (-1, 100), role: str = ""
    ) -> Path:
        """A kit's folder with a new key of a name."""
        startup = folder / "startup"
        startup.mkdir(parents=True)
        key = rsa.generate_private_key(65537, 2048)
        form = (serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL)
        (startup / f"{who}.key").write_bytes(key.private_bytes(*form, serialization.NoEncryption()))
        (startup / f"{who}.crt").write_bytes(self.certify(name, key.public_key(), days, role))
        (startup / "rootCA.pem").write_bytes(self.pem)
        return folder
