"""How much room a folder takes."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def bytes_in(folder: Path) -> int:
    """Bytes of all files below a folder; links are not followed, and files that vanish meanwhile count nothing."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += os.lstat(os.path.join(parent, name)).st_size
    return total
