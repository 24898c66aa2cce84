"""Replies that lie in files until they are folded."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from medfl.contract import Method, Replies
from medfl.engine.backend import SiteResult
from medfl.engine.encoding import FILTERED, decode_filtered
from medfl.engine.filters import CODEC, decode
from medfl.types import Tensors


class StoredReplies:
    """Replies in name order, read one at a time; iterating again reads them again.

    Args:
        read: The tensors behind an answer, as they left the site.
        answers: Those that were not refused.
        missing: Sites that were ordered and of which there is no reply.
    """

    def __init__(self, read: Callable[[SiteResult], Tensors], results: list[SiteResult], missing: list[str]) -> None:
        self._read = read
        self._answers = {result.site: result for result in sorted(results, key=lambda result: result.site)}
        self.meta = {site: {k: v for k, v in a.meta.items() if k != CODEC} for site, a in self._answers.items()}
        self.missing = sorted(missing)

    def __iter__(self) -> Iterator[tuple[str, Tensors]]:
        for site, result in self._answers.items():
            yield site, decode(self._read(result), result.meta)[0]

    def __len__(self) -> int:
        return len(self._answers)


class DecodedReplies:
    """Replies as the method's sites sent them: its filters are undone, one reply at a time.

    Args:
        method: The method.
        replies: Of a step, as a carrier has them.
    """

    def __init__(self, method: Method, replies: Replies) -> None:
        self._method, self._replies, self.missing = method, replies, replies.missing
        self.meta = {
            site: {key: value for key, value in meta.items() if key != FILTERED} for site, meta in replies.meta.items()
        }

    def __iter__(self) -> Iterator[tuple[str, Tensors]]:
        return map(self._decoded, self._replies)

    def _decoded(self, reply: tuple[str, Tensors]) -> tuple[str, Tensors]:
        site, tensors = reply
        return site, decode_filtered(self._method, tensors, self._replies.meta[site])[0]

    def __len__(self) -> int:
        return len(self._replies)
