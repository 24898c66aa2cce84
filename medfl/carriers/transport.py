"""What a carrier between machines needs of a network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol


class Transport(Protocol):
    """Brings messages to sites and their answers back."""

    def listen(self, hear: Callable[[str, bytes], bool]) -> None:
        """Name what reads heartbeats.

        Args:
            hear: (site, heartbeat) to whether the site's work moves. It may be called from any thread and raises
                nothing.
        """
        ...

    def ask(self, requests: Mapping[str, bytes], patience: float, take: Callable[[str, bytes], None]) -> dict[str, str]:
        """Send each site its message and hand over what each answers, as it comes.

        Args:
            requests: Site to message.
            patience: Seconds of silence after which a site is waited for no more, since its message or since its work
                last moved.
            take: Called with (site, answer); it raises nothing.

        Returns:
            Site to the reason why it did not answer.
        """
        ...
