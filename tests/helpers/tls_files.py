"""Certificates for tests of encrypted connections, for names and addresses of this machine."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest


@dataclass(frozen=True)
class Identity:
    """A certificate and its key, as files (PEM). `signer` is its name and its key, to sign other certificates."""

    certificate: Path
    key: Path
    signer: Any


def write_identity(folder: Path, name: str, authority: Identity | None = None) -> Identity:
    """Write ``NAME.pem`` and ``NAME.key``: signed by an authority, or self-signed and an authority itself."""
    x509 = pytest.importorskip("cryptography.x509", reason="needs cryptography, from the extra secure")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    folder.mkdir(parents=True, exist_ok=True)
    now = datetime.datetime.now(datetime.UTC)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    issuer, signer = (subject, key) if authority is None else authority.signer
    builder = x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - datetime.timedelta(1)).not_valid_after(now + datetime.timedelta(1))
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    builder = builder.add_extension(address, False)
    builder = builder.add_extension(x509.BasicConstraints(authority is None, None), True)
    certificate = builder.sign(signer, hashes.SHA256())
    files = Identity(folder / f"{name}.pem", folder / f"{name}.key", (subject, key))
    files.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    private = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    files.key.write_bytes(key.private_bytes(*private))
    return files
