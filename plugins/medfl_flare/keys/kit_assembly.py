"""Assembly of a startup kit from the coordinator's signed answer to a certificate request and the local private key.

A startup kit is the folder with certificate, settings and scripts with which a participant joins the federation.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from medfl.errors import SettingsError, StoreError
from medfl.privacy.signatures import read_signer
from medfl.utils.files import private_files
from medfl_flare.keys.certificate_request import (
    NVFLARE_ROLES,
    RESEARCHER_ROLE,
    SERVER_ROLE,
    normalize_fingerprint,
    read_local_request,
)
from medfl_flare.keys.nvflare_commands import call_nvflare
from medfl_flare.provision import Project, prepare_kit


def package(answer: Path, request: Path, root: str, out: Path) -> Path:
    """Make a startup kit, and move the private key from the request's folder into it.

    Args:
        answer: The received file of `medfl_flare.keys.approval`.
        request: Folder of the corresponding request, with the key.
        root: Fingerprint of the root certificate, received from the coordinator over another channel.
        out: Folder of the kit; it must not exist.

    Returns:
        Folder of the kit.

    Raises:
        SettingsError: If the answer has another root, request or key, was edited, or has expired.
        StoreError: If the kit can't be written.
    """
    if out.exists():
        raise SettingsError("folder_exists", f"'{out}' already exists; name another folder for the kit", path=out)
    about, expected = read_local_request(request), normalize_fingerprint(root)
    name, kind = str(about.get("name")), (about.get("kind"), about.get("cert_type"))
    try:
        with private_files():
            out.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=out.parent, prefix=".kit-") as temporary:
                files = {"input": str(answer), "workspace": temporary, "request_dir": str(request)}
                made = call_nvflare("package", request, **files, expected_fingerprint=expected, force=False)
                kit = Path(made["output_dir"])
                prepare_kit(kit, _project_of_owner(name, kind), name, researcher=NVFLARE_ROLES[RESEARCHER_ROLE][1])
                read_signer(kit)  # check again, independently of NVFlare, that the key and the root match
                kit.rename(out)
            (request / f"{name}.key").unlink()
    except OSError as error:
        raise StoreError("unwritable_folder", f"the kit '{out}' can't be written: {error}", path=out) from error
    return out


def _project_of_owner(name: str, kind: tuple[object, object]) -> Project:
    """Return a project that contains only the kit's owner."""
    if kind == NVFLARE_ROLES[SERVER_ROLE]:
        return Project(name, (), "")
    return Project("", (), name) if kind == NVFLARE_ROLES[RESEARCHER_ROLE] else Project("", (name,), "")
