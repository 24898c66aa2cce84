"""For all tests of faults: the toy methods beside this folder can be imported, and nobody waits for the disk."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))


@pytest.fixture(autouse=True)
def no_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of fsync are counted but cost nothing: a killed process loses nothing that the system has taken."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
