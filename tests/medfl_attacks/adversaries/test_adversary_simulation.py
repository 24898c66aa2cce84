"""Poisoning attacks in simulated runs: their effect, their records in runs and pages, and robust aggregation."""

import logging
import shutil

import pytest
from refusals import refused

from medfl.engine.runs.records import read_run
from medfl.engine.store import Store
from medfl.errors import SettingsError
from medfl.plugins import load_plugins
from medfl.testing.cohort import Case, bits, make_task
from medfl.utils.wire import tensors_equal

REGISTRY = load_plugins()


def moved(folder, **settings):
    """Return the distance that FedAvg's model moves in one round with three sites."""
    task = make_task("plain")
    run = Case(REGISTRY, "fedavg", {"weights": "uniform"}).run(folder, task=task, rounds=1, **settings)
    assert run.outcome.status == "finished"
    model = run.outcome.models["global"].tensors
    return sum(float((model[key] - start).square().sum()) for key, start in task.initial(7).items()) ** 0.5


def test_a_median_withstands_what_a_mean_does_not(tmp_path):
    adversaries = {"attack": "sign_flip", "sites": ["site-2"], "scale": 50}
    honest = moved(tmp_path / "honest")
    assert moved(tmp_path / "mean", adversaries=adversaries) > 5 * honest
    assert moved(tmp_path / "median", adversaries=adversaries, robust={"rule": "median"}) < 2 * honest
    assert read_run(tmp_path / "mean").settings.adversaries == adversaries


@pytest.mark.parametrize("attack", ["label_flip", "backdoor"])
def test_attackers_train_on_wrong_data(tmp_path, attack):
    adversaries = {"attack": attack, "sites": ["site-2"]}
    result = Case(REGISTRY, "local").run(tmp_path / "bad", rounds=1, adversaries=adversaries)
    honest = Case(REGISTRY, "local").run(tmp_path / "good", rounds=1)
    mine, other = bits(result), bits(honest)
    assert [name for name in other if not tensors_equal(mine[name], other[name])] == ["site-2/personal"]
    assert result.summary.holdings == honest.summary.holdings


def test_no_test_image_of_an_attacker_is_in_a_score(tmp_path):
    adversaries = {"attack": "free_rider", "sites": ["site-2"]}
    Case(REGISTRY, "fedprox").run(
        tmp_path / "one", rounds=1, adversaries=adversaries, shared_test=True, cross_site_evaluation=True
    )
    rows = read_run(tmp_path / "one").metrics
    tested = rows[rows["split"].isin(["test", "shared"]) & rows["metric"].eq("accuracy")]
    assert set(tested["site"]) == {"site-1", "site-3", "global"}


def test_a_free_rider_in_disguise_remembers_across_a_restart(tmp_path):
    """A continued run has the same bits, and the attacker's reply has an effect from the second round on."""
    case, adversaries = (
        Case(REGISTRY, "fedavg"),
        {"attack": "free_rider", "sites": ["site-2"], "disguise": True, "noise": 1},
    )
    whole = bits(case.run(tmp_path / "whole", adversaries=adversaries, rounds=3))
    case.run(tmp_path / "parts", adversaries=adversaries, rounds=2)
    notes = Store(tmp_path / "parts" / "state" / "server" / "attackers")
    assert notes.steps() == [1, 2]
    again = bits(case.run(tmp_path / "parts", adversaries=adversaries, rounds=3))
    assert all(tensors_equal(whole[name], again[name]) for name in whole)
    plain = bits(case.run(tmp_path / "plain", adversaries=adversaries | {"disguise": False, "noise": 0}, rounds=3))
    assert not tensors_equal(whole["server/global"], plain["server/global"])


def test_a_step_that_is_done_again_has_the_same_attack(tmp_path):
    case, adversaries = Case(REGISTRY, "fedavg"), {"attack": "free_rider", "sites": ["site-2"], "disguise": True}
    whole = bits(case.run(tmp_path / "run", adversaries=adversaries, rounds=3))
    shutil.copytree(tmp_path / "run", tmp_path / "killed")
    for name in ("server", "site-1", "site-2", "site-3"):
        store = Store(tmp_path / "killed" / "state" / name)
        store.delete_step(store.steps()[-1])
    (tmp_path / "killed" / "summary.json").unlink()
    again = bits(case.run(tmp_path / "killed", adversaries=adversaries, rounds=3))
    assert all(tensors_equal(whole[name], again[name]) for name in whole)


def test_attackers_work_under_bits_noise_and_several_processes(tmp_path):
    """Replies are changed after the filters of a site, in any process."""
    adversaries, settings = {"attack": "sign_flip", "sites": ["site-1"]}, {"rounds": 1, "compression": {"bits": 8}}
    case = Case(REGISTRY, "fedavg")
    here = bits(case.run(tmp_path / "here", adversaries=adversaries, **settings))
    there = bits(case.run(tmp_path / "there", adversaries=adversaries, workers=2, **settings))
    honest = bits(case.run(tmp_path / "honest", **settings))
    assert all(tensors_equal(here[name], there[name]) for name in here)
    assert not tensors_equal(here["server/global"], honest["server/global"])


@pytest.mark.parametrize(
    ("method", "adversaries", "code", "fields"),
    [
        (
            "fedavg",
            {"attack": "sign_flip", "sites": ["site-9"]},
            "unknown_site",
            {"setting": "adversaries.sites", "sites": ["site-9"]},
        ),
        (
            "fedavg",
            {"attack": "backdoor", "sites": ["site-1"], "target": 9},
            "setting_out_of_range",
            {"setting": "adversaries.target", "minimum": 0, "maximum": 2, "found": 9},
        ),
        (
            "fedavg",
            {"attack": "label_flip", "sites": ["site-1"], "source": 0, "target": 9},
            "setting_out_of_range",
            {"settings": ["adversaries.source", "adversaries.target"], "minimum": 0, "maximum": 2, "found": [0, 9]},
        ),
        (
            "fedavg",
            {"attack": "backdoor", "sites": ["site-1"], "patch": 9},
            "data_not_supported",
            {"attack": "backdoor", "minimum": 9},
        ),
        (
            "local",
            {"attack": "sign_flip", "sites": ["site-1"]},
            "method_not_supported",
            {"feature": "adversaries", "attack": "sign_flip"},
        ),
        (
            "centralized",
            {"attack": "label_flip", "sites": ["site-1"]},
            "method_not_supported",
            {"feature": "adversaries", "attack": None},
        ),
    ],
)
def test_an_attack_that_is_not_possible_is_refused(tmp_path, method, adversaries, code, fields):
    with refused(SettingsError, code, **fields):
        Case(REGISTRY, method).run(tmp_path, adversaries=adversaries)


def test_the_chance_of_too_many_attackers_in_a_round_is_said(tmp_path, caplog):
    adversaries = {"attack": "free_rider", "sites": ["site-1", "site-2"]}
    robust = {"rule": "norm_clip"}
    with caplog.at_level(logging.WARNING):
        Case(REGISTRY, "fedavg").run(tmp_path / "two", adversaries=adversaries, robust=robust, rounds=1, fraction=0.7)
    assert "more than f = 1 of the 2 drawn sites are attackers with probability 0.3333" in caplog.text
