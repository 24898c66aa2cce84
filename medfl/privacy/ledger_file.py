"""The file of a ledger: version, and for each run an entry with its noise and its releases."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from medfl.errors import DamagedError, StoreError
from medfl.privacy.composition import Part
from medfl.types import Meta
from medfl.utils.wire import unsealed

DISTRIBUTED = "distributed discrete gaussian"
"""Mechanism of an entry whose noise is the sum of several sites' shares."""


def load_entries(path: Path, site: str) -> dict[str, Meta]:
    """The entries of a file by run; none if it isn't there.

    Args:
        path: The file.
        site: The site's name, for messages.

    Raises:
        StoreError: If it can't be read.
    """
    try:
        content = unsealed(path.read_bytes())
        runs: dict[str, Meta] = content["runs"]
        known = content["version"] == 1 and all(part_of(entry) and entry["unit"] for entry in runs.values())
    except FileNotFoundError:
        return {}
    except DamagedError as error:
        raise StoreError("damaged_file", _lost(path, site, str(error)), path=path, site=site) from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(
            "unreadable_file", _lost(path, site, type(error).__name__), path=path, site=site, error=type(error).__name__
        ) from error
    if not known:
        raise StoreError("unsupported_file", _lost(path, site, "of another version of medfl"), path=path, site=site)
    return runs


def ledger_of(path: Path) -> Path | None:
    """The ledger that a file in a run's folder is a copy from; None for an account without a ledger, or no file."""
    try:
        ledger = json.loads(path.read_bytes()).get("ledger")
    except (OSError, ValueError):
        return None
    return None if ledger is None else Path(ledger)


def part_of(entry: Mapping[str, Any]) -> Part:
    """The noised steps of an entry."""
    count = int(entry["steps"]) * len(entry["releases"])
    return Part(float(entry["sigma"]), count, float(entry["rate"]), entry["mechanism"] == DISTRIBUTED)


def _lost(path: Path, site: str, why: str) -> str:
    return (
        f"The privacy ledger '{path}' of site '{site}' can't be read ({why}). Without it nobody knows what was "
        "released: put it back from a copy. Nothing is released until then."
    )
