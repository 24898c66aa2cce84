"""Signed keys: what another federation, another site, an old kit or nobody signed is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from certificates import DAY, NOW, make_root

from medfl.errors import RefusedError, SettingsError
from medfl.privacy.secure_aggregation.certificates import KitSigner


def test_keys_are_checked_against_the_own_root(tmp_path: Path) -> None:
    root, other = make_root(), make_root()
    ours = KitSigner(root.write_startup(tmp_path / "1", "site-1"))
    theirs = KitSigner(root.write_startup(tmp_path / "2", "site-2"))
    strange = KitSigner(other.write_startup(tmp_path / "3", "site-2"))
    old = KitSigner(root.write_startup(tmp_path / "4", "site-2", ends=NOW - DAY))
    message = b"keys of site-2"
    ours.check("site-2", theirs.certificate, theirs.sign(message), message)
    for certificate, signature, name, content in [
        (theirs.certificate, theirs.sign(message), "site-2", b"keys of the server"),
        (theirs.certificate, theirs.sign(message), "site-3", message),
        (theirs.certificate, strange.sign(message), "site-2", message),
        (strange.certificate, strange.sign(message), "site-2", message),
        (old.certificate, old.sign(message), "site-2", message),
        (b"none", b"none", "site-2", message),
    ]:
        with pytest.raises(RefusedError, match="signed with its own certificate"):
            ours.check(name, certificate, signature, content)


def test_a_kit_without_certificates_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"expected client\.crt, client\.key and rootCA\.pem"):
        KitSigner(tmp_path)
