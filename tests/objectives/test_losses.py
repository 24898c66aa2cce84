"""Tests of losses against loops in float64, in closed forms, and without information."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from monai.losses import DiceCELoss
from refusals import refused
from torch.nn import functional as F

from medfl.errors import SettingsError
from medfl.objectives.losses import CoxLoss, DiceBCELoss, FlambyCoxLoss, LabelledBCELoss, has_events


def made_up(n, seed, instants):
    g = torch.Generator().manual_seed(seed)
    times = torch.randint(1, instants + 1, (n,), generator=g).double()
    events = torch.randint(2, (n,), generator=g).double()
    return 2 * torch.randn(n, generator=g, dtype=torch.float64), torch.stack([times, events], 1)


CASES = st.builds(made_up, n=st.integers(1, 20), seed=st.integers(0, 10**6), instants=st.sampled_from([1, 2, 5, 10**6]))


def cox(risks, targets, ties):
    """Compute the negative log partial likelihood per event, time by time."""
    times, events = targets[:, 0], targets[:, 1] == 1
    total = torch.zeros((), dtype=torch.float64)
    for time in times[events].unique():
        here = events & (times == time)
        at_risk, tied = risks[times >= time].exp().sum(), risks[here].exp().sum()
        for number in range(int(here.sum())):
            taken = number / int(here.sum()) * tied if ties == "efron" else 0.0
            total = total + torch.log(at_risk - taken)
        total = total - risks[here].sum()
    return total / max(int(events.sum()), 1)


def flamby(risks, targets):
    """Compute FLamby's loss: rows sorted by decreasing time, one by one, averaged over rows."""
    order = sorted(range(len(risks)), key=lambda row: -float(targets[row, 0]))
    terms = [torch.zeros((), dtype=torch.float64)]
    for place in range(1, len(order)):
        before = risks[order[: place + 1]]
        terms.append((torch.logsumexp(before, 0) - risks[order[place]]) * targets[order[place], 1])
    return torch.stack(terms).mean()


def gradient(loss, risks, targets):
    leaf = risks.clone().requires_grad_()
    value = loss(leaf, targets)
    value.backward()
    return value.detach(), leaf.grad


@settings(max_examples=60, deadline=None, derandomize=True)
@given(CASES, st.sampled_from(["efron", "breslow"]))
def test_cox_is_the_loop_over_times(example, ties):
    risks, targets = example
    value, slope = gradient(CoxLoss(ties), risks, targets)
    if has_events(targets):
        expected, expected_slope = gradient(lambda r, t: cox(r, t, ties), risks, targets)
        assert torch.allclose(value, expected, rtol=1e-9, atol=1e-10)
        assert torch.allclose(slope, expected_slope, rtol=1e-7, atol=1e-9)
    assert value >= -1e-12
    assert slope.sum().item() == pytest.approx(0, abs=1e-9), "a number added to all risks changes nothing"
    assert torch.allclose(CoxLoss(ties)(risks[:, None] + 7, targets), value, atol=1e-10)
    order = torch.randperm(len(risks))
    assert torch.allclose(CoxLoss(ties)(risks[order], targets[order]), value, atol=1e-10), "in any order"


@settings(max_examples=40, deadline=None, derandomize=True)
@given(CASES)
def test_flambys_loss_is_its_loop_over_rows(example):
    risks, targets = example
    value, slope = gradient(FlambyCoxLoss(), risks, targets)
    expected = flamby(risks, targets)
    assert torch.allclose(value, expected, rtol=1e-9, atol=1e-10)
    assert torch.allclose(FlambyCoxLoss()(risks[:, None], targets), value)
    leaf = risks.clone().requires_grad_()
    (slope_of_loop,) = torch.autograd.grad(flamby(leaf, targets) + 0 * leaf.sum(), leaf)
    assert torch.allclose(slope, slope_of_loop, rtol=1e-7, atol=1e-9)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.integers(2, 20), st.integers(0, 10**6))
def test_without_ties_all_are_the_same(n, seed):
    g = torch.Generator().manual_seed(seed)
    risks = torch.randn(n, generator=g, dtype=torch.float64)
    events = (torch.rand(n, generator=g) < 0.5).double()
    events[0] = 1
    targets = torch.stack([torch.randperm(n, generator=g).double() + 1, events], 1)
    efron = CoxLoss("efron")(risks, targets)
    assert torch.allclose(efron, CoxLoss("breslow")(risks, targets))
    assert torch.allclose(FlambyCoxLoss()(risks, targets), efron * events.mean())


def test_cox_in_closed_form():
    """Equal risks give the mean of log n_t; by Efron, d events at one time of n have n, n - 1, ... at risk."""
    zeros, ones = torch.zeros(4, 1), torch.ones(4)
    apart = torch.stack([torch.tensor([1.0, 2.0, 3.0, 4.0]), ones], 1)
    assert CoxLoss()(zeros, apart).item() == pytest.approx(math.log(24) / 4)
    together = torch.stack([ones, ones], 1)
    assert CoxLoss("breslow")(zeros, together).item() == pytest.approx(math.log(4))
    assert CoxLoss("efron")(zeros, together).item() == pytest.approx(math.log(24) / 4)
    first = torch.stack([torch.tensor([1.0, 2.0, 2.0, 3.0]), torch.tensor([1.0, 0.0, 0.0, 0.0])], 1)
    risks = torch.tensor([0.3, -1.0, 2.0, 0.5])
    assert CoxLoss()(risks, first).item() == pytest.approx(float(torch.logsumexp(risks, 0) - 0.3))
    last = torch.stack([torch.tensor([5.0, 2.0, 2.0, 3.0]), torch.tensor([1.0, 0.0, 0.0, 0.0])], 1)
    assert CoxLoss()(risks, last).item() == 0, "nobody else is left"


@pytest.mark.parametrize("loss", [CoxLoss("efron"), CoxLoss("breslow"), FlambyCoxLoss()])
def test_without_events_there_is_nothing_to_learn(loss):
    targets = torch.tensor([[1.0, 0.0], [2.0, 0.0], [2.0, 0.0]])
    assert not has_events(targets)
    value, slope = gradient(loss, torch.tensor([3.0, -1.0, 40.0]), targets)
    assert value.item() == 0
    assert slope.tolist() == [0, 0, 0]
    assert has_events(torch.tensor([[1.0, 0.0], [2.0, 1.0]]))
    alone, slope = gradient(loss, torch.tensor([3.0]), torch.tensor([[2.0, 1.0]]))
    assert (alone.item(), slope.item()) == (0, 0)


@pytest.mark.parametrize("loss", [CoxLoss("efron"), CoxLoss("breslow"), FlambyCoxLoss()])
def test_large_risks_stay_finite(loss):
    risks = torch.tensor([500.0, -500.0, 0.0, 80.0, 80.0, -300.0])
    targets = torch.tensor([[1.0, 1.0], [2.0, 1.0], [2.0, 1.0], [3.0, 1.0], [3.0, 1.0], [4.0, 1.0]])
    value, slope = gradient(loss, risks, targets)
    assert value.isfinite()
    assert slope.isfinite().all()
    assert loss(risks.bfloat16(), targets).dtype == torch.float32


def test_other_ties_are_refused():
    with refused(SettingsError, "unknown_choice", what="ties", choice="exact"):
        CoxLoss("exact")


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.integers(1, 8), st.integers(1, 5), st.integers(0, 10**6), st.booleans())
def test_only_labelled_findings_have_a_loss(n, findings, seed, weighted):
    g = torch.Generator().manual_seed(seed)
    logits = torch.randn(n, findings, generator=g, dtype=torch.float64)
    targets = torch.randint(2, (n, findings), generator=g).double()
    missing = torch.rand(n, findings, generator=g) < 0.4
    weight = torch.rand(findings, generator=g, dtype=torch.float64) + 0.5 if weighted else None
    value, slope = gradient(LabelledBCELoss(weight), logits, targets.masked_fill(missing, torch.nan))
    terms = [
        -(
            F.logsigmoid(logits[i, c]) * (1 if weight is None else weight[c])
            if targets[i, c]
            else F.logsigmoid(-logits[i, c])
        )
        for i in range(n)
        for c in range(findings)
        if not missing[i, c]
    ]
    assert value.item() == pytest.approx(float(sum(terms)) / max(len(terms), 1), abs=1e-12)
    assert (slope[missing] == 0).all()
    if not terms:
        assert value.item() == 0


def test_binary_cross_entropy_in_closed_form():
    targets = torch.tensor([[1.0, 0.0], [torch.nan, 1.0]])
    assert LabelledBCELoss()(torch.zeros(2, 2), targets).item() == pytest.approx(math.log(2))
    logits, labels = torch.randn(6, 1), torch.tensor([0, 1, 1, 0, 1, 0])
    expected = F.binary_cross_entropy(logits.sigmoid()[:, 0], labels.float())
    assert LabelledBCELoss()(logits, labels).item() == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize("channels", [1, 3])
def test_overlapping_masks_have_a_sigmoid_for_each_channel(channels):
    logits, masks = torch.randn(2, channels, 6, 6), torch.randint(2, (2, channels, 6, 6))
    p, y = logits.sigmoid().flatten(2), masks.float().flatten(2)
    dice = 1 - (2 * (p * y).sum(2) + 1e-5) / (p.sum(2) + y.sum(2) + 1e-5)
    expected = dice.mean() + F.binary_cross_entropy(p, y)
    assert torch.allclose(DiceBCELoss()(logits, masks), expected)
    single = DiceCELoss(sigmoid=True)(logits, masks)
    assert torch.allclose(single, expected) == (channels == 1), "MONAI's is a softmax over several channels"
