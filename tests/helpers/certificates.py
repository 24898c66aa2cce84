"""Startup folders with certificates as NVFlare's kits have them, made by the package `cryptography`."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

NOW = datetime.datetime.now(datetime.UTC)
DAY = datetime.timedelta(days=1)


@dataclass
class Root:
    """The root of a federation."""

    key: rsa.RSAPrivateKey
    certificate: x509.Certificate

    def write_startup(self, folder: Path, name: str, ends: datetime.datetime = NOW + DAY) -> Path:
        """The folder ``startup`` of a site's kit."""
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        certificate = _certificate(name, key, "root", self.key, ends)
        folder.mkdir(parents=True)
        (folder / "client.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        (folder / "rootCA.pem").write_bytes(self.certificate.public_bytes(serialization.Encoding.PEM))
        parts = serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        (folder / "client.key").write_bytes(key.private_bytes(*parts))
        return folder


def make_root() -> Root:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return Root(key, _certificate("root", key, "root", key, NOW + DAY))


def _certificate(
    name: str, key: rsa.RSAPrivateKey, issuer: str, signer: rsa.RSAPrivateKey, ends: datetime.datetime
) -> x509.Certificate:
    def named(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    builder = x509.CertificateBuilder(named(issuer), named(name), key.public_key(), x509.random_serial_number())
    return builder.not_valid_before(NOW - 2 * DAY).not_valid_after(ends).sign(signer, hashes.SHA256())
