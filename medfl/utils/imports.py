"""Import helpers: faster imports of torch and MONAI, and detection of another project named `medfl`."""

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
"""Pattern of the metadata folders of distributions named `medfl`."""


@contextlib.contextmanager
def quick_imports() -> Iterator[None]:
    """Disable garbage collection during imports, which saves a third of their time.

    Importing torch and MONAI creates half a million objects that are not garbage, and the collector would scan them
    again and again. They are also excluded from later collections. If MONAI is already imported, nothing changes.
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
    """Raise if the distribution `medfl` of another project (MEDfl) is installed.

    The check reads folder names only, because importing `importlib.metadata` would take longer than ``medfl --help``.
    An editable install of this project under its former name `medfl` does not count.

    Raises:
        SettingsError: If the other distribution is installed.
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
                    f"Expected no distribution 'medfl' next to '{DISTRIBUTION}', found '{folder}', which belongs to "
                    "another project (MEDfl). On file systems that ignore case, its package MEDfl overwrites the "
                    "package medfl. Run `pip uninstall medfl`, then `pip install --force-reinstall --no-deps "
                    f"{DISTRIBUTION}` (in a clone: `pip install -e .`), or use separate environments.",
                    path=folder,
                )


def _holds_other_project(metadata: Path) -> bool:
    """Return True if a distribution named `medfl` contains the package `MEDfl`."""
    for name in ("top_level.txt", "RECORD", "SOURCES.txt"):
        with contextlib.suppress(OSError):
            if re.search(r"^MEDfl\b", (metadata / name).read_text(encoding="utf-8", errors="replace"), re.MULTILINE):
                return True
    return False
