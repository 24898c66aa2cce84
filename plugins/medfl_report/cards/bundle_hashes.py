"""SHA-256 of the files of a bundle, and of the installed source files of medfl."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import medfl
from medfl.utils import wire
from medfl.utils.files import sha256_of
from medfl_report.cards.evidence import Evidence


def hash_files(bundle: Path) -> dict[str, str]:
    """Return a mapping from each file of a bundle to the file's SHA-256.

    ``evidence.json`` is left out. A symbolic link is mapped to its target instead.

    Args:
        bundle: Folder of the bundle.
    """
    hashes = {}
    for path in sorted(bundle.rglob("*")):
        name = path.relative_to(bundle).as_posix()
        if path.is_symlink():
            hashes[name] = f"link to {path.readlink()}"
        elif path.is_file() and name != Evidence.NAME:
            hashes[name] = sha256_of(path)
    return hashes


def digest_hashes(hashes: Mapping[str, str]) -> str:
    """Return one SHA-256 over the names and hashes of several files.

    Args:
        hashes: Mapping from the name of each file to the file's hash.
    """
    return wire.digest({}, dict(hashes))


def hash_source() -> str:
    """Return one SHA-256 over the installed Python files of the package `medfl`."""
    root = Path(medfl.__file__).parent
    return digest_hashes({path.relative_to(root).as_posix(): sha256_of(path) for path in sorted(root.rglob("*.py"))})
