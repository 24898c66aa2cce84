"""Transfer of a message and its reply in parts, so that the transport has at most one part of them in memory.

The site always initiates the transfer. It fetches the message and then sends its reply. A part is identified by its
offset, so a lost part can be requested again, and a duplicate has no effect. The reply grows in a file at the server.
The server does not rely on the announced size: it ignores every byte above the limit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from medfl.errors import RefusedError, StoreError
from medfl.utils.files import map_file
from medfl.utils.wire import Blob
from medfl_flare.backend.message_checks import Limits, check_size
from medfl_flare.backend.site_replies import unwritable_reply_error

PART_BYTES = 2 * 10**6
"""Size of a part in bytes. A part travels in one aux message, and an interrupted connection costs at most one part."""

PartExchange = Callable[[int, bytes], tuple[int, bytes] | None]
"""Exchange of one part with the server, called by the site with (offset, part).

An empty part requests the part of the message at the offset; any other part belongs to the reply and starts there. The
result contains the number of reply bytes that the server has, and the requested part. It is None if the server can't be
reached or wants no reply any more."""


class MessageTransfer:
    """The server's end of one transfer: a message to a site, and the received bytes of its reply.

    Args:
        message: Message to the site.
        path: File for the reply. The file must not exist, its folder must.
        limits: Limits of the reply.

    Attributes:
        failed: Error of a reply that the server could not write, or None. The site is not at fault.
    """

    def __init__(self, message: Blob, path: Path, limits: Limits) -> None:
        self._message, self._path, self._limits = message, path, limits
        self._size, self._lock = 0, threading.Lock()
        self.failed: StoreError | None = None

    def exchange_part(self, offset: int, part: bytes) -> tuple[int, bytes]:
        """Store a part of the reply, or return a part of the message; see `PartExchange` for arguments and result.

        A part is stored only if it is the next one and within the limit. If the site requests the first part of the
        message again, the reply is deleted, as the site will send it again.
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
                    self.failed = unwritable_reply_error(self._path, error)
            return self._size, b"" if part else bytes(self._message[offset : offset + PART_BYTES])

    def answer(self, size: int) -> memoryview:
        """Return the complete reply and delete its file.

        Args:
            size: Size of the reply in bytes, as the site announced it.

        Raises:
            RefusedError: If the reply is above the limit, or if it is incomplete.
        """
        check_size(size, self._limits)
        if size != self._size or not size:
            raise RefusedError(
                "incomplete_answer",
                f"expected a reply of {size} bytes, as the site announced, got {self._size}",
                expected=size,
                found=self._size,
            )
        try:
            return map_file(self._path)
        finally:
            self.close()

    def close(self) -> None:
        """Discard the message, and delete the reply's file."""
        with self._lock:
            self._message, self._size = b"", -1
            self._path.unlink(missing_ok=True)


def fetch_message(exchange_part: PartExchange, size: int, path: Path) -> memoryview | None:
    """Fetch the message that waits at the server. The site calls this function.

    Args:
        exchange_part: Function that exchanges one part with the server.
        size: Size of the message in bytes.
        path: File in which the message is assembled; its folder must exist. The file is deleted before the function
            returns.

    Returns:
        The message, or None if the server can't be reached or wants no reply any more.
    """
    try:
        with open(path, "wb") as file:
            while (offset := file.tell()) < size:
                response = exchange_part(offset, b"")
                if response is None or not response[1]:
                    return None
                file.write(response[1][: size - offset])
        return map_file(path)
    finally:
        path.unlink(missing_ok=True)


def send_reply(exchange_part: PartExchange, answer: Blob) -> None:
    """Send a reply to the server until the server has it or accepts no more. The site calls this function."""
    offset = 0
    while offset < len(answer):
        response = exchange_part(offset, bytes(answer[offset : offset + PART_BYTES]))
        if response is None or response[0] <= offset:
            return
        offset = response[0]
