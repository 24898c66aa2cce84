"""Data sets that stop a training or an evaluation when MONAI's client interface aborts it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch

from medfl.errors import MedflError
from medfl.types import AugmentingDataset, Dataset, LoadedBatch, is_augmenting, is_self_scoring


class AbortedError(MedflError):
    """Error that stops a training or an evaluation after `MedflAlgo.abort` was called. Its results are not stored."""


class AbortableDataset:
    """Data set that counts its batches, and raises at the next batch after the engine aborted the call.

    Args:
        images: Underlying data set.
        is_aborted: Function that returns whether the call was aborted.
        site: Name of the site, for the message.

    Attributes:
        batches: Number of batches so far.
        class_labels: Class labels of the underlying data set; None if it has none.
        targets: Method `targets` of the underlying data set, which returns the targets of rows.
    """

    def __init__(self, images: Dataset, is_aborted: Callable[[], bool], site: str) -> None:
        self._images, self._is_aborted, self._site = images, is_aborted, site
        self.class_labels, self.targets, self.batches = images.class_labels, images.targets, 0

    def __len__(self) -> int:
        return len(self._images)

    def batch(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the inputs and targets of rows, and count the batch.

        Raises:
            AbortedError: If the call was aborted.
        """
        self._count_batch()
        return self._images.batch(rows)

    def _count_batch(self) -> None:
        """Count a batch, or raise if the call was aborted."""
        if self._is_aborted():
            raise AbortedError(
                "call_aborted",
                f"Site '{self._site}' stopped after {self.batches} batches, because the engine aborted the call. "
                "Nothing is stored.",
                site=self._site,
                batches=self.batches,
            )
        self.batches += 1


class AbortableVisits(AbortableDataset):
    """Abortable data set for cases that are transformed at random and differ at each visit, that is, each load.

    Args:
        images: Underlying data set.
        is_aborted: Function that returns whether the call was aborted.
        site: Name of the site, for the message.
    """

    def __init__(self, images: AugmentingDataset, is_aborted: Callable[[], bool], site: str) -> None:
        super().__init__(images, is_aborted, site)
        self._visited = images

    def visits(self, batches: Iterable[torch.Tensor], stream: int, skip: int = 0) -> Iterator[LoadedBatch]:
        """Load batches with new random draws, and yield and count each in turn.

        Args:
            batches: Rows of each batch.
            stream: Seed of the random draws.
            skip: Number of batches at the beginning that count as visits, but are not loaded.

        Raises:
            AbortedError: If the call was aborted.
        """
        for loaded in self._visited.visits(batches, stream, skip):
            self._count_batch()
            yield loaded

    def compute_metrics(self, model: torch.nn.Module, device: str) -> dict[str, float]:
        """Return scores of a model by name that the underlying data set computes itself, or {} if it computes none."""
        return self._visited.compute_metrics(model, device) if is_self_scoring(self._visited) else {}


def make_abortable(images: Dataset, is_aborted: Callable[[], bool], site: str) -> AbortableDataset:
    """Wrap a data set so that it raises `AbortedError` at the next batch after `is_aborted` returns True."""
    if is_augmenting(images):
        return AbortableVisits(images, is_aborted, site)
    return AbortableDataset(images, is_aborted, site)
