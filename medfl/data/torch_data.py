"""Adapt map-style PyTorch data sets to `medfl.types.Dataset`."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch.utils.data import IterableDataset, TensorDataset, default_collate

from medfl.data.pooled import TensorData, as_class_labels
from medfl.errors import DataError
from medfl.types import Dataset


class PairDataset(Protocol):
    """Interface of a map-style data set of ``(input, target)`` pairs. PyTorch's own base class declares no length."""

    def __len__(self) -> int: ...

    def __getitem__(self, row: int) -> tuple[Any, Any]: ...


class TorchData:
    """Adapter that makes a map-style data set of ``(input, target)`` pairs a `medfl.types.Dataset`.

    The constructor reads all targets once. Random transforms should be the task's `augmentation` instead of part of the
    data set: random draws inside the data set are not reproduced when a run is resumed.

    Args:
        data: Data set to adapt. Inputs and targets are numbers, arrays or tensors; all inputs have one shape, and all
            targets have one shape.

    Attributes:
        class_labels: Class label of each row, shape (n,); None if the targets are no class labels.
    """

    def __init__(self, data: PairDataset) -> None:
        self._data = data
        self._targets = default_collate([torch.as_tensor(self._data[row][1]) for row in range(len(self._data))])
        self.class_labels = as_class_labels(self._targets)

    def __len__(self) -> int:
        return len(self._data)

    def batch(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the inputs (B, ...), float32, and targets (B, ...) of rows (B,)."""
        inputs = default_collate([torch.as_tensor(self._data[row][0]) for row in rows.tolist()])
        return inputs.float(), self._targets[rows]

    def targets(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the targets (B, ...) of rows (B,)."""
        return self._targets[rows]


def as_dataset(data: Any, where: str) -> Dataset:
    """Return a PyTorch or medfl data set as a `medfl.types.Dataset`.

    Args:
        data: Map-style data set of ``(input, target)`` pairs, or a `medfl.types.Dataset`, which is returned unchanged.
        where: Name of the data, for messages.

    Raises:
        DataError: If `data` is neither, or is empty.
    """
    if isinstance(data, Dataset):
        return data
    if isinstance(data, TensorDataset) and len(data.tensors) == 2:
        return TensorData(data.tensors[0].float(), data.tensors[1])
    sized = hasattr(data, "__len__") and hasattr(data, "__getitem__") and not isinstance(data, IterableDataset)
    if sized and len(data):
        pair = data[0]
        if isinstance(pair, tuple | list) and len(pair) == 2:
            return TorchData(data)
    raise DataError(
        "wrong_type",
        f"expected the {where} to be a map-style data set of (input, target) pairs, such as a TensorDataset of two "
        f"tensors, with at least one pair; got {type(data).__name__}. Give None for no data.",
        where=where,
        found=type(data).__name__,
    )
