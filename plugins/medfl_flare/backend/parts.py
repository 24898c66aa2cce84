"""A message and its answer in parts, so that neither end has more of one in memory than a part, but what it reads.

Who asks for parts is always the site. It fetches the message and then brings its answer; each part is asked for by
where it begins, so that one that was lost is asked for again, and one that came twice changes nothing. The answer grows
in a file at the server. How large it will be nobody has to believe: what is above the limit is not taken.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from medfl.errors import RefusedError, StoreError
from medfl.utils.files import mapped
from medfl.utils.wire import Blob
from medfl_flare.backend.answers import unwritten
from medfl_flare.backend.message_checks import Limits, check_size

PART = 2 * 10**6
"""Bytes of a part: on their way at once, and what a cut costs."""

Ask = Callable[[int, bytes], tuple[int, bytes] | None]
"""Says to the server from where on a part is wanted, or where one begins, with its bytes; brings how many bytes of the
answer the server has, and the part that was wanted. None where the server is out of reach, or wants no more."""


class Exchange:
    """The server's end: a message to a site, and its answer as far as it has come.

    Args:
        message: To the site.
        path: Where the answer grows; no file yet, in a folder that is.
        limits: Of the answer.

    Attributes:
        failed: Why the answer could not be written here; the site is not to blame.
    """

    def __init__(self, message: Blob, path: Path, limits: Limits) -> None:
        self._message, self._path, self._limits = message, path, limits
        self._size, self._lock = 0, threading.Lock()
        self.failed: StoreError | None = None

    def take(self, offset: int, part: bytes) -> tuple[int, bytes]:
        """What `Ask` brings. A part of the answer is taken if it is the next one and within the limit.

        Who fetches the message from its beginning answers anew.
        """
        with self._lock:
            if not part and not offset and self._size > 0:
                self._path.unlink(missing_ok=True)
                self._size = 0
            if part and offset == self._size and offset + len(part) <= self._limits.max_bytes:
                try:
                    with open(self._path, "ab") as file:
                        file.write(part)
                    self._size += len(part)
                except OSError as error:
                    self.failed = unwritten(self._path, error)
            return self._size, b"" if part else bytes(self._message[offset : offset + PART])

    def answer(self, size: int) -> memoryview:
        """The answer, which is in no folder any more.

        Args:
            size: Of how many bytes it is, as the site says.

        Raises:
            RefusedError: If it is above the limit, or not all of it came.
        """
        check_size(size, self._limits)
        if size != self._size or not size:
            raise RefusedError(
                "incomplete_answer",
                f"expected an answer of {size} bytes, as the site says, got {self._size}",
                expected=size,
                found=self._size,
            )
        try:
            return mapped(self._path)
        finally:
            self.close()

    def close(self) -> None:
        """Forget the message, and the answer unless it was read."""
        with self._lock:
            self._message, self._size = b"", -1
            self._path.unlink(missing_ok=True)


def fetch(ask: Ask, size: int, path: Path) -> memoryview | None:
    """The site's end: the message that waits at the server.

    Args:
        ask: Says to the server what is wanted.
        size: Of how many bytes it is.
        path: A file to put it together; its folder must exist. It is gone when this returns.

    Returns:
        The message; None where the server is out of reach, or wants no answer any more.
    """
    try:
        with open(path, "wb") as file:
            while (offset := file.tell()) < size:
                brought = ask(offset, b"")
                if brought is None or not brought[1]:
                    return None
                file.write(brought[1][: size - offset])
        return mapped(path)
    finally:
        path.unlink(missing_ok=True)


def bring(ask: Ask, answer: Blob) -> None:
    """The site's end: bring an answer to the server, as far as it takes it."""
    offset = 0
    while offset < len(answer):
        brought = ask(offset, bytes(answer[offset : offset + PART]))
        if brought is None or brought[0] <= offset:
            return
        offset = brought[0]
