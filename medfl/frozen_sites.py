"""Sites that have stopped to train a part of a model: what the server keeps of them, and what it is worth."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from medfl.aggregation import add_update, subtract
from medfl.contract import Meta, Replies, Server, Tensors
from medfl.wire import prefixed

BLOB = "frozen/"
"""What the server's blobs are called that hold the last part of a frozen site; the site's name follows."""


def freeze(server: Server, name: str, before: Tensors, update: Tensors) -> None:
    """Keep the part of a site as it is after its last update, written once.

    Args:
        server: Keeps it, and the round.
        name: The site.
        before: The common part, which the update is to.
        update: Of the same names.
    """
    server.state.meta.setdefault("frozen", {})[name] = server.round
    server.keep_blob(BLOB + name, {key: add_update(before[key], update[key]) for key in before})


class WithFrozen:
    """Replies in which a frozen site's last part stands for the update that it doesn't send any more.

    Args:
        replies: Of a step.
        server: Keeps the last parts.
        names: Frozen sites whose parts are added, if they replied.
        before: The common part, as the active sites got it.
        prefix: Of the part's names in replies.
    """

    def __init__(self, replies: Replies, server: Server, names: Sequence[str], before: Tensors, prefix: str) -> None:
        self.meta: dict[str, Meta] = replies.meta
        self.missing: list[str] = replies.missing
        self._replies, self._server, self._names = replies, server, frozenset(names)
        self._before, self._prefix = before, prefix

    def __iter__(self) -> Iterator[tuple[str, Tensors]]:
        for name, tensors in self._replies:
            if name in self._names:
                last = self._server.blob(BLOB + name)
                update = {key: subtract(last[key], before) for key, before in self._before.items()}
                tensors = tensors | prefixed(update, self._prefix)
            yield name, tensors

    def __len__(self) -> int:
        return len(self._replies)


def last_change(history: Sequence[Mapping[str, Any]], active: Sequence[str]) -> float:
    """How much the active sites' accuracy changed between the last two rounds that are known; 0 where nobody knows.

    Args:
        history: Rounds in order, each with ``accuracy``: site to accuracy, in [0, 1].
        active: Sites that count.

    Returns:
        The mean over those that were assessed after both rounds.

    Source: FedTPF, equation 9.
    """
    if len(history) < 2:
        return 0.0
    before, after = history[-2]["accuracy"], history[-1]["accuracy"]
    changes = [after[name] - before[name] for name in active if name in before and name in after]
    return math.fsum(changes) / len(changes) if changes else 0.0


def judges(server: Server) -> list[str]:
    """Sites that have validation images, sorted."""
    return [name for name in server.sites if server.facts.get(name, {}).get("validates")]
