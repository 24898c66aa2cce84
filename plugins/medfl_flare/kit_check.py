"""Checks of a startup kit on the participant's own disk. The checks don't need NVFlare.

A startup kit is the folder with certificate, settings and scripts with which the server or a site joins the federation.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from pathlib import Path

from medfl.errors import SettingsError
from medfl_flare.provision import ALLOWED_CLASSES

Check = tuple[str, Callable[[], str]]
"""Name of a check, and a function that returns the finding or raises an error."""


START_SCRIPTS = ("sub_start.sh", "start_docker.sh")
"""NVFlare's scripts of which a kit needs one: for processes of this machine or of Slurm, or for Docker's containers."""


def kit_checks(kit: Path, site: str | None) -> list[Check]:
    """Return the checks of a startup kit.

    Args:
        kit: Folder of the kit, with ``startup`` and ``local``.
        site: Name of the site; None for the server.
    """
    who = "server" if site is None else "client"
    return [
        ("files", lambda: _check_files(kit, who)),
        ("private key", lambda: _check_key(kit, who)),
        ("allow list", lambda: _check_allow_list(kit, who)),
        ("certificate", lambda: _check_certificate(kit, who, site)),
    ]


def _check_files(kit: Path, who: str) -> str:
    """Check that the kit is complete."""
    wanted = [f"fed_{who}.json", f"{who}.crt", f"{who}.key", "rootCA.pem"]
    missing = [f"startup/{name}" for name in wanted if not (kit / "startup" / name).is_file()]
    if not any((kit / "startup" / name).is_file() for name in START_SCRIPTS):
        missing.append(f"startup/{START_SCRIPTS[0]}")
    if _resources_path(kit) is None:
        missing.append("local/resources.json")
    if missing:
        raise SettingsError(
            "incomplete_kit",
            f"'{kit}' lacks {', '.join(missing)}; ask the maker of the kit for a complete one",
            path=kit,
            missing=missing,
        )
    return f"'{kit}' is complete"


def _check_key(kit: Path, who: str) -> str:
    """Check that only the owner can read the private key."""
    path = kit / "startup" / f"{who}.key"
    mode = path.stat().st_mode & 0o777
    if mode & 0o077:
        raise SettingsError(
            "insecure_permissions",
            f"other users can read '{path}' (mode {mode:04o}); run `chmod 600 {path}`",
            path=path,
            mode=mode,
        )
    return f"only its owner can read it (mode {mode:04o})"


def _resources_path(kit: Path) -> Path | None:
    """Return the path of NVFlare's settings: the edited file if it exists, otherwise the default."""
    for name in ("resources.json", "resources.json.default"):
        if (kit / "local" / name).is_file():
            return kit / "local" / name
    return None


def _check_allow_list(kit: Path, who: str) -> str:
    """Check that medfl's class is in NVFlare's allow-list."""
    path, line = _resources_path(kit), ALLOWED_CLASSES[who]
    if path is None:
        raise SettingsError(
            "missing_file",
            f"expected the file '{kit / 'local' / 'resources.json'}', which does not exist",
            path=kit / "local" / "resources.json",
        )
    try:
        listed = json.loads(path.read_text(encoding="utf-8")).get("class_allow_list", [])
    except (ValueError, AttributeError) as error:
        raise SettingsError(
            "invalid_json", f"expected a JSON object in '{path}': {error}; correct the file", path=path
        ) from None
    if line not in listed:
        raise SettingsError(
            "class_not_allowed",
            f'\'{path}\' lacks "{line}" in its list "class_allow_list"; add it, or no job starts',
            path=path,
            name=line,
        )
    return f"'{line}' is in '{path}'"


def _check_certificate(kit: Path, who: str, site: str | None) -> str:
    """Check the certificate's name, validity, root and key."""
    try:
        from cryptography import x509
        from cryptography.x509.oid import NameOID
    except ImportError:
        return "not checked (the package 'cryptography' is not installed)"
    path = kit / "startup" / f"{who}.crt"
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
    except ValueError as error:
        raise SettingsError(
            "invalid_certificate", f"'{path}' is not a certificate ({error}); ask the maker of the kit", path=path
        ) from None
    names = [str(name.value) for name in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    if site is not None and site not in names:
        raise SettingsError(
            "wrong_certificate_name",
            f"the certificate is for '{', '.join(names)}', the file is for '{site}'; correct 'site', or use its kit",
            expected=site,
            found=names,
        )
    end = certificate.not_valid_after_utc
    left = (end - datetime.datetime.now(datetime.UTC)).days
    if left < 0:
        raise SettingsError(
            "expired_certificate",
            f"the certificate expired on {end:%Y-%m-%d}; ask the maker of the kit for a new one",
            path=path,
            end=f"{end:%Y-%m-%d}",
        )
    from medfl.privacy.signatures import read_signer

    read_signer(kit)
    about = f"for '{', '.join(names)}'; it matches the kit's root and key"
    return f"{about}; it expires on {end:%Y-%m-%d}, in {left} days"
