"""Replies that lie in files until they are folded."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from medfl.core.carrier import Answer
from medfl.core.filters import CODEC, decode
from medfl.types import Tensors


class StoredReplies:
    """Replies in name order, read one at a time; iterating again reads them again.

    Args:
        read: The tensors behind an answer, as they left the site.
        answers: Those that were not refused.
        missing: Sites that were ordered and of which there is no reply.
    """

    def __init__(self, read: Callable[[Answer], Tensors], answers: list[Answer], missing: list[str]) -> None:
        self._read = read
        self._answers = {answer.site: answer for answer in sorted(answers, key=lambda answer: answer.site)}
        self.meta = {site: {k: v for k, v in a.meta.items() if k != CODEC} for site, a in self._answers.items()}
        self.missing = sorted(missing)

    def __iter__(self) -> Iterator[tuple[str, Tensors]]:
        for site, answer in self._answers.items():
            yield site, decode(self._read(answer), answer.meta)[0]

    def __len__(self) -> int:
        return len(self._answers)
