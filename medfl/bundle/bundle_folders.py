"""Find bundles on disk, and compute the hash of a bundle's configurations and code."""

from __future__ import annotations

import hashlib
from importlib.resources import files
from pathlib import Path

from medfl.errors import SettingsError, did_you_mean

LIST_BUNDLES = "medfl list bundles"
"""Command that lists the bundles that come with medfl, for messages."""


def shipped_bundles() -> dict[str, Path]:
    """Return a mapping from the name of each bundle that comes with medfl to its folder."""
    folder = Path(str(files("medfl") / "bundles")).resolve()
    return {path.name: path for path in sorted(folder.iterdir()) if (path / "configs" / "metadata.json").is_file()}


def find_bundle(name_or_path: str) -> Path:
    """Return the folder of a bundle.

    Args:
        name_or_path: A folder that exists, or the name of a bundle that comes with medfl. A folder takes precedence.

    Raises:
        SettingsError: If there is neither such a folder nor such a bundle.
    """
    if Path(name_or_path).is_dir():
        return Path(name_or_path)
    bundles = shipped_bundles()
    if name_or_path not in bundles:
        raise SettingsError(
            "unknown_bundle",
            f"There is no folder '{name_or_path}', and no bundle of that name comes with medfl. "
            f"{did_you_mean(name_or_path, bundles, LIST_BUNDLES)}",
            name=name_or_path,
        )
    return bundles[name_or_path]


def bundle_hash(root: Path) -> str:
    """Return the SHA-256 of the names and bytes of a bundle's configurations and Python files, 64 hexadecimal digits.

    The hash changes if such a file is changed, renamed, added or removed. Files in subfolders of ``configs`` do not
    count as configurations.

    Args:
        root: Folder of the bundle.

    Raises:
        SettingsError: If the bundle has no configuration, or a file can't be read.
    """
    configs = [path for path in (root / "configs").glob("*") if path.suffix in (".json", ".yaml", ".yml")]
    files = {path.name: path for path in sorted(configs, key=lambda path: path.name)}
    if not files:
        raise SettingsError(
            "missing_configuration",
            f"Expected a bundle with files configs/*.json in '{root}'; there are none.",
            path=root,
        )
    files |= {path.relative_to(root).as_posix(): path for path in sorted(root.rglob("*.py"))}
    total = hashlib.sha256()
    for name, path in files.items():
        try:
            content = path.read_bytes()
        except OSError as error:
            raise SettingsError(
                "unreadable_file", f"Could not read '{path}': {error.strerror}. Permit reading it.", path=path
            ) from None
        for part in (name.encode(), content):
            total.update(len(part).to_bytes(8, "big") + part)
    return total.hexdigest()
