"""SHA-256 of the files of bundles, and of the source of medfl."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import medfl
from medfl.utils import wire
from medfl.utils.files import sha256_of
from medfl_report.cards.evidence import Evidence


def file_hashes(bundle: Path) -> dict[str, str]:
    """Return the SHA-256 of each file of a bundle, except its evidence; a link has its target instead.

    Args:
        bundle: Folder of the bundle.
    """
    hashes = {}
    for path in sorted(bundle.rglob("*")):
        inside = path.relative_to(bundle).as_posix()
        if path.is_symlink():
            hashes[inside] = f"link to {path.readlink()}"
        elif path.is_file() and inside != Evidence.NAME:
            hashes[inside] = sha256_of(path)
    return hashes


def digest_of(hashes: Mapping[str, str]) -> str:
    """Return one SHA-256 over the names and hashes of several files."""
    return wire.digest({}, dict(hashes))


def source_hash() -> str:
    """Return one SHA-256 over the Python files of medfl, as they are installed."""
    root = Path(medfl.__file__).parent
    return digest_of({path.relative_to(root).as_posix(): sha256_of(path) for path in sorted(root.rglob("*.py"))})
