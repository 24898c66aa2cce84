"""What of NVFlare's startup kit a participant can check on its own disk, without NVFlare."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from pathlib import Path

from medfl.errors import SettingsError
from medfl_flare.provision import ALLOWED

Check = tuple[str, Callable[[], str]]
"""What is checked, and a function that says what was found or raises what is wrong."""


def check_kit(kit: Path, site: str | None) -> list[Check]:
    """The checks of a startup kit.

    Args:
        kit: Its folder, with ``startup`` and ``local``.
        site: Name of the site; None is the server.
    """
    who = "server" if site is None else "client"
    return [
        ("files", lambda: _files(kit, who)),
        ("private key", lambda: _key(kit, who)),
        ("allow list", lambda: _allowed(kit, who)),
        ("certificate", lambda: _certificate(kit, who, site)),
    ]


def _files(kit: Path, who: str) -> str:
    wanted = [f"fed_{who}.json", f"{who}.crt", f"{who}.key", "rootCA.pem", "start.sh"]
    missing = [f"startup/{name}" for name in wanted if not (kit / "startup" / name).is_file()]
    if _resources(kit) is None:
        missing.append("local/resources.json")
    if missing:
        raise SettingsError(
            "incomplete_kit",
            f"'{kit}' lacks {', '.join(missing)}; ask whoever made it for the whole kit",
            path=kit,
            missing=missing,
        )
    return f"'{kit}' is whole"


def _key(kit: Path, who: str) -> str:
    path = kit / "startup" / f"{who}.key"
    mode = path.stat().st_mode & 0o777
    if mode & 0o077:
        raise SettingsError(
            "insecure_permissions",
            f"others can use '{path}' (mode {mode:04o}); give the command `chmod 600 {path}`",
            path=path,
            mode=mode,
        )
    return f"only its owner can read it (mode {mode:04o})"


def _resources(kit: Path) -> Path | None:
    """NVFlare's settings: its own file wins over the one it was made with."""
    for name in ("resources.json", "resources.json.default"):
        if (kit / "local" / name).is_file():
            return kit / "local" / name
    return None


def _allowed(kit: Path, who: str) -> str:
    path, line = _resources(kit), ALLOWED[who]
    if path is None:
        raise SettingsError(
            "missing_file",
            f"expected '{kit / 'local' / 'resources.json'}'; there is none",
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


def _certificate(kit: Path, who: str, site: str | None) -> str:
    try:
        from cryptography import x509
        from cryptography.x509.oid import NameOID
    except ImportError:
        return "not looked into (the package 'cryptography' is not installed)"
    path = kit / "startup" / f"{who}.crt"
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
    except ValueError as error:
        raise SettingsError(
            "invalid_certificate", f"'{path}' is no certificate ({error}); ask whoever made the kit", path=path
        ) from None
    names = [str(name.value) for name in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    if site is not None and site not in names:
        raise SettingsError(
            "wrong_certificate_name",
            f"it is of '{', '.join(names)}', the file is of '{site}'; correct 'site', or take its kit",
            expected=site,
            found=names,
        )
    end = certificate.not_valid_after_utc
    left = (end - datetime.datetime.now(datetime.UTC)).days
    if left < 0:
        raise SettingsError(
            "expired_certificate",
            f"it ended on {end:%Y-%m-%d}; ask whoever made the kit for a new one",
            path=path,
            end=f"{end:%Y-%m-%d}",
        )
    from medfl.privacy.signatures import read_signer

    read_signer(kit)
    about = f"of '{', '.join(names)}', of its root, with the key beside it"
    return f"{about}; it ends on {end:%Y-%m-%d}, in {left} days"
