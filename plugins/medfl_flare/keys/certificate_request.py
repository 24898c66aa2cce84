"""A participant's key, made on its own machine, and the request for a certificate, the only file to send."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from medfl.errors import SettingsError, StoreError, check_choice
from medfl.types import Meta
from medfl.utils.files import private_files
from medfl.utils.text import name_problem
from medfl_flare.keys.nvflare_commands import call_nvflare
from medfl_flare.provision import PROJECT

SITE_ROLE, SERVER_ROLE, RESEARCHER_ROLE = "site", "server", "researcher"
"""Roles of a participant in the federation: a site with data, the server, or a researcher who submits runs."""
NVFLARE_ROLES = {SITE_ROLE: ("site", "client"), SERVER_ROLE: ("server", "server"), RESEARCHER_ROLE: ("user", "lead")}
"""Maps each role to a pair: NVFlare's kind of request, and NVFlare's role in the certificate. NVFlare certifies no
project admin by request; a ``lead`` has the same rights in these kits (`medfl_flare.provision.role_rights`)."""
MAX_NAME_CHARACTERS = 64
"""Maximum number of characters of a certificate's common name."""


@dataclass(frozen=True)
class KeyOwner:
    """Owner of a key and its certificate.

    Attributes:
        name: A site's name, the server's host name, or the researcher's e-mail address.
        role: ``site``, ``server`` or ``researcher``.
        project: Name of the federation's project.
    """

    name: str
    role: str = SITE_ROLE
    project: str = PROJECT

    def check(self) -> None:
        """Raise if the role is unknown, or if the name is invalid.

        Raises:
            SettingsError: If role or name are invalid; names the value.
        """
        check_choice("role", self.role, NVFLARE_ROLES)
        problem = name_problem([self.name]) if self.role == SITE_ROLE else None
        if problem:
            raise SettingsError("invalid_site_name", problem, sites=[self.name])
        if not self.name or len(self.name) > MAX_NAME_CHARACTERS:
            raise SettingsError(
                "invalid_name",
                f"expected a name of 1 to {MAX_NAME_CHARACTERS} characters, got {len(self.name)}",
                name=self.name,
            )

    def definition(self) -> dict[str, Any]:
        """Return NVFlare's definition of the participant, which is sent with the request: name, type and role."""
        kind = {SITE_ROLE: "client", SERVER_ROLE: "server", RESEARCHER_ROLE: "admin"}[self.role]
        org = (self.name if self.role == SITE_ROLE else self.project).replace("-", "_")
        entry = {"name": self.name, "type": kind, "org": org}
        return {"name": self.project, "participants": [entry | self._role()]}

    def recipe(self) -> dict[str, Any]:
        """Return the definition together with NVFlare's builders for the local kit; the result is not sent.

        The builders give the kit the same files as ``medfl federate provision``.
        """
        path = "nvflare.lighter.impl.static_file.StaticFileBuilder"
        return self.definition() | {"builders": [{"path": path, "args": {"config_folder": "config"}}]}

    def _role(self) -> dict[str, str]:
        """Return NVFlare's role field; empty except for a researcher."""
        return {"role": NVFLARE_ROLES[RESEARCHER_ROLE][1]} if self.role == RESEARCHER_ROLE else {}


@dataclass(frozen=True)
class CertificateRequest:
    """Files of a certificate request.

    Attributes:
        file: File to send to the coordinator. It contains no secret.
        key: File of the private key, which stays on the machine.
        fingerprint: Fingerprint of the public key: ``SHA256:`` and 32 bytes in hexadecimal, to be told over another
            channel.
    """

    file: Path
    key: Path
    fingerprint: str


def make_request(participant: KeyOwner, folder: Path) -> CertificateRequest:
    """Make a private key and a request for a certificate.

    Args:
        participant: Owner of the key.
        folder: Folder of both files; only its owner can read them.

    Raises:
        SettingsError: If the name is invalid, or if the folder contains a key, which is never overwritten.
        StoreError: If the folder can't be written.
    """
    participant.check()
    name = participant.name
    with private_files(), tempfile.TemporaryDirectory() as temporary:
        definition = Path(temporary) / "participant.yaml"
        definition.write_text(yaml.safe_dump(participant.recipe()), encoding="utf-8")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(
                "unwritable_folder", f"the folder '{folder}' can't be made: {error.strerror}", path=folder
            ) from error
        call_nvflare("request", folder, participant=str(definition), output_dir=str(folder), force=False)
    file = folder / f"{name}.request.zip"
    return CertificateRequest(
        file, folder / f"{name}.key", normalize_fingerprint(read_local_request(folder)["public_key_sha256"])
    )


def read_local_request(folder: Path) -> Meta:
    """Return NVFlare's record of a request from the folder that also contains the private key.

    Raises:
        SettingsError: If the folder contains no request.
    """
    try:
        about: Meta = json.loads((folder / "request.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SettingsError(
            "invalid_request_folder", f"'{folder}' is not a folder of `medfl federate request` ({error})", path=folder
        ) from None
    return about


def normalize_fingerprint(text: Any) -> str:
    """Return a SHA-256 fingerprint in the standard notation.

    Raises:
        SettingsError: If the text is not a fingerprint.
    """
    from nvflare.tool.cert.fingerprint import normalize_sha256_fingerprint

    normal = str(normalize_sha256_fingerprint(text))
    if not normal:
        raise SettingsError(
            "invalid_key_fingerprint",
            f"expected a SHA-256 as a fingerprint, 64 hexadecimal digits, got {str(text)[:100]!r}",
            found=str(text)[:100],
        )
    return normal
