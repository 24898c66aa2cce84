"""A participant's key, made at home, and the request for a certificate: the one file that travels."""

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
from medfl_flare.keys.commands import call
from medfl_flare.provision import PROJECT

SITE, SERVER, RESEARCHER = "site", "server", "researcher"
KINDS = {SITE: ("site", "client"), SERVER: ("server", "server"), RESEARCHER: ("user", "lead")}
"""A role to NVFlare's words for it: kind of request, and role in the certificate. NVFlare certifies no project admin
by request; its ``lead`` has the same rights in kits made so (`medfl_flare.provision.rights`)."""
LONGEST = 64
"""Characters of a name, at most: what a certificate's common name holds."""


@dataclass(frozen=True)
class Participant:
    """Who asks.

    Attributes:
        name: A site's name, the server's host name, or the researcher's e-mail address.
        role: ``site``, ``server`` or ``researcher``.
        project: Name of the federation's project.
    """

    name: str
    role: str = SITE
    project: str = PROJECT

    def check(self) -> None:
        """Refuse a role that is none, and a name that could not be.

        Raises:
            SettingsError: Naming it.
        """
        check_choice("role", self.role, KINDS)
        problem = name_problem([self.name]) if self.role == SITE else None
        if problem:
            raise SettingsError("invalid_site_name", problem, sites=[self.name])
        if not self.name or len(self.name) > LONGEST:
            raise SettingsError(
                "invalid_name",
                f"expected a name of 1 to {LONGEST} characters, got {len(self.name)}",
                name=self.name,
            )

    def definition(self) -> dict[str, Any]:
        """NVFlare's file of a participant, as it travels: nothing in it but who asks."""
        kind = {SITE: "client", SERVER: "server", RESEARCHER: "admin"}[self.role]
        org = (self.name if self.role == SITE else self.project).replace("-", "_")
        entry = {"name": self.name, "type": kind, "org": org}
        return {"name": self.project, "participants": [entry | self._role()]}

    def recipe(self) -> dict[str, Any]:
        """The definition, and how NVFlare makes the kit of it: as it makes provisioned ones. It stays at home."""
        path = "nvflare.lighter.impl.static_file.StaticFileBuilder"
        return self.definition() | {"builders": [{"path": path, "args": {"config_folder": "config"}}]}

    def _role(self) -> dict[str, str]:
        return {"role": KINDS[RESEARCHER][1]} if self.role == RESEARCHER else {}


@dataclass(frozen=True)
class Request:
    """What `make_request` made.

    Attributes:
        file: To be sent to whoever approves. It holds no secret.
        key: The private key, which stays.
        fingerprint: Of the public key: ``SHA256:`` and 32 bytes in hexadecimal. It is told over another channel.
    """

    file: Path
    key: Path
    fingerprint: str


def make_request(participant: Participant, folder: Path) -> Request:
    """Make a private key and a request for a certificate.

    Args:
        participant: Who asks.
        folder: Where both lie then; only its owner can read them.

    Raises:
        SettingsError: If the name is not possible, or a key is there already: it is never overwritten.
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
        call("request", folder, participant=str(definition), output_dir=str(folder), force=False)
    file = folder / f"{name}.request.zip"
    return Request(file, folder / f"{name}.key", fingerprint(local_request(folder)["public_key_sha256"]))


def local_request(folder: Path) -> Meta:
    """What NVFlare noted of a request beside its key.

    Raises:
        SettingsError: If there is none.
    """
    try:
        about: Meta = json.loads((folder / "request.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SettingsError(
            "invalid_request_folder", f"'{folder}' is no folder of `medfl federate request` ({error})", path=folder
        ) from None
    return about


def fingerprint(text: Any) -> str:
    """A SHA-256 in one form, however it was written.

    Raises:
        SettingsError: If it is none.
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
