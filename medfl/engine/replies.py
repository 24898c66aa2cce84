"""Replies of a step, read from files one at a time, and decoded before the method aggregates them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from medfl.contract import Method, Replies
from medfl.engine.backend import SiteResult
from medfl.engine.encoding import FILTERS_KEY, decode_filtered
from medfl.engine.filters import CODEC_KEY, decode
from medfl.types import Tensors


class StoredReplies:
    """Replies of a step that are stored in files, sorted by site. Each iteration reads the files again.

    Iteration yields (site, tensors) and undoes the quantisation of the tensors.

    Args:
        read: Function that reads the tensors of a site's reply, as they left the site.
        results: Results of the sites that replied.
        missing: Sites that received a request and sent no usable reply.

    Attributes:
        meta: Maps each site to the metadata of its reply, without the parameters of the quantisation.
        missing: Sites that received a request and sent no usable reply, sorted.
    """

    def __init__(self, read: Callable[[SiteResult], Tensors], results: list[SiteResult], missing: list[str]) -> None:
        self._read = read
        self._answers = {result.site: result for result in sorted(results, key=lambda result: result.site)}
        self.meta = {site: {k: v for k, v in a.meta.items() if k != CODEC_KEY} for site, a in self._answers.items()}
        self.missing = sorted(missing)

    def __iter__(self) -> Iterator[tuple[str, Tensors]]:
        for site, result in self._answers.items():
            yield site, decode(self._read(result), result.meta)[0]

    def __len__(self) -> int:
        return len(self._answers)


class DecodedReplies:
    """Replies of a step, in which the method's own filters (compression of the tensors) are undone one by one.

    Iteration yields (site, tensors).

    Args:
        method: The method.
        replies: Replies of a step as the backend returns them.

    Attributes:
        meta: Maps each site to the metadata of its reply, without the data that undo the filters.
        missing: Sites that received a request and sent no usable reply.
    """

    def __init__(self, method: Method, replies: Replies) -> None:
        self._method, self._replies, self.missing = method, replies, replies.missing
        self.meta = {
            site: {key: value for key, value in meta.items() if key != FILTERS_KEY}
            for site, meta in replies.meta.items()
        }

    def __iter__(self) -> Iterator[tuple[str, Tensors]]:
        return map(self._decode, self._replies)

    def _decode(self, reply: tuple[str, Tensors]) -> tuple[str, Tensors]:
        site, tensors = reply
        return site, decode_filtered(self._method, tensors, self._replies.meta[site])[0]

    def __len__(self) -> int:
        return len(self._replies)
