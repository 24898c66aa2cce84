"""FedNTD: its term by hand, what it does not look at, and where it is FedAvg."""

import math

import pytest
import torch
from torch.nn import functional as F

from medfl_methods.fedntd import not_true_distillation

STUDENT = torch.tensor([[1.0, 0.0, 2.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
TEACHER = torch.tensor([[2.0, 0.0, 1.0], [0.0, 1.0, 0.0]], dtype=torch.float64)
TRUTH = torch.tensor([0, 2])


def by_hand(student, teacher, tau):
    """KL of two softmax outputs."""
    q, p = ([math.exp(x / tau) for x in logits] for logits in (teacher, student))
    q, p = ([x / sum(each) for x in each] for each in (q, p))
    return tau**2 * sum(a * math.log(a / b) for a, b in zip(q, p, strict=True))


@pytest.mark.parametrize("tau", [1.0, 3.0])
def test_the_true_class_is_left_out_by_its_place(tau):
    expected = (by_hand([0, 2], [0, 1], tau) + by_hand([0, 0], [0, 1], tau)) / 2
    value = not_true_distillation(STUDENT, TEACHER, TRUTH, tau)
    assert value.item() == pytest.approx(expected, abs=1e-12)
    masked = [logits.scatter(1, TRUTH[:, None], -math.inf) for logits in (STUDENT, TEACHER)]
    terms = F.kl_div((masked[0] / tau).log_softmax(1), (masked[1] / tau).softmax(1), reduction="none").nan_to_num(0)
    assert value.item() == pytest.approx(tau**2 * terms.sum().item() / 2, abs=1e-12)
    zeroed = [logits.scatter(1, TRUTH[:, None], 0.0) for logits in (STUDENT, TEACHER)]
    wrong = F.kl_div((zeroed[0] / tau).log_softmax(1), (zeroed[1] / tau).softmax(1), reduction="batchmean") * tau**2
    assert abs(value.item() - wrong.item()) > 1e-4


def test_what_is_said_of_the_true_class_changes_nothing():
    student = STUDENT.clone().requires_grad_()
    value = not_true_distillation(student, TEACHER, TRUTH)
    value.backward()
    assert torch.equal(student.grad.gather(1, TRUTH[:, None]), torch.zeros(2, 1, dtype=torch.float64))
    assert student.grad.abs().sum() > 0
    other = [logits.scatter_add(1, TRUTH[:, None], torch.full((2, 1), 7.0).double()) for logits in (STUDENT, TEACHER)]
    assert not_true_distillation(*other, TRUTH).item() == value.item()


def test_two_alternatives_and_unknown_truths_say_nothing():
    two = torch.randn(2, 3, 2, dtype=torch.float64)
    assert not_true_distillation(two[0], two[1], torch.tensor([0, 1, 1])).item() == 0
    voxels = torch.randn(2, 2, 4, 3, 3, dtype=torch.float64)
    truth = torch.randint(4, (2, 3, 3))
    each = [not_true_distillation(voxels[0][i : i + 1], voxels[1][i : i + 1], truth[i : i + 1]) for i in (0, 1)]
    assert not_true_distillation(*voxels, truth).item() == pytest.approx(sum(each).item() / 2)
    assert not_true_distillation(*voxels, torch.full_like(truth, -1)).item() == 0
