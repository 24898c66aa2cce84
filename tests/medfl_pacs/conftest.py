"""Certificates for tests of encrypted connections to a PACS."""

from __future__ import annotations

from pathlib import Path

import pytest
from tls_files import write_identity


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    """A folder with a server's and a client's certificate, both self-signed, and their keys."""
    folder = tmp_path / "certificates"
    for name in ("server", "client"):
        write_identity(folder, name)
    return folder
