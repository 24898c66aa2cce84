"""Names and order of the classes in a column of a table."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from medfl.errors import DataError


def order_classes(labels: Sequence[str]) -> list[str]:
    """Return the distinct labels, sorted as numbers if all are numbers, otherwise as text.

    Raises:
        DataError: If labels differ only in upper and lower case, or in how a number is written.
    """
    numbers = {label: _number(label) for label in set(labels)}
    numeric = None not in numbers.values()
    spellings = defaultdict(list)
    for label in sorted(numbers):
        spellings[str(numbers[label]) if numeric else label.casefold()].append(label)
    ambiguous = [variants for variants in spellings.values() if len(variants) > 1]
    if ambiguous:
        listed = ", ".join(" / ".join(f"'{label}'" for label in variants) for variants in ambiguous)
        raise DataError(
            "ambiguous_labels",
            f"expected one spelling of each label, got {listed}. Use one of them everywhere.",
            labels=ambiguous,
        )
    return sorted(numbers, key=lambda label: (numbers[label] or 0.0, label)) if numeric else sorted(numbers)


def check_class_count(column: str, classes: int, rows: int) -> None:
    """Raise if a column has fewer than two classes, or nearly as many as rows.

    Args:
        column: Name of the column.
        classes: Number of distinct values.
        rows: Number of rows with a value.

    Raises:
        DataError: If the number of classes is impossible.
    """
    if classes < 2:
        raise DataError(
            "too_few_classes",
            f"expected at least two classes in the column '{column}', got {classes} in {rows} rows. "
            "Add images of another class, or give another --target.",
            column=column,
            minimum=2,
            found=classes,
            total=rows,
        )
    if classes > 2 and 2 * classes > rows:
        raise DataError(
            "too_many_classes",
            f"expected several images of each class, got {classes} different values in {rows} rows of the column "
            f"'{column}': they look like identifiers or measurements. Give the column with the classes, or "
            f"--target number:{column} for a measurement.",
            column=column,
            found=classes,
            total=rows,
        )


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
