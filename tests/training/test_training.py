"""Tests of the training loop: visited rows, skipped batches, precision."""

import math
from dataclasses import replace
from typing import ClassVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some
from torch import nn

from medfl.objectives import Regression
from medfl.settings import Settings
from medfl.testing.cohort import SmallNet, TensorData, make_data, make_task
from medfl.training.loop import row_batches, train
from medfl.training.precision import autocast
from medfl.training.predict import mean_loss
from medfl.utils.rng import make_generator, seeded_generators


def batches(n, size, epochs, steps=None, seed=0):
    return [rows.tolist() for rows in row_batches(n, size, torch.Generator().manual_seed(seed), epochs, steps)]


@given(n=some.integers(0, 40), size=some.integers(1, 50), epochs=some.integers(0, 4), seed=some.integers(0, 99))
def test_every_row_is_visited_once_an_epoch(n, size, epochs, seed):
    drawn = batches(n, size, epochs, seed=seed)
    each = math.ceil(n / size)
    assert len(drawn) == epochs * each
    for epoch in range(epochs):
        part = drawn[epoch * each : (epoch + 1) * each]
        assert sorted(row for rows in part for row in rows) == list(range(n))
        assert all(len(rows) == size for rows in part[:-1])


@given(n=some.integers(0, 20), size=some.integers(1, 8), steps=some.integers(1, 30))
def test_steps_are_the_first_batches_of_as_many_epochs_as_it_takes(n, size, steps):
    drawn = batches(n, size, epochs=1, steps=steps)
    assert len(drawn) == (steps if n else 0)
    assert drawn == batches(n, size, epochs=steps)[:steps]


def test_epochs_are_shuffled_unlike_and_by_the_stream_alone():
    first, second = (sum(part, []) for part in (batches(20, 5, 2)[:4], batches(20, 5, 2)[4:]))
    assert first != second != list(range(20))
    assert batches(20, 5, 2) == batches(20, 5, 2) != batches(20, 5, 2, seed=1)


class Halves:
    """Schedule that restarts in each round and halves the rate from epoch to epoch."""

    restarts = True
    facts: ClassVar[dict[str, str]] = {"kind": "halves"}

    def __call__(self, number):
        return 0.5 ** (number - 1)


@pytest.mark.parametrize(
    ("length", "shares"), [({"epochs": 3}, [1, 1, 0.5, 0.5, 0.25, 0.25]), ({"steps": 3}, [1, 1, 0.5])]
)
def test_a_schedule_that_restarts_goes_by_the_epochs_of_a_training(length, shares):
    """Two batches are an epoch of 7 images in batches of 5, also if steps are counted.

    The round's decay also applies.
    """
    model = net(norm=False)
    task = replace(make_task(), optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1), schedule=Halves())
    task = task.in_round(3, Settings(rounds=3, lr_decay=0.5))
    own, beside = task.optimizer(model.parameters()), task.optimizer([nn.Parameter(torch.zeros(1))])
    seen = []
    train(
        model,
        make_data(7, "site"),
        lambda batch: nn.functional.cross_entropy(model(batch.images), batch.targets),
        own,
        Settings(rounds=1, batch_size=5, **length),
        make_generator("training"),
        after_batch=lambda: seen.append((own.param_groups[0]["lr"], beside.param_groups[0]["lr"])),
        before_epoch=task.epoch_rates,
    )
    assert [rate for rate, _ in seen] == pytest.approx([0.1 * 0.25 * share for share in shares])
    assert all(rate == other for rate, other in seen), "the optimiser of a model beside it follows as well"


def fit(model, data, after_batch=None, **settings):
    """Train with SGD; return the result and the batch sizes."""
    sizes = []

    def loss(batch):
        sizes.append(len(batch.targets))
        assert batch.images.dtype == torch.float32
        assert batch.targets.dtype == torch.int64
        return nn.functional.cross_entropy(model(batch.images), batch.targets)

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    values = Settings(**({"rounds": 1, "batch_size": 5} | settings))
    done = train(model, data, loss, optimizer, values, make_generator("training"), after_batch=after_batch)
    return done, sizes


def net(norm=True):
    with seeded_generators("net"):
        return SmallNet(norm=norm)


def copied(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def unchanged(model, before):
    return all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize(
    ("norm", "norm_sync", "sizes"), [(True, "all", [5, 5]), (True, "frozen", [5, 5, 1]), (False, "all", [5, 5, 1])]
)
def test_a_last_batch_of_one_is_skipped_where_batch_norm_would_fail(norm, norm_sync, sizes):
    done, lengths = fit(net(norm), make_data(11, "a"), norm_sync=norm_sync)
    assert lengths == sizes
    assert (done.batches, done.samples) == (len(sizes), sum(sizes))


def test_a_site_smaller_than_the_batch_still_trains():
    model = net()
    before = copied(model)
    done, sizes = fit(model, make_data(3, "a"), batch_size=64)
    assert sizes == [3]
    assert done.batches == 1
    assert not unchanged(model, before)


@pytest.mark.parametrize("n", [0, 1])
def test_without_a_usable_batch_nothing_changes_and_the_loss_is_undefined(n):
    model = net()
    before = copied(model)
    done, sizes = fit(model, make_data(n, "a"), epochs=3)
    assert sizes == []
    assert (done.batches, done.samples) == (0, 0)
    assert math.isnan(done.loss)
    assert unchanged(model, before)


def test_no_epoch_is_no_training():
    model = net()
    before = copied(model)
    assert fit(model, make_data(9, "a"), epochs=0)[0].batches == 0
    assert unchanged(model, before)


def test_the_loss_is_the_mean_over_images_not_over_batches():
    model, data = net(norm=False), make_data(7, "a")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    settings = Settings(rounds=1, batch_size=5, epochs=2)

    def loss(batch):
        return nn.functional.cross_entropy(model(batch.images), batch.targets)

    done = train(model, data, loss, optimizer, settings, make_generator("x"))
    whole = nn.functional.cross_entropy(model(data.images), data.class_labels).item()
    assert done.loss == pytest.approx(whole, rel=1e-5)
    assert done.samples == 14
    assert done.seconds > 0


def test_frozen_layers_learn_but_keep_their_statistics():
    model = net()
    before = copied(model)
    fit(model, make_data(20, "a"), norm_sync="frozen", epochs=2)
    moved = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert not {name for name in moved if "running" in name or "num_batches" in name}
    assert {"body.1.weight", "body.1.bias", "head.weight"} <= moved


def test_dropout_is_on_while_batch_norm_is_frozen():
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(36), nn.Dropout(0.5), nn.Linear(36, 3)).eval()
    fit(model, make_data(6, "a"), norm_sync="frozen")
    assert model.training
    assert model[2].training
    assert not model[1].training


def test_a_call_after_each_step():
    calls = []
    done, _ = fit(net(), make_data(12, "a"), after_batch=lambda: calls.append(1))
    assert len(calls) == done.batches == 3


def test_the_stream_alone_decides_the_result():
    states = []
    for disturb in (0, 1):
        torch.manual_seed(disturb)
        model = net()
        fit(model, make_data(20, "a"), epochs=2)
        states.append(copied(model))
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_half_precision_differs_a_little_and_stays_finite():
    models = {}
    for precision in ("fp32", "bf16"):
        models[precision] = net()
        fit(models[precision], make_data(20, "a"), precision=precision)
    apart = [
        (a - b).abs().max().item()
        for a, b in zip(models["fp32"].parameters(), models["bf16"].parameters(), strict=True)
    ]
    assert 0 < max(apart) < 0.05
    assert all(parameter.dtype == torch.float32 for parameter in models["bf16"].parameters())
    assert autocast(Settings(rounds=1, precision="bf16"), "cpu")._enabled
    assert not autocast(Settings(rounds=1), "cpu")._enabled


def test_gradients_do_not_run_over_from_batch_to_batch():
    """Each step moves by the same amount if the loss is linear in the weights."""
    weight = nn.Parameter(torch.zeros(()))
    model = nn.Module()
    model.weight = weight
    data = TensorData(torch.ones(8, 1, 1, 1), torch.zeros(8, dtype=torch.int64))
    optimizer = torch.optim.SGD([weight], lr=0.5)
    train(model, data, lambda batch: weight, optimizer, Settings(rounds=1, batch_size=2), make_generator("y"))
    assert weight.item() == -2.0


# ---- gradient clipping (O-KP-6)


def one_step(gradients, clip):
    """Return minus the gradient of one step of plain gradient descent, for a loss that is linear in the weights."""
    weights = [nn.Parameter(torch.zeros(len(part))) for part in gradients]
    model = nn.ParameterList(weights)
    data = TensorData(torch.ones(2, 1, 1, 1), torch.zeros(2, dtype=torch.int64))

    def loss(batch):
        return sum((weight * part).sum() for weight, part in zip(weights, gradients, strict=True))

    optimizer = torch.optim.SGD(weights, lr=1.0)
    train(model, data, loss, optimizer, Settings(rounds=1), make_generator("clip"), gradient_clip=clip)
    return [weight.detach() for weight in weights]


def test_a_long_gradient_is_scaled_over_all_parameters_jointly():
    gradients = [torch.tensor([2.0, -3.0]), torch.tensor([6.0])]  # norm 7; neither part alone is as long
    clipped = one_step(gradients, 5.0)
    assert math.sqrt(sum(part.square().sum().item() for part in clipped)) == pytest.approx(5, rel=1e-6)
    for part, gradient in zip(clipped, gradients, strict=True):
        torch.testing.assert_close(part, -5 / 7 * gradient)


@pytest.mark.parametrize("clip", [5.0, 1e30, None])
def test_a_short_gradient_is_left_as_it_is(clip):
    gradients = [torch.tensor([1.0, -2.0]), torch.tensor([2.0])]  # norm 3
    assert all(torch.equal(part, -gradient) for part, gradient in zip(one_step(gradients, clip), gradients))


def test_every_batch_is_clipped_and_frozen_parameters_are_left_out():
    """Four steps with a gradient of 10 are each clipped to 0.5; a parameter without a gradient is ignored."""
    model = nn.Module()
    model.weight, model.frozen = nn.Parameter(torch.zeros(())), nn.Parameter(torch.ones(()), requires_grad=False)
    data = TensorData(torch.ones(8, 1, 1, 1), torch.zeros(8, dtype=torch.int64))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    settings = Settings(rounds=1, batch_size=2)
    done = train(
        model, data, lambda batch: 10 * model.weight, optimizer, settings, make_generator("z"), gradient_clip=0.5
    )
    assert done.batches == 4
    assert model.weight.item() == pytest.approx(-2.0, rel=1e-6)
    assert model.frozen.item() == 1


def test_a_batch_knows_its_rows():
    data, seen = make_data(12, "a"), []

    def loss(batch):
        images, labels = data.batch(batch.rows)
        assert torch.equal(batch.images, images)
        assert torch.equal(batch.targets, labels)
        seen.extend(batch.rows.tolist())
        return model(batch.images).sum()

    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    train(model, data, loss, optimizer, Settings(rounds=1, batch_size=5), make_generator("rows"))
    assert sorted(seen) == list(range(12)) != seen


@pytest.mark.parametrize(
    ("precision", "device", "mixed"),
    [
        ("fp32", "cpu", False),
        ("fp32", "cuda:0", False),
        ("bf16", "cpu", True),
        ("bf16", "cuda:0", True),
        ("amp", "cpu", False),
        ("amp", "cuda:0", True),
    ],
)
def test_amp_is_mixed_precision_on_a_gpu_alone(monkeypatch, precision, device, mixed):
    """The test checks the arguments of `torch.autocast`, so it needs no GPU. MONAI's trainer behaves the same."""
    calls = []
    monkeypatch.setattr(
        "medfl.training.precision.torch.autocast", lambda kind, dtype, enabled: calls.append((kind, dtype, enabled))
    )
    autocast(Settings(rounds=1, precision=precision), device)
    assert calls == [(device.partition(":")[0], torch.bfloat16, mixed)]


class Column(nn.Module):
    """Network whose output is the first pixel of each image."""

    def forward(self, images):
        return images[:, :1, 0, 0]


def test_the_mean_loss_is_that_of_cases_not_of_batches(monkeypatch):
    """Errors of 0, 0, 0, 0 and 10 in batches of four and one have the mean 2. The mean of the batch means is 5."""
    monkeypatch.setattr("medfl.training.predict.EVALUATION_BATCH", 4)
    images = torch.tensor([0.0, 0.0, 0.0, 0.0, 10.0]).view(5, 1, 1, 1)
    data = TensorData(images, torch.zeros(5, 1))
    settings = Settings(rounds=1)
    assert mean_loss(Column(), data, Regression(1), nn.L1Loss(), settings) == pytest.approx(2.0)
    nothing = TensorData(images[:0], torch.zeros(0, 1))
    assert math.isnan(mean_loss(Column(), nothing, Regression(1), nn.L1Loss(), settings))
