"""Test a whole federation: the checks before its start, and its files at the end."""

import json
import logging
import math

import pytest
import torch
from refusals import refused
from run_records import rewrite
from toys import metric_rows

from medfl.data.pooled import EmptyDataset, PooledDataset
from medfl.engine.evaluation import score_dataset
from medfl.engine.journal import Journal
from medfl.engine.plan import MethodChoice
from medfl.engine.runs.simulation import Callbacks, RunData, SimulatedRun, simulate
from medfl.engine.runs.summary import summarise
from medfl.engine.site import Splits
from medfl.errors import DataError, PluginError, SettingsError, StoreError
from medfl.plugins import load_plugins
from medfl.records.run_file import RunFile
from medfl.records.summary import Summary
from medfl.settings import Settings, read_settings
from medfl.testing.cohort import Case, bits, make_data, make_site, make_sites, make_task
from medfl.utils.wire import tensors_equal
from medfl_methods.fedavg import FedAvg

REGISTRY = load_plugins()
PRIVACY = {"epsilon": 5.0, "clip": 1.0}


def case(name="fedavg", **args):
    return Case(REGISTRY, name, args)


def without_costs(summary):
    """Return a summary without measured seconds."""
    return summary.model_copy(update={"costs": {}})


def check_refusal(folder, kind, code, fields, toy=None, **options):
    """Check that a run is refused before its first step."""
    with refused(kind, code, **fields):
        (toy or case()).run(folder, **options)
    assert not (folder / "state").exists()


# ---- refused before step 0


def test_unknown_names_are_refused_with_the_nearest(tmp_path):
    with refused(PluginError, "unknown_choice", what="method", choice="fedporx") as caught:
        REGISTRY.make_method("fedporx", {})
    assert "Did you mean 'fedprox'? `medfl list methods` lists all names." in str(caught.value)
    with refused(SettingsError, "unknown_setting", where="method 'fedprox'", settings=["mue"]) as caught:
        REGISTRY.make_method("fedprox", {"mue": 1.0})
    assert "Did you mean 'mu'? Known: gradient_clip, mu, w" in str(caught.value)
    with refused(SettingsError, "setting_out_of_range", settings=["mu"]) as caught:
        REGISTRY.make_method("fedprox", {"mu": -1})
    assert "expected a number, >= 0; got -1" in str(caught.value)
    with refused(SettingsError, "unknown_setting", where="the run", settings=["fractoin"]):
        read_settings(Settings, {"rounds": 1, "fractoin": 1}, "the run")
    task = make_task()
    task = type(task)(task.networks, "norm", task.loss, task.optimizer, task.objective, ("acuracy",))
    check_refusal(tmp_path, SettingsError, "unknown_choice", {"what": "metric", "choice": "acuracy"}, task=task)


@pytest.mark.parametrize("name", ["server", "global", "pooled", "a/b", ".hidden"])
def test_names_with_a_meaning_of_their_own_are_refused(tmp_path, name):
    sites = {name: make_site(6, "a"), "b": make_site(6, "b")}
    check_refusal(tmp_path, SettingsError, "invalid_site_name", {"sites": sorted(sites)}, sites=sites)


@pytest.mark.parametrize("name", ["NA", "null"])
def test_any_other_name_is_a_name(tmp_path, name):
    sites = {name: make_site(6, "a"), "b": make_site(6, "b")}
    by_site = case().run(tmp_path, sites=sites, rounds=1).summary.scores["global"]["test"]["accuracy"].sites
    assert set(by_site) == set(sites)


def test_networks_are_checked(tmp_path):
    fields = {"setting": "networks_by_site", "sites": ["site-9"]}
    check_refusal(tmp_path, SettingsError, "unknown_site", fields, networks_by_site={"site-9": "wide"})
    fields = {"method": "fedavg", "networks": ["norm", "wide"]}
    check_refusal(tmp_path, SettingsError, "unlike_networks", fields, networks_by_site={"site-1": "wide"})
    fields = {"what": "network", "choice": "wyde"}
    networks = {"site-1": "wyde"}
    check_refusal(tmp_path, SettingsError, "unknown_choice", fields, case("local"), networks_by_site=networks)


@pytest.mark.parametrize("split", ["train", "val", "test"])
@pytest.mark.parametrize("label", [3, -1])
def test_labels_out_of_range_are_located(tmp_path, split, label):
    sites = make_sites()
    getattr(sites["site-2"], split).class_labels[1:3] = label
    fields = {"where": f"Site 'site-2', split '{split}'", "expected": "labels from 0 to 2", "found": label, "row": 1}
    check_refusal(tmp_path, DataError, "wrong_label", fields, sites=sites)


def test_no_one_can_train(tmp_path):
    sites = make_sites({"a": 0, "b": 0})
    check_refusal(tmp_path, DataError, "no_images", {"split": "train", "sites": ["a", "b"]}, sites=sites)


def test_privacy_keeps_sizes_at_home(tmp_path):
    case().run(tmp_path, privacy=PRIVACY, rounds=1, norm_sync="params")
    assert b'"size"' not in (tmp_path / "state/site-1/step-00000001.safetensors").read_bytes()


# ---- warned of


def test_a_site_without_training_data_is_named_and_never_asked(tmp_path, caplog):
    result = case().run(tmp_path, sites=make_sites({"a": 9, "b": 0, "c": 7}))
    assert "no training data and won't train: b." in caplog.text
    assert set(metric_rows(tmp_path, metric="loss")["site"]) == {"a", "c"}
    assert set(metric_rows(tmp_path, metric="accuracy", split="test")["site"]) == {"a", "b", "c", "global"}
    assert bits(result)["b/global"]


@pytest.mark.parametrize(
    ("name", "args", "text"),
    [
        ("fedprox", {"mu": 0.0}, "With mu = 0.0, 'fedprox' is 'fedavg'."),
        (
            "fedbn",
            {},
            " on a network without batch-norm layers, 'fedbn' is 'fedavg' with weights = uniform.",
        ),
    ],
)
def test_a_method_that_is_another_one_says_so(tmp_path, caplog, name, args, text):
    case(name, **args).run(tmp_path / "1", task=make_task("plain"), rounds=1)
    assert text in caplog.text
    caplog.clear()
    case(name).run(tmp_path / "2", rounds=1)
    assert caplog.text == ""


# ---- the run folder


@pytest.mark.parametrize(
    ("toy", "options", "code", "fields"),
    [
        (case("fedprox"), {}, "other_run", {"setting": "method", "expected": "fedavg", "found": "fedprox"}),
        (
            case(weights="uniform"),
            {},
            "other_run",
            {"setting": "method_args.weights", "expected": None, "found": "uniform"},
        ),
        (case(), {"seed": 8}, "other_run", {"setting": "settings.seed", "expected": 7, "found": 8}),
        (case(), {"batch_size": 6}, "other_run", {"setting": "settings.batch_size", "expected": 5, "found": 6}),
        (case(), {"privacy": PRIVACY}, "other_run", {"setting": "settings.privacy", "expected": None}),
        (
            case(),
            {"sites": make_sites({"a": 5})},
            "other_run",
            {"setting": "sites", "expected": ["site-1", "site-2", "site-3"], "found": ["a"]},
        ),
        (case(), {"task": make_task("plain")}, "other_run", {"setting": "task.networks.norm"}),
        (case(), {"rounds": 1}, "fewer_rounds", {"expected": 2, "found": 1}),
    ],
)
def test_the_folder_of_another_run_is_refused(tmp_path, toy, options, code, fields):
    before = case().run(tmp_path, rounds=2)
    csv = (tmp_path / "metrics.csv").read_bytes()
    with refused(StoreError, code, path=str(tmp_path), **fields) as caught:
        toy.run(tmp_path, **({"rounds": 2} | options))
    assert str(tmp_path) in str(caught.value)
    assert (tmp_path / "metrics.csv").read_bytes() == csv
    assert case().run(tmp_path, rounds=2).summary == before.summary


def test_a_cleaned_run_is_not_restarted(tmp_path):
    case().run(tmp_path, rounds=2)
    csv = (tmp_path / "metrics.csv").read_bytes()
    rewrite(RunFile, tmp_path, cleaned=True)
    with refused(StoreError, "cleaned_run", path=str(tmp_path)):
        case().run(tmp_path, rounds=2)
    assert (tmp_path / "metrics.csv").read_bytes() == csv


def test_the_summary_is_written_last_and_is_gone_while_a_run_continues(tmp_path):
    seen = []

    def look(*_):
        seen.append((tmp_path / "summary.json").exists())

    for rounds in (1, 2):
        run = SimulatedRun(
            method=MethodChoice(name="fedavg", make=FedAvg),
            task=make_task(),
            settings=Settings(rounds=rounds),
            data=RunData(sites=make_sites()),
            folder=tmp_path,
            callbacks=Callbacks(on_round=look, export=look),
        )
        simulate(run)
        assert (tmp_path / "summary.json").exists()
    assert not any(seen)
    assert len(seen) >= 4


def test_a_round_of_several_steps_is_reported_with_the_rows_of_all(tmp_path):
    registry, spent = load_plugins(), {}

    def add(_, of_round):
        for row in of_round:
            if row.metric == "bytes_to_peers":
                spent[row.round] = spent.get(row.round, 0) + row.value

    args = {"route": "derangement", "p2p_scale": 1}
    run = SimulatedRun(
        method=MethodChoice(name="fedcross_star", make=lambda: registry.make_method("fedcross_star", args)),
        task=make_task(),
        settings=Settings(rounds=3),
        data=RunData(sites=make_sites()),
        folder=tmp_path,
        callbacks=Callbacks(on_round=add),
    )
    simulate(run)
    table = metric_rows(tmp_path, metric="bytes_to_peers")
    assert spent == table.groupby("round")["value"].sum().to_dict()
    assert min(spent.values()) > 0, "models travel in each round"


# ---- what the files say


def test_the_table_is_tidy_and_the_summary_says_the_same(tmp_path):
    sites = make_sites()
    result = case().run(tmp_path, sites=sites)
    table = metric_rows(tmp_path)
    assert list(table) == ["round", "site", "model", "split", "moment", "metric", "value"]
    assert not table.duplicated(["round", "site", "model", "split", "moment", "metric"]).any()
    assert set(table["moment"]) == {"aggregated", "trained"}
    costs = {"loss", "seconds", "work_seconds", "evaluate_seconds", "bytes_up", "bytes_down", "bytes_to_peers"}
    assert set(table["metric"]) == costs | {"accuracy"}
    last = metric_rows(tmp_path, round=3, metric="accuracy", split="test", moment="aggregated").set_index("site")[
        "value"
    ]
    model = FedAvg().predictor(make_task(), [result.outcome.models["global"]])
    for name, data in sites.items():
        assert last[name] == pytest.approx(score_dataset(model, data.test, make_task(), Settings(rounds=3))["accuracy"])
    summary = Summary.read(tmp_path / "summary.json")
    assert summary == result.summary
    assert (summary.method, summary.status, summary.rounds, summary.evaluated_round) == (
        "fedavg",
        "finished",
        3,
        3,
    )
    scores = summary.scores["global"]["test"]["accuracy"]
    three = [last[name] for name in sites]
    assert scores.sites == pytest.approx(dict(zip(sites, three, strict=True)))
    assert scores.mean == pytest.approx(sum(three) / 3)
    assert scores.worst == pytest.approx(min(three))
    assert scores.server_test == pytest.approx(last["global"])
    assert scores.server_test == pytest.approx(
        score_dataset(model, make_data(10, "global"), make_task(), Settings(rounds=3))["accuracy"]
    )
    assert set(summary.scores["global"]) == {"val", "test"}


def test_the_summary_adds_the_costs_up_and_says_image_counts(tmp_path):
    sites = make_sites()
    summary = case().run(tmp_path, sites=sites).summary
    for name, data in sites.items():
        spent = metric_rows(tmp_path, site=name).groupby("metric")["value"].sum()
        for cost in ("bytes_up", "bytes_down", "bytes_to_peers", "evaluate_seconds"):
            assert getattr(summary.costs[name], cost) == pytest.approx(spent[cost])
        assert summary.costs[name].train_seconds == pytest.approx(spent["work_seconds"])
        held = summary.holdings.sites[name]
        assert list(held["training"]) == torch.bincount(data.train.class_labels, minlength=3).tolist()
        assert sum(held["test"]) == len(data.test)
    assert summary.holdings.classes == ("0", "1", "2")


def test_the_summary_of_personal_models(tmp_path):
    scores = case("fedbn").run(tmp_path, rounds=1).summary.scores
    assert set(scores) == {"personal"}
    assert scores["personal"]["test"]["accuracy"].server_test is None


def test_an_undefined_score_does_not_spoil_the_mean(tmp_path):
    lines = [("a", 0.5), ("b", math.nan), ("c", 0.7)]
    head = "round,site,model,split,moment,metric,value\n"
    text = "".join(f"1,{site},global,test,aggregated,auc,{value}\n" for site, value in lines)
    (tmp_path / "metrics.csv").write_text(head + text)
    outcome = case().run(tmp_path / "run", rounds=1).outcome
    scores = summarise(tmp_path / "metrics.csv", "fedavg", outcome, Settings(rounds=1), "auc").score(
        "global", "test", "auc"
    )
    assert scores.mean == pytest.approx(0.6)
    assert (scores.worst, scores.sites["b"]) == (0.5, None)


# ---- too few replies


def test_too_few_replies_end_the_run_as_incomplete_and_it_can_be_taken_up(tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    whole = case().run(tmp_path / "whole", min_replies=3)
    result = case().run(tmp_path / "cut", min_replies=3, unavailable=lambda site, step: site == "site-2" and step == 2)
    assert (result.outcome.status, result.outcome.rounds) == ("incomplete", 1)
    assert "2 of 3 needed replies came." in result.outcome.reason
    assert "Round 2: no reply from site-2." in caplog.text
    assert json.loads((tmp_path / "cut" / "summary.json").read_text())["status"] == "incomplete"
    assert set(metric_rows(tmp_path / "cut", round=2, metric="loss")["site"]) == {"site-1", "site-3"}
    again = case().run(tmp_path / "cut", min_replies=3)
    assert without_costs(again.summary) == without_costs(whole.summary)


def test_a_run_without_usable_updates_ends_as_diverged(tmp_path, caplog):
    sites = make_sites()
    for data in sites.values():
        data.train.images[:] = math.nan
    result = case().run(tmp_path, sites=sites)
    assert (result.outcome.status, result.outcome.rounds) == ("diverged", 0)
    assert "Site 'site-1' refuses to send" in caplog.text
    assert all(torch.isfinite(tensor).all() for tensor in result.outcome.models["global"].tensors.values())
    assert len(metric_rows(tmp_path, round=1, metric="work_seconds")) == 3


# ---- models of earlier rounds


def test_models_of_named_rounds_are_kept_also_over_a_kill(tmp_path, monkeypatch):
    """Kill a run between writing a model and its commit; the continued run writes the same model."""
    early, plain = case().run(tmp_path / "early", rounds=1), case().run(tmp_path / "plain")
    commit = Journal.commit

    def killed(self, state, now):
        if now.round == 2:
            raise KeyboardInterrupt
        commit(self, state, now)

    monkeypatch.setattr(Journal, "commit", killed)
    with pytest.raises(KeyboardInterrupt):
        case().run(tmp_path / "kept", keep_rounds=(1, 2, 3))
    monkeypatch.undo()
    journal = Journal(tmp_path / "kept")
    second = journal.kept_model(2).tensors
    result = case().run(tmp_path / "kept", keep_rounds=(1, 2, 3))
    assert journal.kept_rounds() == [1, 2, 3]
    for round_, expected in ((1, bits(early)["server/global"]), (2, second), (3, bits(plain)["server/global"])):
        assert tensors_equal(journal.kept_model(round_).tensors, expected)
    assert all(tensors_equal(bits(result)[name], tensors) for name, tensors in bits(plain).items())
    with refused(StoreError, "round_not_kept", round=9, known=[1, 2, 3]):
        journal.kept_model(9)
    (tmp_path / "kept" / "kept" / "round-1.safetensors").write_bytes(b"x" * 99)
    with refused(StoreError, "unreadable_file", round=1):
        journal.kept_model(1)


def test_a_resumed_run_may_keep_others_and_says_which_are_gone(tmp_path, caplog):
    case().run(tmp_path, rounds=2)
    caplog.set_level(logging.INFO)
    case().run(tmp_path, rounds=3, keep_rounds=(1, 3))
    assert Journal(tmp_path).kept_rounds() == [3]
    assert "their models were not kept: rounds 1." in caplog.text
    assert "Keeping the models of 2 rounds, 0.0 MB each." in caplog.text


@pytest.mark.parametrize(
    ("name", "rounds", "code", "fields"),
    [
        ("local", (1,), "no_server_model", {}),
        ("fedavg", (2, 9), "setting_out_of_range", {"found": 9, "maximum": 3}),
    ],
)
def test_models_that_there_will_not_be_are_refused(tmp_path, name, rounds, code, fields):
    with refused(SettingsError, code, setting="keep_rounds", **fields):
        case(name).run(tmp_path, keep_rounds=rounds)


# ---- pieces


def test_pooled_data_are_the_parts_in_any_order():
    parts = [make_data(n, str(n)) for n in (4, 0, 3)]
    pooled = PooledDataset(parts)
    assert len(pooled) == 7
    images, labels = pooled.batch(torch.tensor([6, 0, 3, 4, 0]))
    everything = torch.cat([part.images for part in parts])
    assert torch.equal(images, everything[[6, 0, 3, 4, 0]])
    assert torch.equal(labels, pooled.class_labels[[6, 0, 3, 4, 0]])


def test_a_run_without_anything_to_score_ends_well(tmp_path):
    sites = {name: Splits(make_data(8, name), EmptyDataset(), EmptyDataset()) for name in "ab"}
    outcome = simulate(
        SimulatedRun(
            method=MethodChoice(name="fedavg", make=FedAvg),
            task=make_task(),
            settings=Settings(rounds=2),
            data=RunData(sites=sites),
            folder=tmp_path,
        )
    )
    assert (outcome.summary.status, outcome.summary.evaluated_round, outcome.summary.scores) == (
        "finished",
        None,
        {},
    )
    with pytest.raises(IndexError, match="no images"):
        EmptyDataset().batch(torch.tensor([0]))
