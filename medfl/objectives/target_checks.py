"""Validation of targets by rows; a row is one case with its target."""

from __future__ import annotations

from collections.abc import Callable

import torch

from medfl.errors import DataError

MAX_SHOWN_VALUES = 32
"""Maximum number of a target's values that a message shows."""


def check_rows(
    code: str, wrong: torch.Tensor, targets: torch.Tensor, where: str, start: int, expected: str, remedy: str
) -> None:
    """Raise if any row is invalid.

    Args:
        code: Code of the error.
        wrong: Whether each row is invalid, (N,), bool.
        targets: Targets (N, ...).
        where: Owner of the targets, for the message.
        start: Row number of the first target.
        expected: Description of a valid target.
        remedy: Instruction for the user.

    Raises:
        DataError: If any row is invalid, with the number and value of the first invalid row.
    """
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0, 0])
        few = targets[row].numel() <= MAX_SHOWN_VALUES
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


def any_in_rows(targets: torch.Tensor, test: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Return whether any number of each target passes a test, (N,), bool."""
    return test(targets).flatten(1).any(dim=1)
