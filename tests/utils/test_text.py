"""Tests of shortened lists of names, and of counts of reasons."""

from __future__ import annotations

import pytest

from medfl.utils.text import (
    MAX_NAME_CHARACTERS,
    MAX_NAMES,
    describe_counts,
    first_names,
    inert_name,
    names_and_more,
    plain_name,
)


@pytest.mark.parametrize("names_of", [first_names, lambda names: names_and_more(names, MAX_NAMES)])
def test_few_names_are_all_listed(names_of):
    assert names_of([]) == ""
    assert names_of(["a", 2]) == "a, 2"
    assert names_of(range(MAX_NAMES)) == "0, 1, 2, 3, 4, 5, 6, 7, 8, 9"


def test_of_many_names_the_first_are_listed():
    assert first_names(range(MAX_NAMES + 1)) == "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, ..."
    assert first_names(["a", "b", "c"], 2) == "a, b, ..."
    assert names_and_more(["a", "b", "c", "d"], 2) == "a, b and 2 more"


def test_the_most_frequent_reason_comes_first():
    assert describe_counts({}) == ""
    assert describe_counts({4: "damaged.", 1: "empty", 9: "damaged."}) == "2 x damaged; 1 x empty"


def test_a_name_from_a_file_is_one_short_printable_line():
    assert plain_name(" pleural\n\teffusion ", "0") == "pleural effusion"
    assert plain_name("\x1b[31mred\u202e\x00", "0") == "[31mred"
    assert plain_name("\n\u200b", "7") == "7"
    assert plain_name("é" * MAX_NAME_CHARACTERS, "0") == "é" * MAX_NAME_CHARACTERS
    assert plain_name("é" * 1000, "0") == "é" * (MAX_NAME_CHARACTERS - 1) + "…"
    assert plain_name("$d$", "0") == "$d$"
    assert inert_name(" $@import os", "0") == "import os"
    assert inert_name("%", "3") == "3"
