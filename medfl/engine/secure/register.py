"""Register on disk of the uses of a site's secrets: one aggregation in each round, and one round for each model.

A repeated use of a secret would leak an update. A mask that covers two different payloads reveals their difference.
Shares that are revealed for two lists of drop-outs reveal an update. So does the difference of two sums of the same
round over different participants. A server can make a site delete its step files. Therefore the register is written and
flushed to the disk before anything leaves the site, and no entry is ever removed.
"""

from __future__ import annotations

import secrets
from pathlib import Path

from medfl.errors import RefusedError, StoreError
from medfl.records.secret_uses import SecretUse, SecretUses

MODEL = "model"
"""Name of the use in the register under which `model_once` records the model that a round trains."""

RECORDED_DIGITS = 32
"""Number of hexadecimal digits of a digest that are recorded."""


class SecretUseRegister:
    """Register of the uses of one site's secrets in a run.

    Args:
        folder: Folder of the site in the run.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / SecretUses.NAME

    @property
    def nonce(self) -> str:
        """Random digits from which, with the site's own secret, all secrets of this run are derived.

        The first access draws the digits and writes them to the disk.
        """
        known = self._read()
        if known.nonce is not None:
            return known.nonce
        nonce = secrets.token_hex(16)
        known.model_copy(update={"nonce": nonce}).write(self._path)
        return nonce

    def once(self, round_: int, use: str, content: str) -> None:
        """Record a use of a round's secrets. Recording the same use again changes nothing.

        Args:
            round_: The round.
            use: Name of the use, such as ``participants``.
            content: Digest of the content for which the secrets are used, such as the list of participants.

        Raises:
            RefusedError: If this use of the round is recorded with another content.
            StoreError: If the file can't be read or written.
        """
        known, digest = self._read(), content[:RECORDED_DIGITS]
        before = next((entry for entry in known.uses if (entry.round, entry.use) == (round_, use)), None)
        if before is not None and before.digest != digest:
            raise RefusedError(
                "repeated_aggregation",
                f"Round {round_} was aggregated before with other {use}. A site takes part in one aggregation of a "
                "round, as the difference of two could reveal its update. Either the step was computed before with "
                "other last bits (another device, number of threads or version): compute it as before, or start the "
                "run in a new folder. Or the server is not honest.",
                round=round_,
                use=use,
            )
        if before is None:
            uses = (*known.uses, SecretUse(round=round_, use=use, digest=digest))
            known.model_copy(update={"uses": uses}).write(self._path)

    def model_once(self, round_: int, content: str) -> None:
        """Record the model that a round trains, before it is trained.

        Args:
            round_: The round.
            content: Digest of the model's tensors.

        Raises:
            RefusedError: If the round trained another model, or another round trained this one.
            StoreError: If the file can't be read or written.
        """
        for entry in self._read().uses:
            if entry.use == MODEL and entry.digest == content[:RECORDED_DIGITS] and entry.round != round_:
                raise RefusedError(
                    "repeated_model",
                    f"Round {round_} has the same model as round {entry.round}, to the last bit. A site trains a model "
                    "once under secure aggregation, as the difference of two sums could reveal its update. Either "
                    "training changes nothing (no epochs, or a learning rate of 0): end the run before this round. Or "
                    "the server is not honest.",
                    round=round_,
                    earlier=entry.round,
                )
        self.once(round_, MODEL, content)

    def _read(self) -> SecretUses:
        try:
            return SecretUses.read(self._path)
        except StoreError as error:
            if error.code == "missing_file":  # nothing was recorded yet
                return SecretUses()
            raise
