"""Images of a call of MONAI's client interface, which may be aborted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch

from medfl.errors import MedflError
from medfl.types import Dataset, Judged, Loaded, Visited


class AbortedError(MedflError):
    """A training or an evaluation was stopped by `MedflAlgo.abort`; nothing of it is kept."""


class Watched:
    """Images that count their batches and give none once a call is aborted."""

    def __init__(self, images: Dataset, stopped: Callable[[], bool], site: str) -> None:
        self._images, self._stopped, self._site = images, stopped, site
        self.class_labels, self.targets, self.batches = images.class_labels, images.targets, 0

    def __len__(self) -> int:
        return len(self._images)

    def batch(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """As `medfl.types.Dataset.batch`.

        Raises:
            AbortedError: If the call was aborted.
        """
        self._count()
        return self._images.batch(rows)

    def _count(self) -> None:
        if self._stopped():
            raise AbortedError(
                "call_aborted",
                f"Site '{self._site}' was told to abort, after {self.batches} batches. Nothing is kept.",
                site=self._site,
                batches=self.batches,
            )
        self.batches += 1


class WatchedVisits(Watched):
    """The same of cases that change at each visit.

    Args:
        images: The cases.
        stopped: Whether the call was aborted.
        site: Whose they are, for the message.
    """

    def __init__(self, images: Visited, stopped: Callable[[], bool], site: str) -> None:
        super().__init__(images, stopped, site)
        self._visited = images

    def visits(self, batches: Iterable[torch.Tensor], stream: int) -> Iterator[Loaded]:
        """As `medfl.types.Visited.visits`.

        Raises:
            AbortedError: If the call was aborted.
        """
        for loaded in self._visited.visits(batches, stream):
            self._count()
            yield loaded

    def judge(self, model: torch.nn.Module, device: str) -> dict[str, float]:
        """As `medfl.types.Judged.judge`; nothing where the cases have no scores of their own."""
        return self._visited.judge(model, device) if isinstance(self._visited, Judged) else {}


def watched(images: Dataset, stopped: Callable[[], bool], site: str) -> Watched:
    """Images that count their batches and give none once `stopped` says so."""
    return WatchedVisits(images, stopped, site) if isinstance(images, Visited) else Watched(images, stopped, site)
