"""A federation whose keys are made at home: each participant's folder, the coordinator's, and what travels between."""

from __future__ import annotations

import hashlib
import io
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from medfl_flare.keys.approval import approve, make_root
from medfl_flare.keys.certificate_request import KeyOwner, make_request
from medfl_flare.keys.kit_assembly import package
from medfl_flare.provision import Project

PEM = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?-----END [A-Z ]*PRIVATE KEY-----", re.DOTALL)


@dataclass
class Home:
    """Folders of a federation.

    Attributes:
        folder: One for each party below it: ``coordinator``, each participant's name, and ``post`` for what travels.
        project: Who takes part.
    """

    folder: Path
    project: Project

    def __post_init__(self) -> None:
        self.root = self.folder / "coordinator" / "root"
        self.fingerprint = make_root(self.project, self.root)
        self.post = self.folder / "post"
        self.post.mkdir()

    @property
    def roles(self) -> dict[str, str]:
        """Participant to role."""
        sites = dict.fromkeys(self.project.sites, "site")
        return {self.project.server: "server", self.project.admin: "researcher"} | sites

    def request(self, name: str) -> str:
        """Make a request and post it; returns the key's fingerprint."""
        made = make_request(KeyOwner(name, self.roles[name], self.project.name), self.folder / name / "request")
        made.file.rename(self.post / made.file.name)
        return made.fingerprint

    def approve(self, name: str, fingerprint: str) -> Path:
        """Approve what was posted; returns the answer."""
        return approve(self.post / f"{name}.request.zip", self.root, fingerprint).file

    def package(self, name: str) -> Path:
        """Make a kit of the answer that was posted."""
        answer, home = self.post / f"{name}.signed.zip", self.folder / name
        return package(answer, home / "request", self.fingerprint, home / "kit")

    def kit(self, name: str) -> Path:
        """The whole way."""
        self.approve(name, self.request(name))
        return self.package(name)


def private_keys(folder: Path) -> dict[str, set[str]]:
    """Find all private keys.

    Args:
        folder: All files below it are read, those in archives and those with line ends written as two letters, too.

    Returns:
        Fingerprint of the public key to the files, relative to the folder, that hold the private one.
    """
    from cryptography.hazmat.primitives import serialization

    form = (serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    places: dict[str, set[str]] = {}
    for path, content in _contents(folder):
        for pem in PEM.findall(content.replace(b"\\n", b"\n")):
            key = serialization.load_pem_private_key(pem, password=None, unsafe_skip_rsa_key_validation=True)
            digest = hashlib.sha256(key.public_key().public_bytes(*form)).hexdigest()
            places.setdefault(digest, set()).add(path)
    return places


def _contents(folder: Path) -> Iterator[tuple[str, bytes]]:
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name, content = str(path.relative_to(folder)), path.read_bytes()
        yield name, content
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                for member in archive.namelist():
                    yield name, archive.read(member)


def foreign_keys(folder: Path, kits: dict[str, Path], root: Path) -> list[str]:
    """Return the misplaced private keys: each belongs into one kit, and the root's key to the coordinator alone.

    Args:
        folder: Of everything.
        kits: Participant to its kit.
        root: File of the root's key.

    Returns:
        A line for each key that lies elsewhere, in several places, or nowhere.
    """
    expected = {str(root.relative_to(folder)): "root"}
    for name, kit in kits.items():
        (own,) = (path for path in (kit / "startup").glob("*.key"))
        expected[str(own.relative_to(folder))] = name
    places = private_keys(folder)
    wrong = [
        f"a key lies in {sorted(files)}" for files in places.values() if len(files) > 1 or not files <= {*expected}
    ]
    held = {file for files in places.values() for file in files}
    return sorted(wrong + [f"no key lies in {file}" for file in expected if file not in held])
