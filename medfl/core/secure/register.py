"""What a site did with its secrets, so that it never does it a second time with something else.

A mask that covers two unlike payloads uncovers their difference, and shares that are revealed for two lists of
drop-outs uncover an update. Step files are answered from, but a server could ask so that old ones are forgotten; so
this file is written, flushed to the disk, before anything leaves, and nothing is ever taken out of it.
"""

from __future__ import annotations

import json
import secrets
from pathlib import Path

from medfl.errors import RefusedError, StoreError
from medfl.utils.files import write_json

FILE = "secure_aggregation.json"
"""In a site's folder of a run."""

NONCE = "nonce"
DIGITS = 32
"""Of a hash that are kept."""


class Register:
    """One site's register of a run.

    Args:
        folder: The site's folder of the run.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE

    @property
    def nonce(self) -> str:
        """Random digits that all secrets of this run in this folder are made from, beside the site's own secret."""
        entries = self._read()
        if NONCE not in entries:
            entries[NONCE] = secrets.token_hex(16)
            write_json(self._path, entries)
        return entries[NONCE]

    def once(self, turn: int, use: str, content: str) -> None:
        """Note a use of an aggregation's secrets; the same one again changes nothing.

        Args:
            turn: The aggregation.
            use: What they are used for.
            content: A hash of what for.

        Raises:
            RefusedError: If they were used for something else.
            StoreError: If the file can't be read or written.
        """
        entries, key = self._read(), f"{turn} {use}"
        if entries.get(key, content[:DIGITS]) != content[:DIGITS]:
            raise RefusedError(
                f"The secrets of aggregation {turn} were used before for other {use}, and a second use would uncover "
                "what they hide. Either the step was computed before with other last bits (another device, number of "
                "threads or version): compute it as before, or start the run in a new folder. Or the server is not "
                "honest."
            )
        if key not in entries:
            write_json(self._path, entries | {key: content[:DIGITS]})

    def _read(self) -> dict[str, str]:
        try:
            entries: dict[str, str] = json.loads(self._path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise StoreError(
                f"'{self._path}' can't be read ({type(error).__name__}). Without it nobody knows what was masked: put "
                "it back from a copy, or start the run in a new folder."
            ) from error
        return entries
