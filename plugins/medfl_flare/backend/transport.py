"""What a carrier between machines needs of a network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from medfl.utils.wire import Blob
from medfl_flare.backend.message_checks import Limits


class Transport(Protocol):
    """Brings messages to sites and their answers back."""

    def listen(self, hear: Callable[[str, bytes], bool], folder: Path, limits: Limits) -> None:
        """Name what reads heartbeats, and what becomes of answers before they are handed over.

        Args:
            hear: (site, heartbeat) to whether the site's work moves. It may be called from any thread and raises
                nothing.
            folder: Where answers may lie while they come. It is made when it is needed.
            limits: Of an answer; a larger one need not be brought.
        """
        ...

    def ask(self, requests: Mapping[str, Blob], patience: float, take: Callable[[str, Blob], None]) -> dict[str, str]:
        """Send each site its message and hand over what each answers, as it comes.

        Args:
            requests: Site to message.
            patience: Seconds of silence after which a site is waited for no more, since its message or since its work
                last moved.
            take: Called with (site, answer); it raises nothing.

        Returns:
            Site to the reason why it did not answer.

        Raises:
            StoreError: If an answer can't be kept here while it comes.
        """
        ...
