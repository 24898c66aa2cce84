"""Finding the first target that is wrong."""

from __future__ import annotations

from collections.abc import Callable

import torch

from medfl.errors import DataError

SHOWN = 32
"""Numbers of a target that a message shows."""


def check_rows(
    code: str, wrong: torch.Tensor, targets: torch.Tensor, where: str, start: int, expected: str, remedy: str
) -> None:
    """Refuse targets if any is wrong.

    Args:
        code: Code of the error.
        wrong: (N,), bool.
        targets: (N, ...).
        where: Whose they are.
        start: The row of the first.
        expected: What would be right.
        remedy: What to do.

    Raises:
        DataError: With row and value of the first that is wrong.
    """
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0, 0])
        few = targets[row].numel() <= SHOWN
        value = targets[row].tolist() if few else f"a target of shape {list(targets[row].shape)} with other numbers"
        raise DataError(
            code,
            f"{where}: expected {expected}, got {value} in row {start + row} ({int(wrong.sum())} such rows). {remedy}.",
            where=where,
            expected=expected,
            found=value,
            row=start + row,
            count=int(wrong.sum()),
        )


def in_rows(targets: torch.Tensor, test: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Which targets hold any number that a test says yes to, (N,), bool."""
    return test(targets).flatten(1).any(dim=1)
