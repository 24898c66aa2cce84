"""Data sets that are put together in memory."""

from __future__ import annotations

import torch
from torch.utils.data import ConcatDataset

from medfl.contract import Dataset


class Pooled:
    """Several data sets as one, addressed by row; for methods that pool."""

    def __init__(self, parts: list[Dataset]) -> None:
        self._parts = parts
        self._ends = ConcatDataset.cumsum(parts)
        self.labels = torch.cat([part.labels for part in parts])

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Images and labels of rows over all parts, in the order asked for."""
        owner = torch.bucketize(rows, torch.tensor(self._ends), right=True)
        found = []
        order = []
        for index in owner.unique().tolist() or [0]:
            places = (owner == index).nonzero(as_tuple=True)[0]
            start = self._ends[index - 1] if index else 0
            found.append(self._parts[index].batch(rows[places] - start))
            order.append(places)
        back = torch.cat(order).argsort()
        images = torch.cat([images for images, _ in found])[back]
        return images, torch.cat([labels for _, labels in found])[back]


class Empty:
    """A split without images."""

    def __init__(self) -> None:
        self.labels = torch.empty(0, dtype=torch.int64)

    def __len__(self) -> int:
        return 0

    def batch(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """There is nothing to take."""
        raise IndexError("this split has no images")
