"""Bundles on disk: the shipped ones, those that users name, and the hash of their configurations and code."""

from __future__ import annotations

import hashlib
from importlib.resources import files
from pathlib import Path

from medfl.errors import SettingsError, did_you_mean


def shipped() -> dict[str, Path]:
    """Name to folder of the bundles that come with medfl, by name."""
    folder = Path(str(files("medfl") / "bundles")).resolve()
    return {path.name: path for path in sorted(folder.iterdir()) if (path / "configs" / "metadata.json").is_file()}


def find_bundle(name_or_path: str) -> Path:
    """The folder of a bundle.

    Args:
        name_or_path: A folder that exists, or the name of a bundle that comes with medfl; a folder wins.

    Raises:
        SettingsError: If it is neither.
    """
    if Path(name_or_path).is_dir():
        return Path(name_or_path)
    bundles = shipped()
    if name_or_path not in bundles:
        raise SettingsError(
            "unknown_bundle",
            f"There is no folder '{name_or_path}', and no bundle of that name comes with medfl. "
            f"{did_you_mean(name_or_path, bundles)}",
            name=name_or_path,
        )
    return bundles[name_or_path]


def bundle_hash(root: Path) -> str:
    """SHA-256 over names and bytes of a bundle's configurations and its Python code; 64 hexadecimal digits.

    A file that was changed, renamed, added or removed changes it; subfolders of ``configs`` do not count.

    Raises:
        SettingsError: If there is no such file, or one can't be read.
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
