"""Tests of the distillation loss: known values (O-PF-6), gradients, and invariances.

Comparisons with torch's loss and at a high temperature are in medfl_methods/fedkper/test_fedkper.py.
"""

import math

import pytest
import torch

from medfl.toolkit.losses import distillation


def random_pair(n=6, classes=4, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return tuple(2 * torch.randn(n, classes, generator=rng, dtype=torch.float64) for _ in range(2))


def test_pf_6_divergence():
    student, teacher = torch.tensor([[2.0, 0.0]]).double(), torch.tensor([[0.0, 1.0]]).double()
    assert distillation(student, teacher, 3.0).item() / 9 == pytest.approx(0.1233013853, abs=1e-10)
    assert distillation(teacher, student, 3.0).item() / 9 != pytest.approx(0.1233013853, abs=1e-4)  # the reverse


def test_a_sure_teacher_gives_the_cross_entropy():
    """KL(one-hot || student) = -log p, because the teacher's entropy is 0."""
    student, _ = random_pair()
    teacher = torch.full_like(student, -1e4)
    teacher[:, 2] = 1e4
    expected = -student.log_softmax(1)[:, 2]
    torch.testing.assert_close(distillation(student, teacher), expected)


def test_one_value_for_each_image_by_that_image_alone():
    student, teacher = random_pair()
    values = distillation(student, teacher, 2.0)
    assert values.shape == (6,)
    assert (values > 0).all()
    for row in range(6):
        single = slice(row, row + 1)
        torch.testing.assert_close(distillation(student[single], teacher[single], 2.0), values[single])


def test_zero_where_both_say_the_same_up_to_a_shift():
    student, _ = random_pair()
    shift = torch.arange(6.0, dtype=torch.float64)[:, None]
    assert distillation(student, student + shift, 3.0).abs().max() < 1e-12


@pytest.mark.parametrize("tau", [0.5, 1.0, 3.0])
def test_gradients(tau):
    """The student's gradient is tau (softmax(student / tau) - softmax(teacher / tau)); the teacher has none."""
    student, teacher = (logits.requires_grad_() for logits in random_pair())
    distillation(student, teacher, tau).sum().backward()
    expected = tau * ((student / tau).softmax(1) - (teacher / tau).softmax(1))
    torch.testing.assert_close(student.grad, expected.detach())
    assert teacher.grad is None
    assert torch.autograd.gradcheck(lambda s: distillation(s, teacher.detach(), tau), (student,))


def test_sure_logits_stay_finite():
    student, teacher = torch.tensor([[1e4, -1e4]], requires_grad=True), torch.tensor([[-1e4, 1e4]])
    value = distillation(student, teacher, 1.0)
    value.sum().backward()
    assert math.isfinite(value.item())
    assert value.item() == pytest.approx(2e4)
    assert student.grad.isfinite().all()
