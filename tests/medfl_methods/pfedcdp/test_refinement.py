"""Training of a student from several teachers on public data: losses, weights of teachers, and unchanged parts."""

import copy
import functools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some
from torch import nn
from torch.nn import functional as F

from medfl.data.pooled import TensorData
from medfl.networks.parts import mlp
from medfl.settings import Settings
from medfl.testing.cohort import CLASSES, SmallNet, make_data
from medfl.utils.wire import tensors_equal
from medfl_methods.pfedcdp.refinement import (
    Refinement,
    draw_held_out_rows,
    normalise_values,
    teacher_shapley_values,
    train_head,
    train_probe,
    train_student,
)
from medfl_methods.pfedcdp.supcon import supcon

SETTINGS = Settings(rounds=1)
DATA = make_data(60, "public")
FRESH = make_data(90, "fresh")


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def small(seed=0, norm=True):
    torch.manual_seed(seed)
    return SmallNet(norm=norm)


def taught(shift=0, seed=1):
    """Return a network that knows the classes; with `shift` it names each class by the number of another one."""
    return copy.deepcopy(_taught(shift, seed))


@functools.cache
def _taught(shift, seed):
    model = small(seed)
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    for _ in range(40):
        optimizer.zero_grad()
        F.cross_entropy(model(DATA.images), (DATA.class_labels + shift) % CLASSES).backward()
        optimizer.step()
    model.zero_grad()
    return model.eval()


def right(model, shift=0):
    """Return the fraction of new images that are classified correctly."""
    model.eval()
    return float((model(FRESH.images).argmax(1) == (FRESH.class_labels + shift) % CLASSES).double().mean())


def made(teachers, weights=None, data=DATA, views=None, scale=1.0, student=None, **how):
    """Return a student and the losses of its last epoch."""
    student = student or small()
    refinement = Refinement(**({"epochs": 12, "lr": 0.01, "batch_size": 20} | how))
    torch.manual_seed(5)
    weights = weights or [1 / len(teachers)] * len(teachers)
    losses = train_student(student, teachers, weights, data, refinement, SETTINGS, rng(), views=views, scale=scale)
    return student, losses


# ---- held-out rows


@given(labels=some.lists(some.integers(0, 3), min_size=1, max_size=60), share=some.floats(0, 0.99))
def test_as_many_of_each_class_are_held_out(labels, share):
    labels = torch.tensor(labels)
    rows = draw_held_out_rows(labels, share, rng())
    counts = labels.bincount(minlength=4)
    several = [int(count) for count in counts if count > 1]
    each = max(1, int(share * min(several))) if several else 0
    assert labels[rows].bincount(minlength=4).tolist() == [each if count > 1 else 0 for count in counts]
    assert rows.tolist() == sorted(set(rows.tolist()))
    assert torch.equal(draw_held_out_rows(labels, share, rng()), rows)


# ---- Shapley values of teachers


def test_values_of_teachers_with_known_answers():
    """One teacher knows all classes, one always predicts class 0, one separates class 0 with large logits."""
    labels = torch.tensor([0, 0, 1, 1, 2, 2])
    knows, silent = 4.0 * F.one_hot(labels, 3), torch.zeros(6, 3)
    loud = torch.tensor([[9.0, 0, 0], [9, 0, 0], [0, 9, 0], [0, 9, 0], [0, 9, 0], [0, 9, 0]])
    values, worth = teacher_shapley_values([knows, silent, loud], labels, 3)
    third, most = 1 / 3, 2 / 3
    expected = {(): third, (0,): 1, (1,): third, (2,): most, (0, 1): 1, (0, 2): most, (1, 2): most, (0, 1, 2): most}
    assert {tuple(sorted(who)): value for who, value in worth.items()} == pytest.approx(expected)
    assert values == pytest.approx([third, 0, 0])
    assert normalise_values(values) == pytest.approx([1, 0, 0])


def test_a_useless_teacher_weighs_less_than_good_ones():
    teachers = [taught(seed=1), taught(seed=2), small(3).eval()]
    with torch.no_grad():
        logits = [teacher(FRESH.images) for teacher in teachers]
    values, worth = teacher_shapley_values(logits, FRESH.class_labels, CLASSES)
    assert sum(values) == pytest.approx(worth[frozenset({0, 1, 2})] - 1 / 3)
    assert max(0, values[2]) < 0.2 * min(values[:2])
    assert normalise_values(values)[2] < 0.15


# ---- losses of the student


def test_distillation_follows_the_teacher_and_not_the_labels():
    student, losses = made([taught(shift=1)], losses="kd", probe_epochs=0)
    assert right(student, shift=1) > 0.9
    assert losses["distillation"] < 0.5 * made([taught(shift=1)], losses="kd", epochs=1)[1]["distillation"]
    scrambled = TensorData(DATA.images, DATA.class_labels.flip(0))
    other, _ = made([taught(shift=1)], losses="kd", probe_epochs=0, data=scrambled)
    assert tensors_equal(student.state_dict(), other.state_dict())


def test_contrast_and_a_probe_follow_the_labels_and_not_the_teacher():
    student, losses = made([taught(shift=1)], losses="scl", probe_epochs=40)
    assert right(student) > 0.9
    assert losses["contrast"] > 0
    other, _ = made([small(9)], losses="scl", probe_epochs=40)
    assert tensors_equal(student.state_dict(), other.state_dict())


def test_alpha_weighs_distillation_against_contrast():
    teachers = [taught()]
    for alpha, losses in ((1.0, "kd"), (0.0, "scl")):
        mixed, _ = made(teachers, alpha=alpha, epochs=2, probe_epochs=1)
        alone, _ = made(teachers, losses=losses, epochs=2, probe_epochs=1)
        for name, tensor in alone.state_dict().items():
            torch.testing.assert_close(mixed.state_dict()[name], tensor)
    half, _ = made(teachers, alpha=0.5, epochs=2, probe_epochs=1)
    assert not torch.allclose(half.body[0].weight, alone.body[0].weight, atol=1e-4)


def test_the_distillation_term_is_from_the_weighted_mean_logits():
    """Compute the first step by hand: the student in training mode has seen both views at once."""
    teachers, weights, start = [taught(seed=1), taught(seed=2)], [0.8, 0.2], small()
    _, losses = made(teachers, weights, student=copy.deepcopy(start), epochs=1, batch_size=60, losses="kd", tau=2.0)
    with torch.no_grad():
        aim = 0.8 * teachers[0](DATA.images) + 0.2 * teachers[1](DATA.images)
        logits = start.train()(torch.cat([DATA.images, DATA.images]))[:60]
    expected = 4 * F.kl_div((logits / 2).log_softmax(1), (aim / 2).softmax(1), reduction="batchmean")
    assert losses["distillation"] == pytest.approx(expected.item(), rel=1e-4)


def test_the_contrastive_term_is_over_both_views_of_all_images(monkeypatch):
    """Compute the first step by hand, with features instead of their projection."""
    monkeypatch.setattr("medfl_methods.pfedcdp.refinement.mlp", lambda *widths, **how: nn.Identity())
    start = small()
    _, losses = made([taught()], student=copy.deepcopy(start), epochs=1, batch_size=60, losses="scl", contrast_tau=0.5)
    with torch.no_grad():
        shown = start.train().body(torch.cat([DATA.images, DATA.images]))
    expected = supcon(shown, torch.cat([DATA.class_labels, DATA.class_labels]), 0.5)
    assert losses["contrast"] == pytest.approx(expected.item(), rel=1e-4)


def test_a_teacher_without_weight_teaches_nothing():
    how = {"losses": "kd", "epochs": 2}
    alone, _ = made([taught()], **how)
    beside, _ = made([taught(), small(4)], [1.0, 0.0], **how)
    for name, tensor in alone.state_dict().items():
        torch.testing.assert_close(beside.state_dict()[name], tensor)


def test_teachers_stay_as_they_are():
    teachers = [small(4).train(), taught()]
    before = [copy.deepcopy(teacher.state_dict()) for teacher in teachers]
    made(teachers, epochs=2)
    for teacher, state in zip(teachers, before, strict=True):
        assert tensors_equal(teacher.state_dict(), state)
        assert not any(part.training for part in teacher.modules())
        assert all(parameter.grad is None for parameter in teacher.parameters())


class Recorder(nn.Module):
    """Teacher that stores its inputs."""

    def __init__(self):
        super().__init__()
        self.shown = []

    def forward(self, images):
        self.shown.append(images)
        return torch.zeros(len(images), CLASSES)


def test_each_image_is_seen_in_two_views_and_taught_in_the_first():
    views, calls, teacher = [], [], Recorder()

    def view(images, rows, epoch, number):
        assert torch.equal(images, DATA.images[rows])
        views.append(images + len(views))
        calls.append((epoch, number))
        return views[-1]

    made([teacher], views=view, epochs=3, probe_epochs=0, losses="kd")
    assert calls == [(epoch, number) for epoch in (1, 2, 3) for _ in range(3) for number in (0, 1)]
    assert len(teacher.shown) == 3 * 3
    assert all(torch.equal(shown, first) for shown, first in zip(teacher.shown, views[::2], strict=True))
    seen = torch.cat(views[:6:2]).flatten(1)
    assert len(seen.unique(dim=0)) == 60  # nothing is dropped


@pytest.mark.parametrize("n", [1, 5, 21])
def test_batches_of_any_size_are_legal_with_batch_norm(n):
    data = TensorData(DATA.images[:n], DATA.class_labels[:n])
    student, losses = made([taught()], data=data, epochs=1, probe_epochs=1)
    assert all(tensor.isfinite().all() for tensor in student.state_dict().values())
    assert losses["distillation"] >= 0


# ---- the literal equation 19


def test_the_literal_mode_multiplies_the_loss(monkeypatch):
    """A tenth of the loss moves plain SGD a tenth of the way. Adam cancels the factor, except for its epsilon."""

    def way(scale):
        start = small()
        how = {"losses": "kd", "epochs": 1, "batch_size": 60, "probe_epochs": 0, "lr": 0.01}
        student, _ = made([taught()], scale=scale, student=copy.deepcopy(start), **how)
        return student.body[0].weight.detach() - start.body[0].weight.detach()

    torch.testing.assert_close(way(0.1), way(1.0), atol=1e-5, rtol=1e-3)
    monkeypatch.setattr("medfl_methods.pfedcdp.refinement.torch.optim.Adam", torch.optim.SGD)
    torch.testing.assert_close(10 * way(0.1), way(1.0), atol=1e-6, rtol=1e-3)
    assert way(1.0).abs().max() > 1e-4


# ---- the probe


def test_the_probe_trains_the_head_alone():
    student = taught()
    nn.init.zeros_(student.head.weight)
    before = copy.deepcopy(student.state_dict())
    train_probe(student, DATA, Refinement(probe_epochs=80, lr=0.05), SETTINGS, rng(), "cpu")
    assert all(torch.equal(t, before[name]) for name, t in student.state_dict().items() if name.startswith("body"))
    assert right(student) > 0.9


def test_a_classifier_is_the_optimum_of_its_loss():
    """For a bias alone, on features of zero, the optimum is the logarithm of the class frequencies."""
    labels = torch.tensor([0] * 6 + [1] * 3 + [2])
    head = nn.Linear(2, 3)
    train_head(head, TensorData(torch.zeros(10, 2), labels), 600, 10, 0.05, rng(), "cpu")
    torch.testing.assert_close(head.bias.softmax(0), torch.tensor([0.6, 0.3, 0.1]), atol=2e-3, rtol=0)


def test_a_batch_of_one_is_skipped_where_there_is_batch_norm_alone():
    data = TensorData(torch.randn(1, 4, generator=rng()), torch.tensor([1]))
    for head, moves in ((mlp(4, (3,), 2), False), (mlp(4, (3,), 2, norm=False), True)):
        before = copy.deepcopy(head.state_dict())
        train_head(head, data, 2, 8, 0.1, rng(), "cpu")
        assert tensors_equal(head.state_dict(), before) != moves
        assert not head.training


def test_the_student_is_taught_in_the_view_that_its_teachers_see():
    """Compute the first step by hand. Distillation uses the first view for the teachers and for the student."""
    views = (DATA.images + 0.5, -2 * DATA.images)
    teacher, start = taught(), small(norm=False)
    _, losses = made(
        [teacher],
        student=copy.deepcopy(start),
        epochs=1,
        batch_size=60,
        losses="kd",
        tau=1.0,
        views=lambda images, rows, epoch, number: views[number][rows],
    )
    with torch.no_grad():
        expected = F.kl_div(start(views[0]).log_softmax(1), teacher(views[0]).softmax(1), reduction="batchmean")
    assert losses["distillation"] == pytest.approx(expected.item(), rel=1e-4)


def test_mean_losses_are_those_of_images_not_of_batches(monkeypatch):
    """Without optimiser steps, batches of 40 and 20 images give the mean loss of one batch of all 60 images."""
    monkeypatch.setattr("medfl_methods.pfedcdp.refinement.torch.optim.Adam.step", lambda self: None)
    how = {"epochs": 1, "losses": "kd", "probe_epochs": 0}
    parts, whole = (
        made([taught()], student=small(norm=False), batch_size=size, **how)[1]["distillation"] for size in (40, 60)
    )
    assert parts == pytest.approx(whole, rel=1e-5)


def test_epochs_of_the_probe_are_counted_on():
    seen = []
    how = Refinement(epochs=2, probe_epochs=3, batch_size=20)
    train_student(small(), [taught()], [1.0], DATA, how, SETTINGS, rng(), after_epoch=seen.append)
    assert seen == [1, 2, 3, 4, 5]
