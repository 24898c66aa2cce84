"""A data set whose images, or whatever stands in their place, are tensors in memory."""

from __future__ import annotations

import torch


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
