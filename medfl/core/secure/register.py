"""Durable record of a site's uses of its secrets: one aggregation in a round, and one round for a model.

A mask that covers two different payloads uncovers their difference, shares that are revealed for two lists of drop-outs
uncover an update, and so does the difference of two sums of the same round over different participants. A server can
make a site forget its step files. So the register is written and flushed to the disk before anything leaves, and
nothing is ever taken out of it.
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
MODEL = "model"
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

    def once(self, round_: int, use: str, content: str) -> None:
        """Record a use of a round's secrets. Recording the same use again changes nothing.

        Args:
            round_: The round.
            use: What is recorded, such as ``participants``.
            content: A hash of it.

        Raises:
            RefusedError: If the round was used for something else.
            StoreError: If the file can't be read or written.
        """
        entries, key = self._read(), f"{round_} {use}"
        if entries.get(key, content[:DIGITS]) != content[:DIGITS]:
            raise RefusedError(
                "repeated_aggregation",
                f"Round {round_} was aggregated before with other {use}. A site takes part in one aggregation of a "
                "round, as the difference of two could uncover its update. Either the step was computed before with "
                "other last bits (another device, number of threads or version): compute it as before, or start the "
                "run in a new folder. Or the server is not honest.",
                round=round_,
                use=use,
            )
        if key not in entries:
            write_json(self._path, entries | {key: content[:DIGITS]})

    def model_once(self, round_: int, content: str) -> None:
        """Record the model that a round trains, before it is trained.

        Args:
            round_: The round.
            content: A hash of the model's tensors.

        Raises:
            RefusedError: If the round trained another model, or another round trained this one.
            StoreError: If the file can't be read or written.
        """
        for key, value in self._read().items():
            earlier, _, use = key.partition(" ")
            if use == MODEL and value == content[:DIGITS] and earlier != str(round_):
                raise RefusedError(
                    "repeated_model",
                    f"Round {round_} has the same model as round {earlier}, to the last bit. A site trains a model "
                    "once under secure aggregation, as the difference of two sums could uncover its update. Either "
                    "training changes nothing (no epochs, or a learning rate of 0): end the run before this round. Or "
                    "the server is not honest.",
                    round=round_,
                    earlier=int(earlier),
                )
        self.once(round_, MODEL, content)

    def _read(self) -> dict[str, str]:
        try:
            entries: dict[str, str] = json.loads(self._path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise StoreError(
                "unreadable_file",
                f"'{self._path}' can't be read ({type(error).__name__}). Without it nobody knows what was masked: put "
                "it back from a copy, or start the run in a new folder.",
                path=self._path,
                cause=type(error).__name__,
            ) from error
        return entries
