"""What site and server say to each other in a drill, beside the messages of a run."""

from __future__ import annotations

import json
from typing import Any

from medfl.errors import RefusedError
from medfl.types import Meta

TOPIC = "medfl.drill"
"""Of NVFlare's messages from a site to the server in a drill."""

COMPONENT: Meta = {"id": "medfl_drills", "path": "medfl_flare.drill.component.Drills", "args": {}}
"""The part of a server's process that sites drill with, in its ``local/resources.json``; no job may name it."""

KEY, KIND, BLOB = "key", "kind", "blob"
"""What stands in such a message: the drill's name, what is said, and what goes with it."""

BEGIN, ANSWER, LINE, LEAVE = "begin", "answer", "line", "leave"
"""What a site says: its wish as JSON, an answer to the run's last message (empty where it only waits), numbers to
measure the line with, and that it is over."""

ASKS, WAIT, OVER, REFUSED = "asks", "wait", "over", "refused"
"""What the server says: the run's next message, that there is none yet, how the run ended as JSON, and why not."""

MAX_WISH = 65536
"""Bytes of a wish."""

MAX_LINE = 32 * 10**6
"""Bytes that are sent one way to measure the line, at most."""


def wish(raw: bytes) -> tuple[str, str, list[str]]:
    """Site, bundle and methods of a wish, from bytes that nobody has looked at yet.

    Raises:
        RefusedError: If it is none.
    """
    try:
        content: Any = json.loads(raw) if len(raw) <= MAX_WISH else None
        site, bundle, methods = content["site"], content["bundle"], content["methods"]
        if all(isinstance(text, str) for text in (site, bundle, *methods)) and isinstance(methods, list):
            return site, bundle, methods
    except (ValueError, TypeError, LookupError, RecursionError):
        pass
    raise RefusedError(
        "invalid_message",
        "expected the wish for a drill: a site, a bundle and methods; both sides need the same version",
        expected=("site", "bundle", "methods"),
    )
