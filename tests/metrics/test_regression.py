"""Tests of regression metrics against scikit-learn and scipy, and of constant values."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import pearsonr
from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error

from medfl.metrics.regression import mae, pearson, r2, rmse

SCORES = {"mae": mae, "rmse": rmse, "r2": r2, "pearson": pearson}


def made_up(n, numbers, seed):
    g = torch.Generator().manual_seed(seed)
    targets = 50 + 10 * torch.randn(n, numbers, generator=g)
    return targets + 5 * torch.randn(n, numbers, generator=g), targets, torch.randint(4, (n, 3), generator=g).double()


CASES = st.builds(made_up, n=st.integers(1, 30), numbers=st.integers(1, 3), seed=st.integers(0, 10**6))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("numbers", [1, 3])
def test_as_scikit_learn_and_scipy(seed, numbers):
    outputs, targets, weights = made_up(25, numbers, seed)
    pair = targets.double().numpy(), outputs.double().numpy()
    for column in range(3):
        weight = weights[:, column].numpy()
        expected = {
            "mae": mean_absolute_error(*pair, sample_weight=weight),
            "rmse": root_mean_squared_error(*pair, sample_weight=weight),
            "r2": r2_score(*pair, sample_weight=weight),
        }
        copies = torch.arange(25).repeat_interleave(weights[:, column].long())
        ours, theirs = outputs[copies].double().numpy(), targets[copies].double().numpy()
        expected["pearson"] = sum(pearsonr(ours[:, d], theirs[:, d])[0] for d in range(numbers)) / numbers
        for name, score in SCORES.items():
            assert float(score(outputs, targets, weights)[column]) == pytest.approx(expected[name], abs=1e-12), name


@settings(max_examples=30, deadline=None, derandomize=True)
@given(CASES)
def test_a_weight_is_a_number_of_copies(example):
    outputs, targets, weights = example
    for name, score in SCORES.items():
        scores = score(outputs, targets, weights)
        for column in range(3):
            rows = torch.arange(len(targets)).repeat_interleave(weights[:, column].long())
            if len(rows):
                expected = float(score(outputs[rows], targets[rows], torch.ones(len(rows), 1).double())[0])
                assert float(scores[column]) == pytest.approx(expected, abs=1e-9, nan_ok=True), name
            else:
                assert scores[column].isnan(), name


def test_closed_forms():
    targets, weights = torch.tensor([[1.0], [2.0], [3.0]]), torch.ones(3, 1, dtype=torch.float64)
    assert [score(targets, targets, weights).item() for score in SCORES.values()] == pytest.approx([0, 0, 1, 1])
    shifted = [score(targets + 2, targets, weights).item() for score in SCORES.values()]
    assert shifted == pytest.approx([2, 2, 1 - 4 / (2 / 3), 1])
    mean = [score(torch.full((3, 1), 2.0), targets, weights).item() for score in SCORES.values()]
    assert mean == pytest.approx([2 / 3, (2 / 3) ** 0.5, 0, torch.nan], nan_ok=True)
    assert pearson(-targets, targets, weights).item() == pytest.approx(-1)


@pytest.mark.parametrize("constant", [0.1, 1e6 + 1 / 3])
def test_nothing_that_varies_has_neither_r2_nor_a_correlation(constant):
    """Constant values are undefined even if rounding changes their mean."""
    targets, weights = torch.full((7, 2), constant), torch.rand(7, 4, dtype=torch.float64) + 0.1
    outputs = torch.randn(7, 2)
    assert r2(outputs, targets, weights).isnan().all()
    assert pearson(outputs, targets, weights).isnan().all()
    assert pearson(targets, outputs, weights).isnan().all()
    targets[:, 1] = torch.arange(7)
    assert torch.equal(r2(outputs, targets, weights), r2(outputs[:, 1:], targets[:, 1:], weights))


def test_a_large_mean_costs_no_digits():
    outputs, targets, weights = made_up(20, 1, 0)
    far = (outputs.double() + 1e9, targets.double() + 1e9, weights)
    assert r2(*far).tolist() == pytest.approx(r2(outputs, targets, weights).tolist(), abs=1e-5)
    assert pearson(*far).tolist() == pytest.approx(pearson(outputs, targets, weights).tolist(), abs=1e-6)
