"""Tests of the Brier score against scikit-learn and closed forms."""

import pytest
import torch
from metric_cases import case
from sklearn.metrics import brier_score_loss

from medfl.metrics.binary import brier


def once(n):
    return torch.ones(n, 1, dtype=torch.float64)


@pytest.mark.parametrize("seed", range(5))
def test_as_scikit_learn(seed):
    probabilities, labels = case(40, 2, seed, ties=False)
    weights = torch.rand(40, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    scores = brier(probabilities, labels, weights)
    for column in range(3):
        expected = brier_score_loss(labels, probabilities[:, 1].double(), sample_weight=weights[:, column])
        assert float(scores[column]) == pytest.approx(expected, abs=1e-12)


def test_closed_forms():
    labels = torch.tensor([1, 0, 0, 0])
    share = torch.tensor([[0.75, 0.25]]).expand(4, 2)
    assert brier(share, labels, once(4)).item() == 0.25 * 0.75
    assert brier(torch.full((4, 2), 0.5), labels, once(4)).item() == 0.25
    certain = torch.nn.functional.one_hot(labels, 2).float()
    assert brier(certain, labels, once(4)).item() == 0
    assert brier(1 - certain, labels, once(4)).item() == 1
    assert brier(certain, labels, 0 * once(4)).isnan().all()
