"""Data sets whose images, or whatever stands in their place, are in memory, and data sets that are put together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch.utils.data import ConcatDataset

from medfl.errors import ContractError
from medfl.objectives import Objective
from medfl.types import Dataset

T = TypeVar("T")


class Pooled:
    """Several data sets as one, addressed by row; for methods that pool."""

    def __init__(self, parts: list[Dataset]) -> None:
        self._parts = parts
        self._ends = ConcatDataset.cumsum(parts)
        labels = [part.class_labels for part in parts]
        known = [each for each in labels if each is not None]
        self.class_labels = torch.cat(known) if len(known) == len(parts) else None
        self.patients = joined([patients_of(part) for part in parts], [len(part) for part in parts])

    def __len__(self) -> int:
        return self._ends[-1]

    def batch(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and targets of rows over all parts, in the order asked for."""
        batches, back = self._parts_of(rows, lambda part, places: part.batch(places))
        inputs = torch.cat([inputs for inputs, _ in batches])[back]
        return inputs, torch.cat([targets for _, targets in batches])[back]

    def targets(self, rows: torch.Tensor) -> torch.Tensor:
        """The targets of rows over all parts, in the order asked for."""
        parts, back = self._parts_of(rows, lambda part, places: part.targets(places))
        return torch.cat(parts)[back]

    def _parts_of(self, rows: torch.Tensor, take: Callable[[Dataset, torch.Tensor], T]) -> tuple[list[T], torch.Tensor]:
        """What is taken of each part that has some of the rows, and which place of theirs each row has."""
        owner = torch.bucketize(rows, torch.tensor(self._ends), right=True)
        taken, order = [], []
        for index in owner.unique().tolist() or [0]:
            places = (owner == index).nonzero(as_tuple=True)[0]
            start = self._ends[index - 1] if index else 0
            taken.append(take(self._parts[index], rows[places] - start))
            order.append(places)
        return taken, torch.cat(order).argsort()


def pool(parts: Sequence[Dataset]) -> Dataset:
    """Return several data sets as one, addressed by row.

    A data set that defines ``pooled_with`` decides itself, so that cases that change at each visit keep doing so.

    Args:
        parts: Data sets to pool, at least one.

    Raises:
        DataError: If the parts do not fit together.
    """
    for part in parts:
        pooled_with: Callable[[Sequence[Dataset]], Dataset] | None = getattr(part, "pooled_with", None)
        if pooled_with is not None:
            return pooled_with(parts)
    return Pooled(list(parts))


def labels_in(targets: torch.Tensor) -> torch.Tensor | None:
    """Targets as class labels, which they are if each is one whole number; else None."""
    return targets if targets.dim() == 1 and not targets.is_floating_point() else None


def labels_of(data: Dataset) -> torch.Tensor:
    """The class of each case, (n,), int64.

    Raises:
        ContractError: If cases are of no class. A method that asks this says so in its `needs`.
    """
    if data.class_labels is None:
        raise ContractError(
            "missing_class_labels",
            "Expected cases that are each of a class, got some that are not: see `Method.needs`.",
        )
    return data.class_labels


def all_targets(data: Dataset) -> torch.Tensor:
    """The targets of all cases of a data set, (n, ...)."""
    return data.targets(torch.arange(len(data)))


def countable(data: Dataset, objective: Objective) -> torch.Tensor:
    """The targets of all cases for what counts them (`Objective.counts`, `Objective.teaches`), (n, ...).

    Masks say nothing that is counted, may be of unlike shapes, and are large: of them it is (n, 0).
    """
    return torch.empty(len(data), 0) if objective.in_space else all_targets(data)


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
        self.class_labels: torch.Tensor | None = torch.empty(0, dtype=torch.int64)

    def __len__(self) -> int:
        return 0

    def batch(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """There is nothing to take."""
        raise IndexError("this split has no images")

    def targets(self, rows: torch.Tensor) -> torch.Tensor:
        """None."""
        return torch.empty(0, dtype=torch.int64)


class TensorData:
    """Rows of a tensor with their targets.

    Args:
        images: Shape (n, ...), float32: images, or features of them, or rows of a table.
        targets: Shape (n, ...); integers of shape (n,) are class labels.
    """

    def __init__(self, images: torch.Tensor, targets: torch.Tensor) -> None:
        self.images, self._targets = images, targets
        self.class_labels = labels_in(targets)

    def __len__(self) -> int:
        return len(self._targets)

    def batch(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The given rows and their targets."""
        return self.images[rows], self._targets[rows]

    def targets(self, rows: torch.Tensor) -> torch.Tensor:
        """The targets of the given rows."""
        return self._targets[rows]
