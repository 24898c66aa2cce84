"""Comparison of groups: closed-form effects, patients as units, and the rate of false claims."""

import numpy as np
import pytest

from medfl_report.data_overview import group_tests
from medfl_report.data_overview.group_tests import ERROR_RATE, MIN_PATIENTS, compare_groups


def test_only_the_shifted_group_differs_from_most_others():
    rng = np.random.default_rng(0)
    values = rng.normal(size=(160, 3))
    groups = np.repeat(["a", "b", "c", "d"], 40)
    values[groups == "c", 1] -= 20
    (difference,) = compare_groups(values, groups.tolist(), range(160))
    assert (difference.group, difference.feature, difference.larger) == ("c", 1, False)
    assert difference.others == ("a", "b", "d")
    assert difference.compared == 3
    assert difference.superiority == 1.0
    assert difference.p < 1e-9
    assert difference.median == pytest.approx(np.median(values[groups == "c", 1]))


def test_the_superiority_counts_pairs():
    a, b = np.arange(10.0), np.arange(10.0) + 7
    values = np.concatenate([a, b])[:, np.newaxis]
    first, second = compare_groups(values, ["a"] * 10 + ["b"] * 10, range(20))
    expected = np.mean([(y > x) + 0.5 * (y == x) for x in a for y in b])
    assert second.superiority == first.superiority == pytest.approx(expected)
    assert (first.larger, second.larger) == (False, True)


def test_images_of_a_patient_count_once():
    rng = np.random.default_rng(0)
    values = np.repeat(rng.normal(size=8), 500)[:, np.newaxis]
    values[:2000] -= 3
    groups = ["a"] * 2000 + ["b"] * 2000
    assert compare_groups(values, groups, range(4000))
    assert compare_groups(values, groups, np.repeat(range(8), 500).tolist()) == []  # 4 patients in each group


def test_small_groups_unknown_values_and_constants_are_left_out():
    values = np.ones((30, 2))
    values[:10, 1], values[10:, 1] = np.nan, np.arange(20)
    groups = ["a"] * 10 + ["b"] * (20 - MIN_PATIENTS + 1) + ["c"] * (MIN_PATIENTS - 1)
    assert compare_groups(values, groups, range(30)) == []


@pytest.mark.slow  # two thousand data sets
@pytest.mark.parametrize("sizes", [(5, 5), (6, 30), (25, 25)])
def test_false_claims_are_rare_without_the_rule_on_effects(monkeypatch, sizes):
    monkeypatch.setattr(group_tests, "MIN_SUPERIORITY", 0.5)
    monkeypatch.setattr(group_tests, "MIN_DIFFERENCE", -np.inf)
    rng = np.random.default_rng(0)
    claims, repetitions = 0, 700
    groups = ["a"] * sizes[0] + ["b"] * sizes[1]
    for _ in range(repetitions):
        values = np.exp(rng.normal(size=(len(groups), 1)) + rng.normal(size=(len(groups), 8)))  # skewed, correlated
        claims += bool(compare_groups(values.round(1), groups, range(len(groups))))
    assert claims / repetitions <= ERROR_RATE + 2 * np.sqrt(ERROR_RATE * (1 - ERROR_RATE) / repetitions)
