"""``evidence.json``: what a card was made from, with the SHA-256 of each file of its bundle.

::

    about        what the card says beside scores: model, run, data, answers of people
    scores       the scores, as `medfl.card.scores.card_scores` gives them
    card         the card's file name, and the version of medfl that wrote it
    files        path in the bundle to SHA-256, of every file but evidence.json itself
    bundle       SHA-256 over these
    predictions  site to SHA-256 of the file of predictions that its scores are computed from
    data         SHA-256 of all data of the run, of each holder's, and of the data lists where they were read
    code         versions of medfl, plugins and packages in the run; SHA-256 of medfl's source that wrote the card
    identity     what makes the run this run; identity_sha256 is of that
    run_files    SHA-256 of the files of the run folder that the card was made from
    sha256       of all this

The last one covers every byte before it, so that a change that no parser would notice is noticed, too. It shows damage
and changes; who wrote the file, it can't show: for that, publish the SHA-256 that ``medfl verify`` prints elsewhere.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import medfl
from medfl.errors import DamagedError
from medfl.types import Meta
from medfl.utils import wire

EVIDENCE = "evidence.json"
"""Beside a card, in the bundle."""

README, BESIDE = "README.md", "MODEL_CARD.md"
"""The card's file, and the one where the bundle has a file of that name of its own, which stays as it is."""

SEAL = b' "sha256": '
"""What stands before the SHA-256 of the evidence itself."""

KEYS = {"about", "scores", "card", "files", "bundle", "predictions", "data", "code", "identity", "run_files"}
"""What every evidence has."""

MARK = "<!-- Written by `medfl card`. -->"
"""By which a card is known as one."""


def card_file(bundle: Path) -> Path:
    """Where the card of a bundle goes: a file that the bundle brought is never replaced."""
    path = bundle / README
    taken = path.exists() and MARK.encode() not in path.read_bytes()
    return bundle / BESIDE if taken else path


def file_hashes(bundle: Path) -> dict[str, str]:
    """Path of each file below a folder, but `EVIDENCE` itself, to its SHA-256; a link to what it points to."""
    hashes = {}
    for path in sorted(bundle.rglob("*")):
        inside = path.relative_to(bundle).as_posix()
        if path.is_symlink():
            hashes[inside] = f"link to {path.readlink()}"
        elif path.is_file() and inside != EVIDENCE:
            hashes[inside] = file_hash(path)
    return hashes


def file_hash(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_of(hashes: Mapping[str, str]) -> str:
    """One SHA-256 for a set of files: over their names and hashes."""
    return wire.digest({}, dict(hashes))


def source_hash() -> str:
    """SHA-256 over the Python files of medfl, as they are installed."""
    root = Path(medfl.__file__).parent
    return digest_of({path.relative_to(root).as_posix(): file_hash(path) for path in sorted(root.rglob("*.py"))})


def to_bytes(evidence: Meta) -> bytes:
    """The bytes of the file: JSON that ends with the SHA-256 of all bytes before."""
    return _sealed(json.dumps(evidence, indent=1, ensure_ascii=False).removesuffix("\n}").encode() + b",\n")


def from_bytes(content: bytes) -> Meta:
    """What `to_bytes` was given.

    Raises:
        DamagedError: If a single bit differs.
    """
    if _sealed(content[: content.rfind(SEAL)]) != content:
        raise DamagedError("wrong_checksum", "it does not fit its own checksum: it was damaged, or changed by hand")
    try:
        evidence: Meta = json.loads(content)
        names = [evidence["card"]["file"], *evidence["predictions"]]
        complete = evidence.keys() >= KEYS and all(Path(name).name == name != ".." for name in names)
    except (ValueError, TypeError, KeyError, RecursionError):
        complete = False
    if not complete:
        raise DamagedError("invalid_evidence", "it is sealed, and yet no evidence of a card of medfl")
    del evidence["sha256"]
    return evidence


def _sealed(body: bytes) -> bytes:
    return body + SEAL + f'"{hashlib.sha256(body).hexdigest()}"\n}}\n'.encode()
