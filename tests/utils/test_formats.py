"""Tests of formatted p-values."""

from __future__ import annotations

import math

import pytest

from medfl.utils.formats import p_phrase, p_value


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (0.0625, 4, "0.0625"),
        (1.0, 4, "1.0000"),
        (0.00005, 4, "0.0001"),
        (0.0000499, 4, "< 0.0001"),
        (0.0, 4, "< 0.0001"),
        (0.0004999, 3, "< 0.001"),
        (0.0005001, 3, "0.001"),
        (math.nan, 3, "-"),
    ],
)
def test_no_p_value_is_printed_as_zero(value: float, digits: int, text: str) -> None:
    assert p_value(value, digits) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "p < 0.001"), (0.0004, "p < 0.001"), (0.0006, "p = 0.001"), (0.25, "p = 0.250")]
)
def test_a_phrase_has_three_decimals(value: float, text: str) -> None:
    assert p_phrase(value) == text
