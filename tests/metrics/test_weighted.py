"""Tests of weighted metrics: an integer weight equals a number of copies."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from metric_cases import CASES, case

from medfl.metrics import METRICS


@settings(max_examples=12, deadline=None, derandomize=True)
@given(CASES, st.integers(0, 10**6))
def test_a_weight_is_a_number_of_copies(example, seed):
    probabilities, labels, classes = example
    weights = torch.randint(4, (len(labels), 3), generator=torch.Generator().manual_seed(seed))
    for name, metric in METRICS.items():
        scores = metric.weighted(probabilities, labels, classes, weights.double())
        for column in range(3):
            copies = torch.arange(len(labels)).repeat_interleave(weights[:, column])
            expected = metric(probabilities[copies], labels[copies], classes)
            assert float(scores[column]) == pytest.approx(expected, abs=1e-12, nan_ok=True), name


@pytest.mark.parametrize("name", METRICS)
def test_only_the_ratio_of_weights_matters(name):
    probabilities, labels = case(50, 4, 0, ties=True)
    weights = torch.rand(50, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    scores = METRICS[name].weighted(probabilities, labels, 4, weights)
    assert torch.allclose(METRICS[name].weighted(probabilities, labels, 4, 7 * weights), scores, atol=1e-12)
    assert len(set(scores.tolist())) == 3


@pytest.mark.parametrize("name", METRICS)
def test_a_diverged_model_has_no_score(name):
    probabilities, labels = case(5, 3, 0, ties=False)
    probabilities[0, 0] = math.nan
    assert METRICS[name].weighted(probabilities, labels, 3, torch.ones(5, 2).double()).isnan().tolist() == [True, True]
