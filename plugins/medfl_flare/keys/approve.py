"""The coordinator's side: the federation's root, who is expected, and answers to requests for certificates."""

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
from medfl_flare.keys.commands import call
from medfl_flare.keys.request import KINDS, RESEARCHER, SERVER, SITE, Participant, fingerprint
from medfl_flare.provision import Project, joined
from medfl_flare.records.federation import ApprovedKey, FederationFile

PROFILE, APPROVED = "project.yaml", "approved"
"""In the root's folder: what NVFlare must know of the server, and the folder of the approved keys."""
MAX_BYTES = 65_536
"""Bytes of a file in a request, at most."""
VALID_DAYS = 360
"""How long a participant's certificate holds, as those of `medfl_flare.provision`; never longer than the root's."""


@dataclass(frozen=True)
class Approval:
    """An answer to a request.

    Attributes:
        file: To be sent to whoever asked. It holds no secret.
        participant: Who asked.
        root: Fingerprint of the root certificate, which is told over another channel.
    """

    file: Path
    participant: Participant
    root: str


def make_root(project: Project, folder: Path) -> str:
    """Make the root of a federation whose participants make their own keys, or add sites to those expected.

    Args:
        project: Who takes part. In a later call, the new sites are enough.
        folder: Of the root. It holds the root's private key: whoever has it can pose as any participant.

    Returns:
        Fingerprint of the root certificate.

    Raises:
        SettingsError: If a name is not possible, or server, researcher or port differ from those of the earlier call.
        StoreError: If the folder can't be written.
    """
    project = joined(project, folder / FederationFile.NAME)
    project.check()
    server = {"host": project.server, "fed_learn_port": project.port, "admin_port": project.port}
    profile = {"name": project.name, "scheme": project.scheme, "connection_security": "mtls", "server": server}
    with private_files():
        project.record().write(folder / FederationFile.NAME)
        (folder / PROFILE).write_text(yaml.safe_dump(profile), encoding="utf-8")
        if not (folder / "rootCA.key").exists():
            about = {"profile": str(folder / PROFILE), "output_dir": str(folder), "org": None, "force": False}
            call("init", folder, **about, valid_days=project.valid_days)
    return root_fingerprint(folder)


def read_root(folder: Path) -> Project:
    """Who takes part in the federation of a root's folder.

    Raises:
        SettingsError: If it is no such folder.
    """
    try:
        return Project(**FederationFile.read(folder / FederationFile.NAME).model_dump())
    except SettingsError as error:
        raise SettingsError(
            "invalid_root_folder", f"'{folder}' is no folder of `medfl federate root` ({error})", path=folder
        ) from None


def root_fingerprint(folder: Path) -> str:
    """Fingerprint of a root's certificate.

    Raises:
        SettingsError: If there is none.
    """
    try:
        return fingerprint(json.loads((folder / "ca.json").read_text(encoding="utf-8"))["rootCA_fingerprint"])
    except (OSError, ValueError, KeyError) as error:
        raise SettingsError(
            "incomplete_root_folder",
            f"the root in '{folder}' is not whole ({error}); make one in another folder",
            path=folder,
        ) from None


def approve(request: Path, root: Path, key: str, out: Path | None = None) -> Approval:
    """Sign a request with the root's key, if it is what somebody who is expected would ask.

    A request whose key was approved before is approved again: the answer may have been lost.

    Args:
        request: The file that came.
        root: The root's folder.
        key: Fingerprint of the key, as whoever asks told it over another channel.
        out: File of the answer; beside the request if left out.

    Raises:
        SettingsError: If the request was edited, is of another project, key or role than expected, or another key was
            approved for the name before.
        StoreError: If the answer can't be written.
    """
    project, expected_key = read_root(root), fingerprint(key)
    with private_files(), tempfile.TemporaryDirectory() as temporary:
        copy = (
            Path(temporary) / "request.zip"
        )  # what is checked is what is signed, whoever writes to the file meanwhile
        try:
            shutil.copyfile(request, copy)
        except OSError as error:
            raise SettingsError(
                "unreadable_file", f"the request '{request}' can't be read: {error.strerror}", path=request
            ) from None
        about, definition = _read(copy, request)
        participant = _expected(project, about)
        if definition != participant.definition():
            raise SettingsError(
                "edited_request",
                f"'{request}' was edited, or made by something else: expected {participant.definition()} and nothing "
                f"more, got {definition!r:.500}",
                path=request,
                expected=participant.definition(),
            )
        if fingerprint(about.get("public_key_sha256")) != expected_key:
            raise SettingsError(
                "wrong_key",
                f"the key in '{request}' is not the one that you were told: expected {expected_key}, got "
                f"{fingerprint(about.get('public_key_sha256'))}. Compare them with '{participant.name}' once more; if "
                "they differ, somebody exchanged the request on its way",
                path=request,
                expected=expected_key,
                found=fingerprint(about.get("public_key_sha256")),
            )
        _claim(root / APPROVED / f"{participant.name}.json", participant, expected_key)
        out = out or request.with_name(f"{participant.name}.signed.zip")
        files = {"request_zip": str(copy), "ca_dir": str(root), "profile": str(root / PROFILE), "signed_zip": str(out)}
        call("approve", root, **files, valid_days=min(VALID_DAYS, project.valid_days), force=True)
    return Approval(out, participant, root_fingerprint(root))


def _claim(record: Path, participant: Participant, key: str) -> None:
    """Note down which key a name has; a second one is refused."""
    if record.is_file():
        before = ApprovedKey.read(record)
        if before.key != key:
            raise SettingsError(
                "key_already_approved",
                f"another key was approved for '{participant.name}' at {before.time}: {before.key}. If that one is "
                f"lost, delete '{record}' and approve again; its certificate stays good until its end, so if it was "
                "stolen, a new root and new kits for all are needed",
                name=participant.name,
                key=before.key,
                record=record,
            )
        return
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    ApprovedKey(name=participant.name, role=participant.role, key=key, time=now).write(record)


def _expected(project: Project, about: Meta) -> Participant:
    """Who asks, if that is somebody who is expected, in the role that is meant for them."""
    if about.get("project") != project.name:
        raise SettingsError(
            "other_project",
            f"the request is for the project {about.get('project')!r:.100}, this root is of '{project.name}'. Whoever "
            f"asks gives the command again with --project {project.name}",
            expected=project.name,
            found=str(about.get("project"))[:100],
        )
    name, kind = about.get("name"), (about.get("kind"), about.get("cert_type"))
    roles = {project.server: SERVER, project.admin: RESEARCHER} | dict.fromkeys(project.sites, SITE)
    role = roles.get(name) if isinstance(name, str) else None
    if role is None:
        raise SettingsError(
            "unexpected_participant",
            f"nobody called {name!r:.100} is expected; expected are {', '.join(sorted(roles))}. "
            "`medfl federate root` with more --sites adds sites",
            name=str(name)[:100],
            expected=sorted(roles),
        )
    if kind != KINDS[role]:
        wanted = next((word for word, kinds in KINDS.items() if kinds == kind), f"{kind!r:.100}")
        raise SettingsError(
            "wrong_role",
            f"'{name}' asks for the role '{wanted}'; expected is '{role}'. Don't approve it",
            name=name,
            expected=role,
            found=wanted,
        )
    return Participant(str(name), role, project.name)


def _read(file: Path, request: Path) -> tuple[Meta, object]:
    """What a request says of itself, and NVFlare's definition in it. NVFlare compares both with what was signed."""
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
            f"'{request}' is no request of `medfl federate request` ({error!s:.200})",
            path=request,
            reason=str(error)[:200],
        ) from None
    return about, definition
