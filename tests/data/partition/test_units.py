"""Test the grouping of images into units that stay together."""

from __future__ import annotations

import numpy as np
import pytest
from refusals import refused

from medfl.data.datalists import subjects_of
from medfl.data.partition.units import column_entries, find_units, majority_by_unit
from medfl.errors import DataError


def test_without_groups_each_image_is_its_own_unit_in_order():
    np.testing.assert_array_equal(find_units([None] * 5, list("abcde")), np.arange(5))
    assert find_units([], []).tolist() == []


def test_images_are_joined_through_others():
    subjects = ["a", "b", "b", "c", None, None]
    pixels = [1, 1, 2, 3, 3, 4]
    assert find_units(subjects, pixels).tolist() == [0, 0, 0, 1, 1, 2]


def test_units_are_the_connected_components_of_the_graph_of_shared_keys():
    scipy = pytest.importorskip("scipy.sparse.csgraph")
    rng = np.random.default_rng(0)
    for _ in range(20):
        keys = rng.integers(0, 60, (2, 80))
        graph = (keys[:, :, None] == keys[:, None, :]).any(axis=0)
        count, expected = scipy.connected_components(graph, directed=False)
        units = find_units(*keys.tolist())
        assert units.max() + 1 == count
        assert len(set(zip(units.tolist(), expected.tolist(), strict=True))) == count, "the same parts"


def test_the_order_of_images_does_not_matter_for_what_is_joined():
    rng = np.random.default_rng(1)
    keys = rng.integers(0, 30, (2, 50))
    order = rng.permutation(50)
    plain, turned = find_units(*keys.tolist()), find_units(*keys[:, order].tolist())
    np.testing.assert_array_equal(plain[order][:, None] == plain[order], turned[:, None] == turned)


def test_a_unit_has_its_most_frequent_value_and_of_several_the_smallest():
    units = np.array([0, 0, 0, 1, 1, 2, 2, 2, 2])
    labels = np.array([5, 3, 5, 7, 2, 9, 1, 9, 1])
    assert majority_by_unit(units, labels).tolist() == [5, 2, 1]
    assert majority_by_unit(units, labels.astype(str)).tolist() == ["5", "2", "1"]
    assert len(majority_by_unit(np.empty(0, np.int64), np.empty(0, np.int64))) == 0


def test_the_most_frequent_value_agrees_with_counting():
    rng = np.random.default_rng(0)
    units, labels = rng.integers(0, 40, 500), rng.integers(0, 6, 500)
    expected = [np.bincount(labels[units == unit]).argmax() for unit in range(40)]
    assert majority_by_unit(units, labels).tolist() == expected


def test_subjects_may_be_numbers_or_unknown():
    assert subjects_of([{"subject_id": 3}, {"subject_id": " 3"}, {"subject_id": None}, {}]) == ["3", "3", None, None]
    assert subjects_of([{"subject_id": ""}, {"subject_id": float("nan")}]) == [None, None], "nobody is not one person"


def test_a_column_is_read_as_strings():
    assert column_entries([{"site": " A"}, {"site": 7}], "site").tolist() == ["A", "7"]


@pytest.mark.parametrize("entry", [{}, {"site": None}, {"site": " "}, {"site": float("nan")}])
def test_a_missing_entry_is_refused(entry):
    with refused(DataError, "missing_value", column="site", count=1, total=3):
        column_entries([{"site": "a"}, entry, {"site": "b"}], "site")


def test_an_unknown_column_is_refused_with_the_known_ones():
    with refused(DataError, "missing_column", column="sitte") as caught:
        column_entries([{"image": 0, "label": 1, "site": "a"}], "sitte")
    assert "Did you mean 'site'? Known: label, site" in str(caught.value)
