"""Tests of the C-index against a loop over all pairs, as in lifelines' documentation."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from medfl.metrics import survival
from medfl.metrics.auc import binary_auc
from medfl.metrics.survival import concordance


def made_up(n, seed, instants, ties):
    """Return risks, times with few distinct values, events, and three weightings."""
    g = torch.Generator().manual_seed(seed)
    times = torch.randint(1, instants + 1, (n,), generator=g).float()
    events = torch.randint(2, (n,), generator=g).float()
    risks = -times / instants + torch.randn(n, generator=g)
    weights = torch.randint(4, (n, 3), generator=g).double()
    return (risks.round() if ties else risks), torch.stack([times, events], 1), weights


CASES = st.builds(
    made_up, n=st.integers(1, 25), seed=st.integers(0, 10**6), instants=st.sampled_from([2, 5, 100]), ties=st.booleans()
)


def over_pairs(risks, targets):
    """Compute lifelines' C-index: correct pairs and half of the tied ones, over the comparable pairs."""
    rows = list(zip(risks.reshape(-1).tolist(), targets[:, 0].tolist(), targets[:, 1].tolist()))
    correct = pairs = 0.0
    for place, (risk_a, time_a, event_a) in enumerate(rows):
        for risk_b, time_b, event_b in rows[place + 1 :]:
            if time_a == time_b:
                comparable, a_first = event_a != event_b, bool(event_a)
            else:
                a_first = time_a < time_b
                comparable = bool(event_a if a_first else event_b)
            if comparable:
                pairs += 1
                correct += 0.5 if risk_a == risk_b else float((risk_a > risk_b) == a_first)
    return correct / pairs if pairs else math.nan


@settings(max_examples=80, deadline=None, derandomize=True)
@given(CASES)
def test_as_a_loop_over_all_pairs(example):
    risks, targets, weights = example
    once = torch.ones(len(risks), 1, dtype=torch.float64)
    assert concordance(risks, targets, once).item() == pytest.approx(over_pairs(risks, targets), abs=1e-12, nan_ok=True)
    scores = concordance(risks[:, None], targets, weights)
    for column in range(3):
        rows = torch.arange(len(risks)).repeat_interleave(weights[:, column].long())
        expected = over_pairs(risks[rows], targets[rows])
        assert float(scores[column]) == pytest.approx(expected, abs=1e-12, nan_ok=True)


@pytest.mark.parametrize("few", [1, 7, 1000])
@pytest.mark.parametrize(("instants", "ties"), [(1, False), (3, True), (20, True), (10**6, False)])
def test_divided_rows_give_the_bits_of_a_comparison_of_all_rows(monkeypatch, instants, ties, few):
    """Sums of integer weights are exact, so that their order has no effect."""
    risks, targets, weights = made_up(60, 0, instants, ties)
    times, events = targets[:, 0], targets[:, 1] == 1
    comparable = (times[:, None] < times) | ((times[:, None] == times) & ~events)
    pairs = weights[:, None] * weights * (comparable & events[:, None])[..., None]
    won = (risks[:, None] > risks).double() + (risks[:, None] == risks).double() / 2
    monkeypatch.setattr(survival, "FEW_ROWS", few)
    assert torch.equal(concordance(risks, targets, weights), (pairs * won[..., None]).sum((0, 1)) / pairs.sum((0, 1)))


def test_closed_forms():
    times = torch.arange(1.0, 6.0)
    targets, once = torch.stack([times, torch.ones(5)], 1), torch.ones(5, 1, dtype=torch.float64)
    assert concordance(-times, targets, once).item() == 1
    assert concordance(times, targets, once).item() == 0
    assert concordance(torch.zeros(5), targets, once).item() == 0.5
    risks = torch.randn(5)
    assert concordance(risks, targets, once).item() + concordance(-risks, targets, once).item() == pytest.approx(1)
    assert concordance(risks, targets * torch.tensor([1.0, 0.0]), once).isnan().all(), "without events"
    assert concordance(risks[:1], targets[:1], once[:1]).isnan().all(), "nobody to compare with"


def test_without_times_it_is_the_area_under_the_curve():
    """All events have one time and all censored times are later, so it is the ROC AUC of having the event."""
    risks, events = torch.randn(50), torch.rand(50) < 0.4
    targets = torch.stack([2 - events.float(), events.float()], 1)
    score = concordance(risks, targets, torch.ones(50, 1).double()).item()
    assert score == pytest.approx(binary_auc(risks, events))
