"""Tests of multi-label metrics against scikit-learn on the labelled findings, and of undefined values."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score

from medfl.metrics.multilabel import label_auc, label_average_precision, macro_auc, mean_average_precision

SCORES = {"auc": label_auc, "ap": label_average_precision}


def made_up(n, findings, seed, ties, missing=0.3):
    """Return probabilities, partially labelled targets, and three weightings."""
    g = torch.Generator().manual_seed(seed)
    targets = torch.randint(2, (n, findings), generator=g).float()
    logits = torch.randn(n, findings, generator=g) + targets
    targets[torch.rand(n, findings, generator=g) < missing] = torch.nan
    weights = torch.randint(4, (n, 3), generator=g).double()
    return (logits.round() if ties else logits).sigmoid(), targets, weights


CASES = st.builds(
    made_up, n=st.integers(1, 40), findings=st.integers(1, 4), seed=st.integers(0, 10**6), ties=st.booleans()
)


def reference(name, probabilities, targets, weights):
    """Compute the score of one finding with one weighting by scikit-learn."""
    rows = ~targets.isnan() & (weights > 0)
    truth, scores, weights = targets[rows].numpy(), probabilities[rows].double().numpy(), weights[rows].numpy()
    if not truth.any() or (name == "auc" and truth.all()):
        return math.nan
    score = roc_auc_score if name == "auc" else average_precision_score
    return float(score(truth, scores, sample_weight=weights))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(CASES)
def test_as_scikit_learn_over_what_is_labelled(example):
    probabilities, targets, weights = example
    for name, score in SCORES.items():
        scores = score(probabilities, targets, weights)
        for label in range(targets.shape[1]):
            for column in range(3):
                expected = reference(name, probabilities[:, label], targets[:, label], weights[:, column])
                assert float(scores[label, column]) == pytest.approx(expected, abs=1e-12, nan_ok=True), name


@settings(max_examples=20, deadline=None, derandomize=True)
@given(CASES)
def test_a_weight_is_a_number_of_copies(example):
    probabilities, targets, weights = example
    for score in (macro_auc, mean_average_precision):
        scores = score(probabilities, targets, weights)
        for column in range(3):
            rows = torch.arange(len(targets)).repeat_interleave(weights[:, column].long())
            expected = float(score(probabilities[rows], targets[rows], torch.ones(len(rows), 1).double())[0])
            assert float(scores[column]) == pytest.approx(expected, abs=1e-12, nan_ok=True)


def test_the_mean_is_over_findings_that_are_defined():
    probabilities = torch.tensor([[0.9, 0.2, 0.5], [0.1, 0.8, 0.5], [0.3, 0.6, 0.5]])
    targets = torch.tensor([[1.0, 0.0, torch.nan], [0.0, 0.0, torch.nan], [torch.nan, 0.0, torch.nan]])
    weights = torch.ones(3, 2, dtype=torch.float64)
    assert label_auc(probabilities, targets, weights)[:, 0].tolist() == pytest.approx(
        [1, math.nan, math.nan], nan_ok=True
    )
    assert macro_auc(probabilities, targets, weights).tolist() == [1, 1]
    assert mean_average_precision(probabilities, targets, weights).tolist() == [1, 1]
    nobody = torch.full((3, 3), torch.nan)
    assert macro_auc(probabilities, nobody, weights).isnan().all()
    assert mean_average_precision(probabilities, nobody, weights).isnan().all()


def test_closed_forms_of_average_precision():
    """Constant scores give the share of the positives; positives at ranks 1 and 3 give (1 + 2/3) / 2."""
    weights, targets = torch.ones(4, 1).double(), torch.tensor([[1.0], [0.0], [1.0], [0.0]])
    assert label_average_precision(torch.full((4, 1), 0.3), targets, weights).item() == 0.5
    falling = torch.tensor([[0.9], [0.8], [0.7], [0.6]])
    assert label_average_precision(falling, targets, weights).item() == pytest.approx((1 + 2 / 3) / 2)
    assert label_average_precision(falling, torch.ones(4, 1), weights).item() == 1
    assert label_average_precision(falling, torch.zeros(4, 1), weights).isnan().all()


def test_only_the_order_matters():
    probabilities, targets, weights = made_up(30, 3, 0, ties=False)
    for score in SCORES.values():
        changed = score(probabilities.double() ** 3 / 2, targets, weights)
        assert torch.allclose(score(probabilities, targets, weights), changed, equal_nan=True)
