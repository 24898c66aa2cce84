"""The coordinator's side of certificate requests: the federation's root, the expected participants, signed answers."""

from __future__ import annotations

import datetime
import json
import shutil
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import yaml

from medfl.errors import SettingsError
from medfl.types import Meta
from medfl.utils.files import private_files
from medfl.utils.strict_yaml import parse_yaml
from medfl_flare.keys.certificate_request import (
    NVFLARE_ROLES,
    RESEARCHER_ROLE,
    SERVER_ROLE,
    SITE_ROLE,
    KeyOwner,
    normalize_fingerprint,
)
from medfl_flare.keys.nvflare_commands import call_nvflare
from medfl_flare.provision import Project, with_earlier_sites
from medfl_flare.records.federation import ApprovedKey, FederationFile

PROFILE_FILE_NAME, APPROVED = "project.yaml", "approved"
"""Names in the root's folder.

* ``PROFILE_FILE_NAME``: NVFlare's description of the server.
* ``APPROVED``: folder with a record of each approved key.
"""
MAX_BYTES = 65_536
"""Maximum number of bytes of a file in a request."""
VALID_DAYS = 360
"""Days for which a participant's certificate is valid; a certificate never outlasts the root certificate."""


@dataclass(frozen=True)
class Approval:
    """A signed answer to a certificate request.

    Attributes:
        file: File to send to the participant. It contains no secret.
        participant: Owner of the key.
        root: Fingerprint of the root certificate, to be told over another channel.
    """

    file: Path
    participant: KeyOwner
    root: str


def make_root(project: Project, folder: Path) -> str:
    """Make the root of a federation whose participants make their own keys, or add expected sites to an existing root.

    Args:
        project: Participants of the federation. A later call needs only the new sites.
        folder: Folder of the root. It contains the root's private key: anyone who has it can impersonate any
            participant.

    Returns:
        Fingerprint of the root certificate.

    Raises:
        SettingsError: If a name is invalid, or if server, researcher or port differ from the earlier call.
        StoreError: If the folder can't be written.
    """
    project = with_earlier_sites(project, folder / FederationFile.NAME)
    project.check()
    server = {"host": project.server, "fed_learn_port": project.port, "admin_port": project.port}
    profile = {"name": project.name, "scheme": project.scheme, "connection_security": "mtls", "server": server}
    with private_files():
        project.record().write(folder / FederationFile.NAME)
        (folder / PROFILE_FILE_NAME).write_text(yaml.safe_dump(profile), encoding="utf-8")
        if not (folder / "rootCA.key").exists():
            about = {"profile": str(folder / PROFILE_FILE_NAME), "output_dir": str(folder), "org": None, "force": False}
            call_nvflare("init", folder, **about, valid_days=project.valid_days)
    return root_fingerprint(folder)


def read_root(folder: Path) -> Project:
    """Return the participants of a federation, as recorded in the folder of its root.

    Raises:
        SettingsError: If the folder is not a root's folder.
    """
    try:
        return Project(**FederationFile.read(folder / FederationFile.NAME).model_dump())
    except SettingsError as error:
        raise SettingsError(
            "invalid_root_folder", f"'{folder}' is not a folder of `medfl federate root` ({error})", path=folder
        ) from None


def root_fingerprint(folder: Path) -> str:
    """Return the SHA-256 fingerprint of a root certificate.

    Args:
        folder: Folder of the root.

    Raises:
        SettingsError: If the folder contains no fingerprint.
    """
    try:
        return normalize_fingerprint(json.loads((folder / "ca.json").read_text(encoding="utf-8"))["rootCA_fingerprint"])
    except (OSError, ValueError, KeyError) as error:
        raise SettingsError(
            "incomplete_root_folder",
            f"the root in '{folder}' is incomplete ({error}); make one in another folder",
            path=folder,
        ) from None


def approve(request: Path, root: Path, key: str, out: Path | None = None) -> Approval:
    """Sign a request with the root's key if its content is exactly what an expected participant must request.

    A request whose key was approved before is signed again, as the answer may have been lost.

    Args:
        request: The received file.
        root: Folder of the root.
        key: Fingerprint of the key, which the participant told over another channel, such as the telephone.
        out: File of the answer; None puts it beside the request.

    Raises:
        SettingsError: If the request was edited, has another project, key or role than expected, or if another key was
            approved for the name before.
        StoreError: If the answer can't be written.
    """
    project, expected_key = read_root(root), normalize_fingerprint(key)
    with private_files(), tempfile.TemporaryDirectory() as temporary:
        copy = Path(temporary) / "request.zip"  # check and sign the same bytes, even if the original changes meanwhile
        try:
            shutil.copyfile(request, copy)
        except OSError as error:
            raise SettingsError(
                "unreadable_file", f"the request '{request}' can't be read: {error.strerror}", path=request
            ) from None
        about, definition = _read_request(copy, request)
        participant = _expected_participant(project, about)
        if definition != participant.definition():
            raise SettingsError(
                "edited_request",
                f"'{request}' was edited, or made by another program: expected exactly {participant.definition()}, "
                f"got {definition!r:.500}",
                path=request,
                expected=participant.definition(),
            )
        requested_key = normalize_fingerprint(about.get("public_key_sha256"))
        if requested_key != expected_key:
            raise SettingsError(
                "wrong_key",
                f"the key in '{request}' does not have the fingerprint that you gave: expected {expected_key}, got "
                f"{requested_key}. Compare them with '{participant.name}' again; if they differ, someone replaced the "
                "request in transit",
                path=request,
                expected=expected_key,
                found=requested_key,
            )
        _record_key(root / APPROVED / f"{participant.name}.json", participant, expected_key)
        out = out or request.with_name(f"{participant.name}.signed.zip")
        files = {
            "request_zip": str(copy),
            "ca_dir": str(root),
            "profile": str(root / PROFILE_FILE_NAME),
            "signed_zip": str(out),
        }
        call_nvflare("approve", root, **files, valid_days=min(VALID_DAYS, project.valid_days), force=True)
    return Approval(out, participant, root_fingerprint(root))


def _record_key(record: Path, participant: KeyOwner, key: str) -> None:
    """Record the key of a name, or raise if the name already has another key."""
    if record.is_file():
        before = ApprovedKey.read(record)
        if before.key != key:
            raise SettingsError(
                "key_already_approved",
                f"another key was approved for '{participant.name}' at {before.time}: {before.key}. If that key is "
                f"lost, delete '{record}' and approve again. Its certificate stays valid until it expires, so if the "
                "key was stolen, a new root and new kits for all participants are needed",
                name=participant.name,
                key=before.key,
                record=record,
            )
        return
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    ApprovedKey(name=participant.name, role=participant.role, key=key, time=now).write(record)


def _expected_participant(project: Project, about: Meta) -> KeyOwner:
    """Return the participant of a request; raise if it is not expected in this role."""
    if about.get("project") != project.name:
        raise SettingsError(
            "other_project",
            f"the request is for the project {about.get('project')!r:.100}, this root is for '{project.name}'. The "
            f"participant must repeat the command with --project {project.name}",
            expected=project.name,
            found=str(about.get("project"))[:100],
        )
    name, kind = about.get("name"), (about.get("kind"), about.get("cert_type"))
    roles = {project.server: SERVER_ROLE, project.admin: RESEARCHER_ROLE} | dict.fromkeys(project.sites, SITE_ROLE)
    role = roles.get(name) if isinstance(name, str) else None
    if role is None:
        raise SettingsError(
            "unexpected_participant",
            f"no participant named {name!r:.100} is expected; expected are {', '.join(sorted(roles))}. "
            "`medfl federate root` with more --sites adds sites",
            name=str(name)[:100],
            expected=sorted(roles),
        )
    if kind != NVFLARE_ROLES[role]:
        wanted = next((word for word, kinds in NVFLARE_ROLES.items() if kinds == kind), f"{kind!r:.100}")
        raise SettingsError(
            "wrong_role",
            f"'{name}' requests the role '{wanted}'; expected '{role}'. Don't approve it",
            name=name,
            expected=role,
            found=wanted,
        )
    return KeyOwner(str(name), role, project.name)


def _read_request(file: Path, request: Path) -> tuple[Meta, object]:
    """Return the description and NVFlare's definition in a request. NVFlare compares both with the signed content."""
    try:
        with zipfile.ZipFile(file) as archive:
            texts = []
            for name in ("request.json", "site.yaml"):
                with archive.open(name) as member:
                    texts.append(member.read(MAX_BYTES + 1))
        if max(map(len, texts)) > MAX_BYTES:
            raise ValueError("a file in it is too long")
        about, definition = json.loads(texts[0]), parse_yaml(texts[1].decode())
        if not isinstance(about, dict):
            raise ValueError("expected a JSON object in request.json")
    except (OSError, ValueError, KeyError, RuntimeError, zipfile.BadZipFile) as error:
        raise SettingsError(
            "invalid_certificate_request",
            f"'{request}' is not a request of `medfl federate request` ({error!s:.200})",
            path=request,
            reason=str(error)[:200],
        ) from None
    return about, definition
