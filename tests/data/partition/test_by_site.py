"""Test the partition scheme `by_site`: one site for each value of a column."""

from __future__ import annotations

import numpy as np
import pytest
from refusals import refused

from medfl.data.partition.by_column import by_site, folder_name
from medfl.errors import DataError, SettingsError


def test_each_value_becomes_a_site():
    values = np.array(["Europe", "West", "Middle", "East"]).repeat([172, 244, 181, 274])  # FedASD, 871 subjects
    shuffled = np.random.default_rng(0).permutation(values)
    parts = by_site(np.zeros(871), values=shuffled)
    assert {name: len(part) for name, part in parts.items()} == {"East": 274, "Europe": 172, "Middle": 181, "West": 244}
    assert all((shuffled[part] == name).all() for name, part in parts.items())
    again = by_site(np.ones(871), 4, values=shuffled, rng=np.random.default_rng(1))
    assert all(np.array_equal(again[name], part) for name, part in parts.items()), "nothing is left to chance"


@pytest.mark.parametrize(
    ("value", "name"),
    [("St. Mary's", "St-Mary-s"), ("Köln/2", "Koln-2"), ("../up", "up"), (" a  b ", "a-b"), ("x_1", "x_1")],
)
def test_names_of_folders_are_safe(value, name):
    assert folder_name(value) == name
    assert folder_name(name) == name


@pytest.mark.parametrize(
    ("values", "sites", "error", "code", "fields"),
    [
        (["a", "", "b", ""], None, DataError, "missing_value", {"count": 2, "total": 4}),
        (["a", "東京", "b", "b"], None, DataError, "missing_value", {"count": 1, "total": 4}),
        (["a b", "a-b", "c", "c"], None, DataError, "duplicate_name", {"names": ["a-b"]}),
        (["Nord", "nord", "c", "c"], None, DataError, "duplicate_name", {"names": ["Nord", "nord"]}),
        (
            ["a", "b", "c", "c"],
            2,
            SettingsError,
            "setting_out_of_range",
            {"setting": "sites", "expected": 3, "found": 2},
        ),
    ],
)
def test_impossible_columns_are_refused(values, sites, error, code, fields):
    with refused(error, code, **fields):
        by_site(np.zeros(4), sites, values=np.array(values))
