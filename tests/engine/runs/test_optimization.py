"""Tests of runs with an optimisation recipe: bits, kills, refusals, and the moving average of the global model."""

from __future__ import annotations

import contextlib
import json
import logging
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from quick_settings import QUICK
from refusals import refused
from toys import PAIR

from medfl.engine.checks import check_plan
from medfl.engine.runs.simulation import SimulationResult
from medfl.errors import SettingsError, StoreError
from medfl.plugins import load_plugins
from medfl.records.run_file import RunFile
from medfl.settings import Settings, read_settings
from medfl.testing import checks
from medfl.testing.cohort import Case, bits, make_sites, make_task
from medfl.toolkit.averaging import publishes_average
from medfl.types import Tensors
from medfl.utils.wire import tensors_equal

REGISTRY = load_plugins()
RECIPE = {"schedule": "cosine", "warmup_rounds": 1, "layer_decay": 0.7, "decay_norms": False}
OFF: dict[str, Any] = {"schedule": "constant", "warmup_rounds": 0, "layer_decay": 1.0, "decay_norms": True}
DECAYING = replace(
    make_task(), optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.01)
)
NO_NORMS = make_task("plain")


def same(left: dict[str, Tensors], right: dict[str, Tensors]) -> bool:
    return left.keys() == right.keys() and all(tensors_equal(left[key], right[key]) for key in left)


def federation(name: str, optimization: dict[str, Any] | None, **args: Any) -> Case:
    return Case(REGISTRY, name, args, {"optimization": optimization})


# ---- runs with and without a recipe


@pytest.mark.parametrize("method", ["fedavg", "apfl", "fedkd", "fedrod", "fedbabu", "scaffold"])
def test_a_recipe_with_the_defaults_has_the_bits_of_a_run_without_one(tmp_path, method):
    options = {"task": DECAYING, "rounds": 2, "sites": make_sites(PAIR)}
    plain = Case(REGISTRY, method).run(tmp_path / "plain", **options)
    off = federation(method, OFF).run(tmp_path / "off", **options)
    assert same(bits(plain), bits(off))


def test_a_run_without_a_recipe_has_the_identity_of_earlier_versions(tmp_path):
    """The identity enters the keys of noise streams, so a new setting must not change it."""
    for name, recipe in (("plain", None), ("recipe", OFF)):
        federation("fedavg", recipe).run(tmp_path / name, rounds=1)
    identities = [json.loads((tmp_path / name / RunFile.NAME).read_text())["identity"] for name in ("plain", "recipe")]
    assert "optimization" not in identities[0]["settings"]
    assert identities[1]["settings"]["optimization"] == OFF | {"ema": None}
    assert RunFile.read(tmp_path / "plain" / RunFile.NAME).settings.optimization is None
    with refused(StoreError, "other_run", setting="settings.optimization"):
        federation("fedavg", OFF).run(tmp_path / "plain", rounds=1)


def test_each_part_of_a_recipe_changes_the_models(tmp_path):
    options = {"task": DECAYING, "rounds": 2, "sites": make_sites(PAIR)}
    plain = bits(Case(REGISTRY, "fedavg").run(tmp_path / "plain", **options))
    for name, value in RECIPE.items():
        assert not same(plain, bits(federation("fedavg", {name: value}).run(tmp_path / name, **options))), name


class Logged(torch.optim.SGD):
    """SGD that logs the learning rates of its groups at each step."""

    rates: ClassVar[list[list[float]]] = []

    def step(self, closure=None):
        self.rates.append([group["lr"] for group in self.param_groups])
        return super().step(closure)


def logged_rates(folder, monkeypatch, name: str, recipe: dict[str, Any], **options: Any) -> list[list[float]]:
    monkeypatch.setattr(Logged, "rates", [])
    task = replace(make_task("plain"), optimizer=lambda parameters: Logged(parameters, lr=0.1))
    options = {"rounds": 2, "steps": 2, "fraction": 0.1} | options
    federation(name, recipe, **options.pop("args", {})).run(folder, task=task, **options)
    return Logged.rates


def test_the_rates_of_a_run_by_hand(tmp_path, monkeypatch):
    """Two rounds of two steps at one site: a warm-up of two steps, a cosine of two; the body has half the rate."""
    recipe = {"schedule": "cosine", "warmup_rounds": 1, "layer_decay": 0.5}
    rates = logged_rates(tmp_path, monkeypatch, "fedavg", recipe)
    assert [head for head, _ in rates] == pytest.approx([0.05, 0.075, 0.1, 0.05])
    assert [body for _, body in rates] == pytest.approx([0.025, 0.0375, 0.05, 0.025])


def test_a_second_model_beside_the_first_follows_the_recipe(tmp_path, monkeypatch):
    rates = logged_rates(tmp_path, monkeypatch, "fedkd", {"schedule": "cosine"}, args={"mentee_rate": 0.5}, steps=1)
    assert sorted({round(rate, 6) for (rate,) in rates}) == [0.025, 0.05, 0.1]


def test_an_adaptation_after_the_last_round_has_the_constant_rate(tmp_path, monkeypatch):
    args = {"finetune_steps": 1, "finetune_lr": 0.3}
    rates = logged_rates(tmp_path, monkeypatch, "fedbabu", {"schedule": "cosine"}, args=args, steps=1)
    assert [rate for (rate,) in rates[:2]] == pytest.approx([0.1, 0.05])
    assert {rate for (rate,) in rates[2:]} == {0.3}


# ---- the conformance suite with a recipe


@pytest.mark.parametrize(
    "name", ["fedavg", "ditto", *(pytest.param(name, marks=pytest.mark.slow) for name in ("fedkd", "fedrep", "moon"))]
)
@pytest.mark.parametrize(
    "check", [checks.run_resumes_at_every_step, checks.site_order_and_workers_have_no_effect], ids=["kills", "workers"]
)
def test_runs_with_a_recipe_keep_the_contract(name, check):
    recipe = RECIPE | ({"ema": 0.6} if publishes_average(REGISTRY.make_method(name, {})) else {})
    check(federation(name, recipe))


@pytest.mark.parametrize("name", sorted(REGISTRY.methods))
def test_every_method_trains_with_a_recipe_or_says_why_not(tmp_path, name):
    if name in ("scaffold", "fednova"):
        with refused(SettingsError, "unmet_need", method=name, need="one_learning_rate"):
            federation(name, RECIPE).run(tmp_path, task=DECAYING)
    else:
        case = federation(name, RECIPE, **QUICK.get(name, {}))
        result = case.run(tmp_path, task=DECAYING, sites=make_sites(PAIR), rounds=2, steps=1)
        assert result.outcome.status == "finished"


def test_the_page_lists_the_methods_that_support_an_average():
    """A method does if the check of a run accepts it on a network with batch norm."""
    supported = set()
    for name in REGISTRY.methods:
        with contextlib.suppress(SettingsError):
            check(name, {"ema": 0.9}, make_task())
            supported.add(name)
    page = (Path(__file__).parents[3] / "docs" / "pretrained_recipes.md").read_text()
    (listed,) = [part for part in page.split("\n\n") if part.startswith("Methods whose server averages")]
    assert set(re.findall(r"`(\w+)`", listed.partition("Others refuse")[0])) == supported


# ---- the number of rounds


def test_a_run_with_a_cosine_is_not_continued_with_more_rounds(tmp_path):
    federation("fedavg", {"schedule": "cosine"}).run(tmp_path, rounds=2)
    with refused(StoreError, "changed_schedule_rounds", expected=2, found=3):
        federation("fedavg", {"schedule": "cosine"}).run(tmp_path, rounds=3)


def test_a_run_with_a_warmup_is_continued_with_more_rounds(tmp_path):
    warm = federation("fedavg", {"warmup_rounds": 2})
    whole = warm.run(tmp_path / "whole", rounds=3)
    warm.run(tmp_path / "parts", rounds=1)
    assert same(bits(whole), bits(warm.run(tmp_path / "parts", rounds=3)))


# ---- refusals


def check(name: str, recipe: dict[str, Any], task=NO_NORMS, args: dict[str, Any] | None = None, **settings: Any):
    values = read_settings(Settings, {"rounds": 3, "optimization": recipe} | settings, "the run")
    needs = {record.name: record.needs for record in REGISTRY.methods.values()}
    check_plan(name, REGISTRY.make_method(name, args or {}), task, values, ["a", "b"], True, needs)


@pytest.mark.parametrize("name", ["scaffold", "fednova"])
@pytest.mark.parametrize("recipe", [{"schedule": "cosine"}, {"warmup_rounds": 1}, {"layer_decay": 0.9}])
def test_methods_that_compute_with_the_step_length_refuse_other_rates_in_a_round(name, recipe):
    with refused(SettingsError, "unmet_need", method=name, need="one_learning_rate") as caught:
        check(name, recipe)
    assert "fedavg" in caught.value.fields["methods"]
    assert not {"scaffold", "fednova"} & set(caught.value.fields["methods"])
    check(name, {"decay_norms": False}, lr_decay=0.9)


class BundleSchedule:
    """Schedule of a bundle."""

    facts: ClassVar[dict[str, str]] = {"kind": "bundle"}

    def __init__(self, restarts: bool) -> None:
        self.restarts = restarts

    def __call__(self, number: int) -> float:
        return 0.5**number


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("recipe", [{"schedule": "cosine"}, {"warmup_rounds": 1}])
def test_two_schedules_are_refused(restarts, recipe):
    task = replace(NO_NORMS, schedule=BundleSchedule(restarts))
    with refused(SettingsError, "incompatible_settings") as caught:
        check("fedavg", recipe, task)
    assert "schedule" in caught.value.fields["settings"]
    check("fedavg", {"layer_decay": 0.9}, task)


def test_a_bundle_schedule_that_restarts_is_refused_by_methods_that_compute_with_the_step_length():
    with refused(SettingsError, "unmet_need", method="fednova", need="one_learning_rate"):
        check("fednova", OFF, replace(NO_NORMS, schedule=BundleSchedule(restarts=True)))
    check("fednova", OFF, replace(NO_NORMS, schedule=BundleSchedule(restarts=False)))


def test_settings_that_contradict_each_other_are_refused():
    with refused(SettingsError, "incompatible_settings", settings=["optimization.schedule", "lr_decay"]):
        check("fedavg", {"schedule": "cosine"}, lr_decay=0.9)
    with refused(SettingsError, "setting_out_of_range", setting="optimization.warmup_rounds", expected=2, found=3):
        check("fedavg", {"schedule": "cosine", "warmup_rounds": 3})
    check("fedavg", {"warmup_rounds": 3}, lr_decay=0.9)


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"schedule": "cosin"}, "unknown_choice"),
        ({"layer_decay": 0}, "setting_out_of_range"),
        ({"layer_decay": 1.1}, "setting_out_of_range"),
        ({"warmup_rounds": -1}, "setting_out_of_range"),
        ({"ema": 1}, "setting_out_of_range"),
        ({"gradient_clip": 1}, "unknown_setting"),
    ],
)
def test_wrong_values_are_refused(wrong, code):
    (name,) = wrong
    with refused(SettingsError, code, settings=[f"optimization.{name}"]):
        read_settings(Settings, {"rounds": 1, "optimization": wrong}, "the run")


def test_an_optimizer_without_weight_decay_is_warned_of(caplog):
    with caplog.at_level(logging.WARNING):
        check("fedavg", {"decay_norms": False}, DECAYING)
        assert not [record for record in caplog.records if "decay_norms" in record.message]
        check("fedavg", {"decay_norms": False})
        assert [record for record in caplog.records if "decay_norms" in record.message]


# ---- the moving average


def global_model(result: SimulationResult) -> Tensors:
    return result.outcome.models["global"].tensors


def test_the_moving_average_over_three_rounds_by_hand(tmp_path):
    """Sites train from the last model, as without an average; the average starts with the model of round 1."""
    plain = [
        global_model(Case(REGISTRY, "fedavg").run(tmp_path / "plain", rounds=rounds, task=NO_NORMS))
        for rounds in (1, 2, 3)
    ]
    averaged = federation("fedavg", {"ema": 0.6}).run(tmp_path / "ema", task=NO_NORMS)
    for name, tensor in global_model(averaged).items():
        first, second, third = (model[name].double() for model in plain)
        expected = 0.6**2 * first + 0.6 * 0.4 * second + 0.4 * third
        assert torch.allclose(tensor.double(), expected, atol=1e-7), name
    for site in averaged.models:
        assert tensors_equal(averaged.models[site]["global"].tensors, global_model(averaged))


def test_the_moving_average_equals_torchs_averaged_model(tmp_path):
    """Statistics of batch norm are averaged, too; integer buffers are those of the last model."""
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

    task = make_task()
    expected: AveragedModel | None = None
    for rounds in (1, 2, 3):
        model = task.load(global_model(Case(REGISTRY, "fedavg").run(tmp_path / "plain", rounds=rounds)))
        expected = expected or AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
        expected.update_parameters(model)
    assert expected is not None
    average, last = expected.module.state_dict(), model.state_dict()
    for name, tensor in global_model(federation("fedavg", {"ema": 0.9}).run(tmp_path / "ema")).items():
        assert torch.equal(tensor, average[name] if tensor.is_floating_point() else last[name]), name


def test_a_constant_model_is_its_own_average(tmp_path):
    """With a learning rate of 0 the models of all rounds are the initial one."""
    task = replace(NO_NORMS, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.0))
    result = federation("fedavg", {"ema": 0.3}).run(tmp_path, task=task)
    assert tensors_equal(global_model(result), task.initial(7))


@pytest.mark.parametrize("name", ["apfl", "fedper", "fedrep", "local", "scaffold", "feddyn", "cyclic", "centralized"])
def test_methods_without_one_averaged_global_model_refuse_an_average(name):
    with refused(SettingsError, "method_not_supported", feature="optimization.ema", method=name):
        check(name, {"ema": 0.9})


def test_an_average_of_a_part_of_the_model_is_refused():
    for name in ("fedbn", "fedavg"):
        with refused(SettingsError, "incompatible_settings", settings=["optimization.ema", "norm_sync"], method=name):
            check(name, {"ema": 0.9}, make_task(), norm_sync="none")
    check("fedavg", {"ema": 0.9}, NO_NORMS, norm_sync="none")


@pytest.mark.parametrize(
    "settings",
    [
        {"privacy": {"epsilon": 8, "clip": 1.0}},
        {"secure_aggregation": {}},
        {"robust": {"rule": "median"}},
        {"compression": {"bits": 8}},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_the_average_goes_with_other_settings_of_the_updates(tmp_path, settings):
    options = {"task": NO_NORMS, "rounds": 2} | settings
    result = federation("fedavg", {"ema": 0.6, "warmup_rounds": 1}).run(tmp_path, **options)
    plain = federation("fedavg", {"warmup_rounds": 1}).run(tmp_path / "plain", **options)
    assert result.outcome.status == "finished"
    assert not tensors_equal(global_model(result), global_model(plain))


def test_private_training_follows_the_recipe(tmp_path):
    pytest.importorskip("opacus")
    privacy = {"privacy": {"unit": "sample", "epsilon": 8, "clip": 1.0}, "rounds": 2, "steps": 2}
    plain = Case(REGISTRY, "fedavg", {"gradient_clip": 1.0}).run(tmp_path / "plain", task=NO_NORMS, **privacy)
    recipe = federation("fedavg", RECIPE, gradient_clip=1.0).run(tmp_path / "recipe", task=NO_NORMS, **privacy)
    assert plain.outcome.status == recipe.outcome.status == "finished"
    assert not same(bits(plain), bits(recipe))
