"""Measures of a membership attack against closed forms and scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from refusals import refused
from sklearn.metrics import roc_auc_score

from medfl.errors import SettingsError
from medfl_attacks.membership.metrics import (
    AttackScores,
    auc,
    auc_interval,
    measure_attack,
    recall_balanced,
    roc,
    tpr_at,
)


def test_random_scores_are_guesses() -> None:
    rng = np.random.default_rng(0)
    numbers = measure_attack(AttackScores(rng.random(2000), rng.random(2000), 0.5))
    assert numbers.auc == pytest.approx(0.5, abs=0.05)
    assert numbers.auc_interval[0] < 0.5 < numbers.auc_interval[1]
    for name in ("recall", "accuracy", "recall_balanced"):
        assert getattr(numbers, name) == pytest.approx(0.5, abs=0.035)


def test_always_saying_member_raises_recall_and_nothing_else() -> None:
    rng = np.random.default_rng(0)
    members, others = rng.random(500), rng.random(500)
    honest, bold = (measure_attack(AttackScores(members, others, threshold)) for threshold in (0.5, -1.0))
    assert (bold.recall, bold.accuracy) == (1.0, 0.5)
    assert {n: getattr(bold, n) for n in ("auc", "recall_balanced", "tpr_at_1_fpr")} == {
        n: getattr(honest, n) for n in ("auc", "recall_balanced", "tpr_at_1_fpr")
    }


def test_the_auc_is_that_of_scikit_learn_with_ties() -> None:
    rng = np.random.default_rng(1)
    members, others = rng.integers(0, 12, 60) + 1.0, rng.integers(0, 12, 45) + 0.0
    expected = roc_auc_score([1] * 60 + [0] * 45, np.concatenate([members, others]))
    assert auc(members, others) == pytest.approx(expected, abs=1e-12)
    low, high = auc_interval(members, others)
    assert (low + high) / 2 == pytest.approx(expected, abs=1e-12)


def test_the_interval_of_the_auc_by_hand() -> None:
    # members 1, 3 over others 0, 2: shares below the members are 1/2 and 1, above the others 1 and 1/2
    half = 1.959964 * np.sqrt(0.125 / 2 + 0.125 / 2)
    assert auc_interval(np.array([1.0, 3.0]), np.array([0.0, 2.0])) == pytest.approx((0.75 - half, 1.0), abs=1e-6)


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(2)
    truth = 0.7602499389  # of N(1, 1) over N(0, 1): Phi(1 / sqrt 2)
    held = [
        low <= truth <= high
        for low, high in (auc_interval(rng.normal(1, 1, 80), rng.normal(0, 1, 80)) for _ in range(300))
    ]
    assert 0.91 <= np.mean(held) <= 0.985


def test_few_false_alarms_are_counted_and_not_interpolated() -> None:
    others = np.arange(100.0)
    assert tpr_at(np.array([98.5, 99.5, 97.5, 0.5]), others, 0.01) == 0.5, "one false alarm, at 99"
    assert tpr_at(np.array([98.5, 99.5]), others[:99], 0.01) == 1.0, (
        "of 99 none may be a false alarm; 98 is the largest"
    )
    assert tpr_at(np.array([5.0, 5.0]), np.array([5.0, 5.0]), 0.01) == 0.0, "a tie with others is no find"
    assert tpr_at(np.array([0.0, 0.0]), np.array([5.0, 5.0]), 1.0) == 1.0


def test_recall_on_balanced_sets_by_hand() -> None:
    assert recall_balanced(np.array([9.0, 8.0, 1.0]), np.array([7.0, 0.0, 0.5])) == pytest.approx(2 / 3)
    assert recall_balanced(np.array([4.0, 4.0]), np.array([4.0, 4.0])) == 0.5, "ties are shared"
    assert recall_balanced(np.array([5.0, 4.0]), np.array([4.0, 0.0])) == 0.75, "one sure, half of the tie"
    assert recall_balanced(np.array([0.0, 1.0]), np.array([2.0, 3.0])) == 0.0


def test_the_roc_curve_grows_to_its_corner() -> None:
    rng = np.random.default_rng(3)
    points = np.array(roc(rng.normal(1, 1, 300), rng.normal(0, 1, 300)))
    assert tuple(points[-1]) == (1.0, 1.0)
    assert (np.diff(points, axis=0) >= 0).all()
    assert len(points) <= 60


def test_one_member_is_too_few() -> None:
    with refused(SettingsError, "too_few_images", minimum=2, found=[1, 3]):
        AttackScores(np.zeros(1), np.zeros(3), 0.0)


def test_limits_are_not_reached_by_half_an_alarm_or_a_score_at_the_threshold() -> None:
    """1 % of 150 non-members is 1.5, so one false positive is allowed.

    A score equal to the threshold means no member.
    """
    others = np.arange(150.0)
    assert tpr_at(np.array([147.5, 148.5, 200.0]), others, 0.01) == pytest.approx(2 / 3)
    measured = measure_attack(AttackScores(np.array([0.0, 1.0]), np.array([0.0, -1.0]), 0.0))
    assert (measured.recall, measured.false_alarms) == (0.5, 0.0)
