"""Imports of what is heavy: torch and MONAI."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator


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
