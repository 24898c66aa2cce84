"""Tests of learning rates over a run: the numbers of torch's schedulers, and positions within rounds."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from refusals import refused
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR

from medfl.errors import SettingsError
from medfl.settings import Optimization, Settings
from medfl.testing.cohort import SmallNet, make_data, make_task
from medfl.training.learning_rates import StepRates, warmup_and_decay
from medfl.training.loop import train
from medfl.utils.rng import make_generator

RATE = 0.1


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=RATE)


def scheduled_rates(optimization: Optimization, rounds: int, batches: int) -> list[float]:
    """Return the learning rate of each step of a run whose trainings have a number of batches."""
    rates = []
    for round_ in range(1, rounds + 1):
        optimizer = sgd([nn.Parameter(torch.zeros(1))])
        step = StepRates(optimization, round_, rounds)
        step.follow(optimizer)
        for batch in range(batches):
            step(batch, batches)
            rates.append(optimizer.param_groups[0]["lr"])
    return rates


def torch_rates(warmup: int, total: int, cosine: bool = True) -> list[float]:
    """Return the learning rate of each step by torch's own schedulers, which count the steps of one optimiser."""
    optimizer = sgd([nn.Parameter(torch.zeros(1))])
    schedulers: list[torch.optim.lr_scheduler.LRScheduler] = []
    if warmup:
        schedulers.append(LinearLR(optimizer, start_factor=1 / warmup, total_iters=warmup))
    schedulers.append(
        CosineAnnealingLR(optimizer, total - warmup)
        if cosine
        else torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0, 0)
    )
    scheduler = SequentialLR(optimizer, schedulers, [warmup]) if warmup else schedulers[0]
    rates = []
    for _ in range(total):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


@pytest.mark.parametrize(("rounds", "warmup", "batches"), [(4, 0, 5), (4, 1, 5), (7, 3, 2), (3, 2, 1), (1, 0, 9)])
def test_the_cosine_over_the_run_has_the_numbers_of_torch(rounds, warmup, batches):
    rates = scheduled_rates(Optimization(schedule="cosine", warmup_rounds=warmup), rounds, batches)
    assert rates == pytest.approx(torch_rates(warmup * batches, rounds * batches), abs=1e-12)
    assert min(rates) > 0, "no step is lost, not the first one either"


def test_a_warmup_without_a_cosine_ends_at_the_full_rate():
    rates = scheduled_rates(Optimization(warmup_rounds=2), rounds=4, batches=3)
    assert rates == pytest.approx(torch_rates(6, 12, cosine=False), abs=1e-12)
    assert rates[6:] == [RATE] * 6


def test_a_warmup_longer_than_the_run_does_not_depend_on_its_rounds():
    short, long = (scheduled_rates(Optimization(warmup_rounds=4), rounds, 3) for rounds in (2, 6))
    assert short == long[:6]


def test_sites_with_other_numbers_of_batches_have_one_rate_at_the_start_of_a_round():
    recipe = Optimization(schedule="cosine")
    few, many = scheduled_rates(recipe, 5, batches=2), scheduled_rates(recipe, 5, batches=7)
    assert few[::2] == pytest.approx(many[::7], abs=1e-12)
    assert warmup_and_decay(0, 10, True)(5) == pytest.approx(0.5, abs=1e-12), "half of the way is half of the rate"


def test_a_training_takes_its_round_of_the_schedule_batch_by_batch():
    """The optimisers of two models follow, and keep what a method changed after it had created them."""
    task = replace(make_task(), optimizer=sgd)
    settings = Settings(rounds=4, epochs=2, batch_size=5, optimization={"schedule": "cosine", "warmup_rounds": 1})
    model = SmallNet(norm=False)
    in_round = task.in_round(3, settings)
    own, beside = in_round.optimizer(model.parameters()), in_round.optimizer([nn.Parameter(torch.zeros(1))])
    beside.param_groups[0]["lr"] *= 10
    seen = []
    train(
        model,
        make_data(7, "site"),
        lambda batch: nn.functional.cross_entropy(model(batch.images), batch.targets),
        own,
        settings,
        make_generator("training"),
        after_batch=lambda: seen.append((own.param_groups[0]["lr"], beside.param_groups[0]["lr"])),
        before_batch=in_round.step_rates,
    )
    assert [rate for rate, _ in seen] == pytest.approx(torch_rates(4, 16)[8:12], abs=1e-12)
    assert [other for _, other in seen] == pytest.approx([10 * rate for rate, _ in seen])


def test_skipped_batches_count():
    """A last batch of one image is skipped if batch norm is trained; the next step is the one after it."""
    model, seen = SmallNet(norm=True), []
    optimizer = sgd(model.parameters())
    settings = Settings(rounds=2, epochs=2, batch_size=5, optimization={"schedule": "cosine"})
    step = StepRates(Optimization(schedule="cosine"), 1, 2)
    step.follow(optimizer)
    train(
        model,
        make_data(6, "site"),
        lambda batch: nn.functional.cross_entropy(model(batch.images), batch.targets),
        optimizer,
        settings,
        make_generator("training"),
        after_batch=lambda: seen.append(optimizer.param_groups[0]["lr"]),
        before_batch=step,
    )
    assert seen == pytest.approx(torch_rates(0, 8)[0:4:2], abs=1e-12)


def test_a_round_after_the_end_of_a_cosine_is_refused():
    step = StepRates(Optimization(schedule="cosine"), 4, 3)
    with refused(SettingsError, "round_after_schedule", setting="rounds", expected=3, found=4):
        step(0, 5)
    StepRates(Optimization(warmup_rounds=1), 4, 3)(0, 5)


def test_a_task_without_a_recipe_is_unchanged():
    task = make_task()
    assert task.in_round(2, Settings(rounds=3)) is task
    recipe = task.in_round(2, Settings(rounds=3, optimization={}))
    assert recipe.step_rates is None
    assert (
        recipe.optimizer(nn.Linear(2, 2).parameters()).defaults == task.optimizer(nn.Linear(2, 2).parameters()).defaults
    )
