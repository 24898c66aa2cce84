"""Where bundles are: those that come with medfl, and those that users name."""

from __future__ import annotations

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
