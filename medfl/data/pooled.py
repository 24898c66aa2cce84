"""Data sets whose images, or whatever stands in their place, are in memory, and data sets that are put together."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.utils.data import ConcatDataset

from medfl.types import Dataset


class Pooled:
    """Several data sets as one, addressed by row; for methods that pool."""

    def __init__(self, parts: list[Dataset]) -> None:
        self._parts = parts
        self._ends = ConcatDataset.cumsum(parts)
        self.labels = torch.cat([part.labels for part in parts])
        self.patients = joined([patients_of(part) for part in parts], [len(part) for part in parts])

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Images and labels of rows over all parts, in the order asked for."""
        owner = torch.bucketize(rows, torch.tensor(self._ends), right=True)
        batches = []
        order = []
        for index in owner.unique().tolist() or [0]:
            places = (owner == index).nonzero(as_tuple=True)[0]
            start = self._ends[index - 1] if index else 0
            batches.append(self._parts[index].batch(rows[places] - start))
            order.append(places)
        back = torch.cat(order).argsort()
        images = torch.cat([images for images, _ in batches])[back]
        return images, torch.cat([labels for _, labels in batches])[back]


def patients_of(data: Dataset) -> torch.Tensor | None:
    """Numbers that images of one patient share, (n,), int64; None if each image counts as a patient of its own."""
    patients: torch.Tensor | None = getattr(data, "patients", None)
    return patients


def count_patients(data: Dataset) -> int:
    """How many patients there are; as many as images where they are not known."""
    patients = patients_of(data)
    return len(data) if patients is None else len(patients.unique())


def joined(parts: Sequence[torch.Tensor | None], sizes: Sequence[int]) -> torch.Tensor | None:
    """Patients of several sets one after the other; those of two sets are two, whatever their numbers.

    Args:
        parts: Of each set, as `patients_of` gives them.
        sizes: Images of each set.

    Returns:
        None where no set has any.
    """
    if all(part is None for part in parts):
        return None
    shifted, start = [], 0
    for part, size in zip(parts, sizes, strict=True):
        numbers = torch.arange(size) if part is None else part
        shifted.append(numbers + start)
        start += size if part is None else int(part.max()) + 1
    return torch.cat(shifted)


class Empty:
    """A split without images."""

    def __init__(self) -> None:
        self.labels = torch.empty(0, dtype=torch.int64)

    def __len__(self) -> int:
        return 0

    def batch(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """There is nothing to take."""
        raise IndexError("this split has no images")


class TensorData:
    """Rows of a tensor with their labels.

    Args:
        images: Shape (n, ...), float32: images, or features of them.
        labels: Shape (n,), int64.
    """

    def __init__(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The given rows and their labels."""
        return self.images[rows], self.labels[rows]
