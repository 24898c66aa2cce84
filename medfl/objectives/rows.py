"""Finding the first target that is wrong."""

from __future__ import annotations

from collections.abc import Callable

import torch

from medfl.errors import DataError


def check_rows(wrong: torch.Tensor, targets: torch.Tensor, where: str, start: int, message: str) -> None:
    """Refuse targets if any is wrong.

    Args:
        wrong: (N,), bool.
        targets: (N, ...).
        where: Whose they are.
        start: The row of the first.
        message: What was expected, and what to do: has the fields ``where``, ``count``, ``row``, ``value``.

    Raises:
        DataError: With the message about the first wrong row.
    """
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0, 0])
        value = targets[row].tolist() if targets[row].numel() <= 16 else f"an array {list(targets[row].shape)}"
        raise DataError(message.format(where=where, count=int(wrong.sum()), row=start + row, value=value))


def in_rows(targets: torch.Tensor, test: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Which targets hold any number that a test says yes to, (N,), bool."""
    return test(targets).reshape(len(targets), -1).any(dim=1)
