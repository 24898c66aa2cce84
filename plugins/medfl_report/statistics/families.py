"""Corrections of p-values for families of comparisons."""

from __future__ import annotations

import math
from collections.abc import Sequence


def holm(values: Sequence[float]) -> list[float]:
    """Return the p-values adjusted by Holm's procedure, in the order of the input; NaN stays NaN and does not count.

    If all claims with an adjusted value of at most 5 % are made, the probability of one or more false claims in the
    family is at most 5 % for any dependence between the tests.

    Source: Holm 1979, A simple sequentially rejective multiple test procedure.

    Args:
        values: P-values of the family, in [0, 1] or NaN.
    """
    order = sorted((value, place) for place, value in enumerate(values) if not math.isnan(value))
    adjusted, largest = [math.nan] * len(values), 0.0
    for rank, (value, place) in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * value))
        adjusted[place] = largest
    return adjusted
