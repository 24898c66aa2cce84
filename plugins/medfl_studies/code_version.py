"""Git commit of the code that runs."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path


@cache
def current_commit() -> str | None:
    """Return the Git commit of medfl's code, with ``-dirty`` after changes; None outside of a checkout."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        completed = subprocess.run(  # noqa: S603
            command, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return completed.stdout.strip() if completed.returncode == 0 else None
