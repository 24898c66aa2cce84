"""Imports: speed up those of torch and MONAI, and refuse an environment that holds the other project `medfl`."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from medfl.errors import SettingsError
from medfl.version import DISTRIBUTION

_METADATA = re.compile(r"medfl(-[^-]*)?\.(dist|egg)-info", re.IGNORECASE)
"""Metadata folders of distributions called `medfl`."""


@contextlib.contextmanager
def quick_imports() -> Iterator[None]:
    """Import without the garbage collector, which takes a third of the time to look through modules for garbage.

    Torch and MONAI leave half a million objects, none of which is garbage, and the collector goes through all of them
    again and again as they become more. What was imported is left out of its later turns, too. Where MONAI is there
    already, nothing changes.
    """
    if "monai" in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def refuse_other_distribution() -> None:
    """Raise an error if the distribution `medfl` of another project (MEDfl) is installed.

    The check reads folder names alone: importing `importlib.metadata` would take longer than ``medfl --help``. An
    editable install of this project under its former name `medfl` does not count.

    Raises:
        SettingsError: If it is installed.
    """
    for entry in dict.fromkeys(sys.path):
        try:
            names = os.listdir(entry or ".")
        except OSError:  # no such folder, or a ZIP file
            continue
        for folder in (Path(entry) / name for name in names if _METADATA.fullmatch(name)):
            if _holds_other_project(folder):
                raise SettingsError(
                    "foreign_distribution",
                    f"Expected no distribution 'medfl' beside '{DISTRIBUTION}'; found '{folder}', which belongs to "
                    "another project (MEDfl). On file systems that ignore case, its package MEDfl overwrites the "
                    "package medfl. Run `pip uninstall medfl`, then `pip install --force-reinstall --no-deps "
                    f"{DISTRIBUTION}` (in a clone: `pip install -e .`), or use separate environments.",
                    path=folder,
                )


def _holds_other_project(metadata: Path) -> bool:
    """Whether a distribution called `medfl` contains the package `MEDfl`."""
    for name in ("top_level.txt", "RECORD", "SOURCES.txt"):
        with contextlib.suppress(OSError):
            if re.search(r"^MEDfl\b", (metadata / name).read_text(encoding="utf-8", errors="replace"), re.MULTILINE):
                return True
    return False
