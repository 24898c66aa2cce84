"""The interface between the server's backend and the network that carries its messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from medfl.utils.wire import Blob
from medfl_flare.backend.message_checks import Limits


class Transport(Protocol):
    """Transport of the server's messages to sites and of their replies."""

    def listen(self, on_heartbeat: Callable[[str, bytes], bool], folder: Path, limits: Limits) -> None:
        """Set the handler of heartbeats, and the folder and limits of incoming replies.

        Args:
            on_heartbeat: Function that receives (site, heartbeat) and returns whether the site's work made progress.
                The transport may call it from any thread. It raises nothing.
            folder: Folder for replies while they arrive. The transport creates it when it needs it.
            limits: Limits of a reply. The transport need not fetch a larger one.
        """
        ...

    def ask(
        self, requests: Mapping[str, Blob], patience: float, on_reply: Callable[[str, Blob], None]
    ) -> dict[str, str]:
        """Send each site its message, wait for the replies, and pass each complete reply to `on_reply`.

        Args:
            requests: Maps each site to its message.
            patience: Seconds of silence after which the transport stops waiting for a site. Silence starts with the
                message and starts again whenever the site's work makes progress.
            on_reply: Function that receives (site, reply). It raises nothing.

        Returns:
            Maps each site that did not reply to the reason.

        Raises:
            StoreError: If a reply can't be stored at the server while it arrives.
        """
        ...
