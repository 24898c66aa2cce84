"""Tests of class weights and balanced sampling: closed forms, equal classes, and use at the sites."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from refusals import refused
from sklearn.utils.class_weight import compute_class_weight
from torch import nn

from medfl.engine.site import SiteRunner, Splits
from medfl.errors import SettingsError
from medfl.objectives.balance import class_weights, sampling_weights, weighted_loss
from medfl.settings import Settings
from medfl.testing.cohort import make_data, make_plan, make_task
from medfl.training.balance import bundle_sampler, bundle_weights
from medfl.training.loop import row_batches, train

LABELS = torch.tensor([0, 0, 0, 0, 0, 0, 2, 2, 1])


def test_weights_are_those_of_scikit_learn():
    expected = compute_class_weight("balanced", classes=np.arange(3), y=LABELS.numpy())
    assert class_weights(LABELS, 3).tolist() == pytest.approx(expected.tolist())
    assert class_weights(LABELS, 3)[LABELS].mean() == pytest.approx(1.0)


def test_a_class_without_images_weighs_nothing_and_equal_classes_weigh_one():
    assert class_weights(torch.tensor([0, 2]), 4).tolist() == [1.0, 0.0, 1.0, 0.0]
    assert class_weights(torch.arange(5).repeat(3), 5).tolist() == [1.0] * 5
    assert class_weights(torch.empty(0, dtype=torch.int64), 3).tolist() == [0.0] * 3


def test_the_weighted_loss_is_a_copy():
    loss = nn.CrossEntropyLoss(label_smoothing=0.1)
    weighted = weighted_loss(loss, LABELS, 3)
    assert loss.weight is None
    assert weighted.label_smoothing == 0.1
    logits = torch.randn(9, 3, generator=torch.Generator().manual_seed(0))
    expected = nn.functional.cross_entropy(logits, LABELS, class_weights(LABELS, 3), label_smoothing=0.1)
    assert torch.equal(weighted(logits, LABELS), expected)


@pytest.mark.parametrize(
    ("loss", "code", "name"),
    [
        (nn.MSELoss(), "loss_not_supported", "MSELoss"),
        (nn.CrossEntropyLoss(torch.ones(3)), "duplicate_class_weights", None),
    ],
)
def test_losses_that_take_no_weights_are_refused(loss, code, name):
    with refused(SettingsError, code, setting="balance", loss=name):
        weighted_loss(loss, LABELS, 3)


def test_balanced_sampling_draws_every_class_equally_often():
    generator = torch.Generator().manual_seed(0)
    weights = sampling_weights(LABELS)
    rows = torch.cat(list(row_batches(9, 4, generator, epochs=2000, weights=weights)))
    assert len(rows) == 9 * 2000
    shares = torch.bincount(LABELS[rows], minlength=3) / len(rows)
    # standard deviation of a share: sqrt(1/3 * 2/3 / 18000) = 0.0035; five of them
    assert shares.tolist() == pytest.approx([1 / 3] * 3, abs=0.018)


def test_sampling_reaches_the_training_and_none_leaves_it_alone():
    seen: dict[str, torch.Tensor] = {}
    for balance in ("none", "sampling"):
        data, model = make_data(30, "x"), nn.Sequential(nn.Flatten(), nn.LazyLinear(3))
        model(data.batch(torch.arange(2))[0])
        data.class_labels[:] = torch.tensor([0] * 27 + [1, 1, 2])
        labels = []

        def loss(batch, model=model, labels=labels):
            labels.append(batch.targets)
            return nn.functional.cross_entropy(model(batch.images), batch.targets)

        settings = Settings(rounds=1, epochs=40, balance=balance)
        train(model, data, loss, torch.optim.SGD(model.parameters(), 0.01), settings, torch.Generator().manual_seed(1))
        seen[balance] = torch.bincount(torch.cat(labels), minlength=3)
    assert seen["none"].tolist() == [27 * 40, 2 * 40, 40]
    assert min(seen["sampling"].tolist()) > 300


def test_each_site_weighs_the_loss_by_its_own_classes(tmp_path):
    task, data = make_task(), make_data(20, "x")
    data.class_labels[:] = torch.tensor([0] * 15 + [1] * 4 + [2])
    host = SiteRunner(
        "a", Splits(data, data, data), tmp_path, make_plan(Settings(rounds=1, balance="loss"), task), print
    )
    assert torch.equal(host.task.loss.weight, class_weights(data.class_labels, task.objective.classes))
    assert task.loss.weight is None
    plain = SiteRunner("a", Splits(data, data, data), tmp_path, make_plan(Settings(rounds=1), task), print)
    assert plain.task.loss is task.loss


def test_a_bundle_of_one_site_gets_neither_unless_it_asks():
    assert bundle_weights(LABELS, 3, "none") is None
    assert bundle_sampler(LABELS, "loss", 0) is None
    assert torch.equal(bundle_weights(LABELS, 3, "loss"), class_weights(LABELS, 3))
    rows = torch.tensor(list(bundle_sampler(LABELS.repeat(1000), "sampling", 0))) % 9
    assert (torch.bincount(LABELS[rows]) / 9000).tolist() == pytest.approx([1 / 3] * 3, abs=0.03)
