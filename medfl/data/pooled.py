"""Data sets in memory, concatenated data sets, and helpers that read labels, targets and patients of a data set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch.utils.data import ConcatDataset

from medfl.errors import ContractError
from medfl.objectives import Objective
from medfl.types import Dataset

T = TypeVar("T")
"""Result of a function that is called for each part of a concatenation."""


class PooledDataset:
    """Concatenation of several data sets, for methods that train on pooled data.

    Args:
        parts: Data sets to concatenate, at least one.

    Attributes:
        class_labels: Class label of each case, shape (n,); None if any part has no class labels.
        patients: Patient number of each case, shape (n,); None if no part has any.
    """

    def __init__(self, parts: list[Dataset]) -> None:
        self._parts = parts
        self._ends = ConcatDataset.cumsum(parts)
        labels = [part.class_labels for part in parts]
        present = [part_labels for part_labels in labels if part_labels is not None]
        self.class_labels = torch.cat(present) if len(present) == len(parts) else None
        self.patients = concatenate_patients([patients_of(part) for part in parts], [len(part) for part in parts])

    def __len__(self) -> int:
        return self._ends[-1]

    def batch(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the inputs and targets of rows of the concatenation, in the requested order."""
        batches, order = self._collect(rows, lambda part, places: part.batch(places))
        inputs = torch.cat([inputs for inputs, _ in batches])[order]
        return inputs, torch.cat([targets for _, targets in batches])[order]

    def targets(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the targets of rows of the concatenation, in the requested order."""
        parts, order = self._collect(rows, lambda part, places: part.targets(places))
        return torch.cat(parts)[order]

    def _collect(self, rows: torch.Tensor, take: Callable[[Dataset, torch.Tensor], T]) -> tuple[list[T], torch.Tensor]:
        """Call `take` for each data set that contains some of the rows.

        Args:
            rows: Rows of the concatenation, shape (B,).
            take: Function of a data set and row positions in it.

        Returns:
            The results, and an index that brings their concatenation into the order of `rows`.
        """
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

    If a data set has a method ``pooled_with``, that method does the pooling. Data sets with random transforms use it,
    so that cases still change at each visit.

    Args:
        parts: Data sets to pool, at least one.

    Raises:
        DataError: If the parts do not fit together.
    """
    for part in parts:
        pooled_with: Callable[[Sequence[Dataset]], Dataset] | None = getattr(part, "pooled_with", None)
        if pooled_with is not None:
            return pooled_with(parts)
    return PooledDataset(list(parts))


def as_class_labels(targets: torch.Tensor) -> torch.Tensor | None:
    """Return the targets if they are class labels, that is one integer per case; otherwise None."""
    return targets if targets.dim() == 1 and not targets.is_floating_point() else None


def labels_of(data: Dataset) -> torch.Tensor:
    """Return the class label of each case, shape (n,), int64.

    Raises:
        ContractError: If cases have no class label. A method that calls this must declare it in its `needs`.
    """
    if data.class_labels is None:
        raise ContractError(
            "missing_class_labels",
            "Expected one class label for each case, got data without class labels: see `Method.needs`.",
        )
    return data.class_labels


def all_targets(data: Dataset) -> torch.Tensor:
    """Return the targets of all cases of a data set, (n, ...)."""
    return data.targets(torch.arange(len(data)))


def countable_targets(data: Dataset, objective: Objective) -> torch.Tensor:
    """Return the targets of all cases, (n, ...), for an objective that counts targets before a run.

    Masks are large, may differ in shape and are never counted. For objectives with masks the result is empty, (n, 0).
    """
    return torch.empty(len(data), 0) if objective.has_spatial_targets else all_targets(data)


def patients_of(data: Dataset) -> torch.Tensor | None:
    """Return a patient number for each case, shape (n,), int64; None if each image counts as a patient of its own."""
    patients: torch.Tensor | None = getattr(data, "patients", None)
    return patients


def count_patients(data: Dataset) -> int:
    """Return the number of patients, or the number of images if patients are unknown."""
    patients = patients_of(data)
    return len(data) if patients is None else len(patients.unique())


def concatenate_patients(parts: Sequence[torch.Tensor | None], sizes: Sequence[int]) -> torch.Tensor | None:
    """Concatenate the patient numbers of several data sets. Patients of different data sets get different numbers.

    Args:
        parts: Patient numbers of each data set, as `patients_of` returns them.
        sizes: Number of images of each data set.

    Returns:
        Patient numbers of the concatenated data sets, shape (n,), int64; None if no data set has any.
    """
    if all(part is None for part in parts):
        return None
    shifted, start = [], 0
    for part, size in zip(parts, sizes, strict=True):
        numbers = torch.arange(size) if part is None else part
        shifted.append(numbers + start)
        start += size if part is None else int(part.max()) + 1
    return torch.cat(shifted)


class EmptyDataset:
    """Data set without cases.

    Attributes:
        class_labels: Empty tensor, shape (0,), int64.
    """

    def __init__(self) -> None:
        self.class_labels: torch.Tensor | None = torch.empty(0, dtype=torch.int64)

    def __len__(self) -> int:
        return 0

    def batch(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Raise IndexError, because there are no rows."""
        raise IndexError("this split has no images")

    def targets(self, rows: torch.Tensor) -> torch.Tensor:
        """Return an empty tensor, shape (0,), int64."""
        return torch.empty(0, dtype=torch.int64)


class TensorData:
    """Data set in memory: rows of a tensor with their targets.

    Args:
        images: Inputs, shape (n, ...), float32: images, features of images, or rows of a table.
        targets: Targets, shape (n, ...); integers of shape (n,) are class labels.

    Attributes:
        images: Inputs, as given.
        class_labels: Class label of each row, shape (n,); None if the targets are no class labels.
    """

    def __init__(self, images: torch.Tensor, targets: torch.Tensor) -> None:
        self.images, self._targets = images, targets
        self.class_labels = as_class_labels(targets)

    def __len__(self) -> int:
        return len(self._targets)

    def batch(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the inputs and targets of the given rows."""
        return self.images[rows], self._targets[rows]

    def targets(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the targets of the given rows."""
        return self._targets[rows]
