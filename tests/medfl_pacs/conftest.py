"""Certificates for tests of encrypted connections to a PACS."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

import pytest


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    """A folder with a server's and a client's certificate, both self-signed, and their keys."""
    x509 = pytest.importorskip("cryptography.x509", reason="needs cryptography, from the extra secure")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    folder = tmp_path / "certificates"
    folder.mkdir()
    now = datetime.datetime.now(datetime.UTC)
    for name in ("server", "client"):
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        builder = x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        builder = builder.not_valid_before(now - datetime.timedelta(1)).not_valid_after(now + datetime.timedelta(1))
        address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        builder = builder.add_extension(address, False).add_extension(x509.BasicConstraints(True, None), True)
        certificate = builder.sign(key, hashes.SHA256())
        (folder / f"{name}.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        private = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        (folder / f"{name}.key").write_bytes(key.private_bytes(*private))
    return folder
