"""Pseudonyms of patients and UIDs, and shifts of dates, all computed from a secret key of the site.

Each pseudonym is an HMAC-SHA256 of the original value. The same value always has the same pseudonym, and no table of
originals is needed. Whoever has the key and a list of candidate values can link pseudonyms to patients. The key is
therefore kept outside the store, readable by its owner only.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import re
import secrets
import uuid
from pathlib import Path

from medfl.errors import DataError, StoreError

KEY_BYTES = 32
"""Length of the key in bytes."""

MIN_SHIFT_DAYS, MAX_SHIFT_DAYS = 365, 3650
"""Smallest and largest number of days by which a patient's dates move into the past."""

DEFAULT_KEY = Path("~/.config/medfl/pseudonyms.key")
"""Path of the key if the user names none. All stores of the user then share pseudonyms."""


class Pseudonyms:
    """Functions from original values to pseudonyms.

    Args:
        key: Secret key of `KEY_BYTES` bytes.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key

    def patient(self, patient_id: str) -> str:
        """Return the pseudonym of a patient: ``P`` and 16 letters or digits (80 bits)."""
        digest = self._digest("patient", patient_id.strip())
        return "P" + base64.b32encode(digest[:10]).decode("ascii")

    def uid(self, uid: str) -> str:
        """Return the pseudonym of a UID: a valid UID below the root 2.25, made from 122 bits of the HMAC."""
        digest = self._digest("uid", uid.strip("\0 "))
        return f"2.25.{uuid.UUID(bytes=digest[:16], version=4).int}"

    def shift_days(self, patient_id: str) -> int:
        """Return the number of days that all dates of a patient move into the past."""
        number = int.from_bytes(self._digest("date shift", patient_id.strip())[:8], "big")
        return MIN_SHIFT_DAYS + number % (MAX_SHIFT_DAYS - MIN_SHIFT_DAYS + 1)

    def fingerprint(self) -> str:
        """Return 16 hexadecimal digits that identify the key without revealing it."""
        return self._digest("fingerprint", "").hex()[:16]

    def _digest(self, purpose: str, value: str) -> bytes:
        """Return the HMAC-SHA256 of a value. The purpose keeps pseudonyms of different kinds independent."""
        return hmac.new(self._key, f"medfl {purpose}\0{value}".encode(), hashlib.sha256).digest()


def open_key(path: Path, store: Path) -> tuple[Pseudonyms, bool]:
    """Read the site's key. If the file does not exist, create it with a random key that only its owner can read.

    Args:
        path: Path of the key file.
        store: Folder of the store, which must not contain the key.

    Returns:
        The pseudonyms, and whether the key was created.

    Raises:
        DataError: If the file is in the store, can be read by other users, or is no key.
        StoreError: If the file can't be read or created.
    """
    path = path.expanduser()
    if path.resolve().is_relative_to(store.resolve()):
        raise DataError(
            "key_in_store",
            f"The key '{path}' is inside the store '{store}'. Whoever gets the store could then identify the "
            "patients. Choose a path outside the store with --key.",
            path=path,
            store=store,
        )
    try:
        created = _create_key(path)
        mode, text = path.stat().st_mode & 0o777, path.read_bytes()
    except OSError as error:
        raise StoreError(
            "unusable_key",
            f"The key '{path}' can't be read or created: {error.strerror}. Change the path's permissions, or choose "
            "another path with --key.",
            path=path,
            reason=error.strerror,
        ) from None
    if mode & 0o077:
        raise DataError(
            "open_key_file",
            f"Other users can read the key '{path}': expected the permissions 600, got {mode:o}. Run: chmod 600 {path}",
            path=path,
            mode=f"{mode:o}",
        )
    if re.fullmatch(rb"[0-9a-f]{%d}\n?" % (2 * KEY_BYTES), text) is None:
        raise DataError(
            "invalid_key",
            f"'{path}' is not a key: expected {2 * KEY_BYTES} hexadecimal digits. Restore the key from a copy; a new "
            "key would give the same patients other pseudonyms.",
            path=path,
        )
    return Pseudonyms(bytes.fromhex(text.decode("ascii"))), created


def _create_key(path: Path) -> bool:
    """Create the key file if it does not exist. Return whether it was created.

    The complete file is linked to its name, so that a killed process never leaves a part of a key.
    """
    if path.exists():
        return False
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_hex(KEY_BYTES).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        os.link(temporary, path)  # fails if another process has created the key in the meantime
    except FileExistsError:
        return False
    finally:
        temporary.unlink(missing_ok=True)
    return True
