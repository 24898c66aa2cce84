"""Searches with synthetic runs: budgets, winners, files and failures."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from refusals import refused
from tune_toys import MadeUpTrials, best_near, without_seconds

from medfl.data.datalists import read_datalist, write_datalist
from medfl.errors import DataError, StoreError
from medfl_studies.records.study_files import SearchRecord
from medfl_studies.study import load_study
from medfl_studies.tune.search import run_search
from medfl_studies.tune.search_report import write_search_reports

GRID = {"tune": {"sampler": "grid", "settings": {"optimizer#lr": [0.001, 0.01, 0.1]}}}


@pytest.mark.parametrize("sampler", ["random", "tpe", "grid"])
def test_every_row_has_the_same_budget(load, sampler: str) -> None:
    changes = GRID if sampler == "grid" else {"tune__sampler": sampler, "tune__trials": 4}
    search, runs = load(changes), MadeUpTrials(best_near(0.01))
    tuned = run_search(search, runs)
    assert search.trials == (3 if sampler == "grid" else 4)
    for row in ("mean", "near"):
        assert [s.trial.number for s in tuned.results if s.row == row] == list(range(search.trials))
    assert {call["rounds"] for call in runs.calls} == {search.rounds} == {4}
    closed = {"open_test": False, "cross_site_evaluation": False, "shared_test": False, "seed": 0}
    assert all({name: call[name] for name in closed} == closed for call in runs.calls)


def test_the_winner_is_the_best_by_the_score_that_was_asked_for(load) -> None:
    scores = {0.001: 0.3, 0.01: 0.9, 0.1: 0.5}
    for metric, over, best in (("auc", "mean", 0.01), ("auc", "worst", 0.01), ("ece", "mean", 0.001)):
        runs = MadeUpTrials(lambda options: scores[options["optimizer#lr"]], metric)
        changes = GRID | {"tune__metric": metric, "tune__score": over, "metrics": [metric]}
        tuned = run_search(load(changes, out=f"{metric}-{over}"), runs)
        assert tuned.winners["mean"].trial.parameters["optimizer#lr"] == best
        added = 0.125 if over == "mean" else -0.25
        assert tuned.winners["mean"].score == pytest.approx(scores[best] + added)


def test_the_files_have_every_trial_and_the_study_of_the_winners(load, tmp_path: Path) -> None:
    search = load({"tune__trials": 4, "tune__seed": 3})
    tuned = run_search(search, MadeUpTrials(best_near(0.01)))
    paths = write_search_reports([search], [tuned])
    assert [path.name for path in paths] == ["small-tuned.yaml", "search.md", "search.csv", "search.json"]
    table = pd.read_csv(paths[2])
    assert list(table) == [
        "row", "trial", "status", "score", "sites", "winner", "optimizer#lr", "method_args#mu", "seconds",
    ]  # fmt: skip
    assert table.groupby("row")["trial"].apply(list).tolist() == [[0, 1, 2, 3]] * 2
    assert table.loc[table["winner"], "row"].tolist() == ["mean", "near"]
    assert table["seconds"].tolist() == [2.0 * 4 + 0.5] * 8
    assert table.loc[table["row"] == "mean", "method_args#mu"].isna().all()
    record = SearchRecord.read(paths[3])
    assert list(record.results) == tuned.results
    assert [result.score for result in record.results] == table["score"].tolist()
    assert record.outcome is not None
    assert record.outcome.winners == {row: result.trial.number for row, result in tuned.winners.items()}
    assert (record.outcome.trials, record.outcome.rounds) == (4, 4)
    page = paths[1].read_text()
    assert "All trials had the seed 0" in page
    assert "No test image was used." in page
    assert "Each row had the same budget: 4 trials of 4 rounds." in page
    assert f"medfl study {paths[0]} --source {search.source} --out {search.out}" in page


def test_the_study_of_the_winners_runs_as_it_is_with_all_seeds(load, source: Path, tmp_path: Path) -> None:
    """Each run equals the winning trial except for seed, name and opened test set."""
    search = load()
    tuned = run_search(search, MadeUpTrials(best_near(0.01)))
    file = write_search_reports([search], [tuned])[0]
    prepared = load_study(file, source, tmp_path / "next")
    assert [(job.row, job.seed) for job in prepared.jobs] == [("mean", 0), ("near", 0), ("mean", 1), ("near", 1)]
    for job in prepared.jobs:
        trial = search.job(job.row, tuned.winners[job.row].trial).options
        unlike = {name for name in trial.keys() | job.options.keys() if trial.get(name) != job.options.get(name)}
        assert unlike - {"seed"} == {"given_by", "open_test", "cross_site_evaluation", "shared_test"}
    content = yaml.safe_load(file.read_text())
    assert content["name"] == "small-tuned"
    assert content["rows"]["near"]["method_args"] == {"mu": tuned.winners["near"].trial.parameters["method_args#mu"]}
    assert "3 trials of 4 rounds for each row, compared by auc on validation images" in content["about"]


@pytest.mark.parametrize("sampler", ["random", "tpe"])
@pytest.mark.parametrize("nested", [False, True])
def test_a_row_keeps_its_own_settings_if_no_trial_is_better(load_all, sampler: str, nested: bool) -> None:
    """Two sampled trials of a bad range don't replace the row's own learning rate."""
    partition = {"scheme": "iid", "sites": 2, "val_fraction": 0.2, "server_test": "none"}
    data = {"demo": {"folder": "cohort/site-01", "partition": partition}}
    searches = load_all({"data": data, "tune__sampler": sampler, "tune__nested": nested})
    results = [run_search(search, MadeUpTrials(best_near(0.3))) for search in searches]
    assert {result.winners[row].trial.number for result in results for row in ("mean", "near")} == {0}
    paths = write_search_reports(searches, results)
    rows = yaml.safe_load(paths[0].read_text())["rows"]
    expected: dict[str, Any] = {"mean": {"method": "fedavg"}, "near": {"method": "fedprox", "method_args": {"mu": 0.5}}}
    if nested:
        for row in expected.values():
            change = {"method_args": row["method_args"]} if "method_args" in row else {}
            row["splits"] = {"seed-0": change, "seed-1": change}
    assert rows == expected
    page = paths[1].read_text()
    assert "| mean | trial 0 | as in the study |" in page
    assert "| 0 | own | own |" in page
    own = pd.read_csv(paths[2]).query("trial == 0")
    assert own[["optimizer#lr", "method_args#mu"]].isna().all(axis=None)


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_a_search_that_stopped_continues_to_the_same_record(load, sampler: str) -> None:
    changes = {"tune__sampler": sampler, "tune__trials": 4}
    whole = load(changes, out="whole")
    write_search_reports([whole], [run_search(whole, MadeUpTrials(best_near(0.01)))])
    stops = iter([1, 3, 2])
    broken = load(changes, out="broken")
    left = next(stops)

    def status(options: dict) -> str:
        nonlocal left
        left -= 1
        return "failed" if left < 0 else "finished"

    runs = MadeUpTrials(best_near(0.01), status=status)
    for count in (3, 2, 1000):
        with refused(StoreError, "failed_trials") as caught:
            run_search(broken, runs)
        assert "failed (2)" in caught.value.fields["trials"].values()
        left = count
        if count == 1000:
            write_search_reports([broken], [run_search(broken, runs)])
    assert without_seconds(broken.out / "search.json") == without_seconds(whole.out / "search.json")
    assert (broken.out / "search.csv").read_bytes() == (whole.out / "search.csv").read_bytes()
    text = (whole.out / "small-tuned.yaml").read_bytes()
    assert (broken.out / "small-tuned.yaml").read_bytes() == text
    before = len(runs.calls)
    run_search(broken, runs)
    assert len(runs.calls) == before, "a search that is over starts nothing"


@pytest.mark.parametrize("sites", [("site-01", "site-02"), ("site-01",)])
def test_a_search_without_validation_images_is_refused_before_the_first_trial(load, source, tmp_path, sites) -> None:
    cohort = tmp_path / "source" / "cohort"
    shutil.copytree(source / "cohort", cohort)
    (cohort / "partition.json").unlink()  # its digests would tell that files changed
    for site in sites:
        datalist = read_datalist(cohort / site)
        write_datalist(cohort / site, replace(datalist, splits=datalist.splits | {"validation": []}))
    search, runs = load(source=cohort.parent), MadeUpTrials(best_near(0.01))
    if len(sites) == 1:
        assert len(run_search(search, runs).results) == 2 * search.trials
        return
    with refused(DataError, "no_validation_images", path=str(cohort)):
        run_search(search, runs)
    assert runs.calls == []


def test_a_trial_that_diverged_has_no_score_and_never_wins(load) -> None:
    def status(options: dict) -> str:
        return "diverged" if options["optimizer#lr"] == 0.01 else "finished"

    tuned = run_search(load(GRID), MadeUpTrials(best_near(0.01), status=status))
    assert [(result.status, result.score is None) for result in tuned.results if result.row == "mean"] == [
        ("finished", False), ("diverged", True), ("finished", False),
    ]  # fmt: skip
    assert tuned.winners["mean"].trial.parameters["optimizer#lr"] != 0.01
    with refused(DataError, "no_score", row="mean", metric="auc"):
        run_search(load(GRID, out="none"), MadeUpTrials(best_near(0.01), status=lambda options: "diverged"))


def test_a_trial_that_diverged_at_a_site_wins_only_if_all_did(load) -> None:
    """The mean over the remaining sites, here the better one, doesn't count against trials with all sites."""

    def diverges(options: dict) -> bool:
        return options["optimizer#lr"] == 0.01

    search = load(GRID)
    tuned = run_search(search, MadeUpTrials(lambda options: 0.0, diverges=diverges))
    trials = {
        result.trial.parameters["optimizer#lr"]: (result.score, result.sites)
        for result in tuned.results
        if result.row == "mean"
    }
    assert trials == {0.001: (0.125, 2), 0.01: (0.5, 1), 0.1: (0.125, 2)}
    assert tuned.winners["mean"].trial.parameters["optimizer#lr"] != 0.01
    page = next(path for path in write_search_reports([search], [tuned]) if path.suffix == ".md").read_text()
    assert page.count("| 0.5000 (no score at 1 site) |") == 2
    tuned = run_search(load(GRID, out="all"), MadeUpTrials(best_near(0.1), diverges=lambda options: True))
    assert tuned.winners["mean"].trial.parameters["optimizer#lr"] == 0.1


def test_the_folder_of_another_search_is_refused(load) -> None:
    run_search(load(), MadeUpTrials(best_near(0.01)))
    with refused(StoreError, "other_search", changed=["tune"]):
        run_search(load({"tune__trials": 2}), MadeUpTrials(best_near(0.01)))
    with refused(StoreError, "other_search", changed=["settings"]):
        run_search(load({"settings__epochs": 2}), MadeUpTrials(best_near(0.01)))


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_parameters_that_come_again_are_the_same_run(load, sampler: str) -> None:
    """A repeated combination counts as a trial, but is not computed twice."""
    changes = {"tune": {"sampler": sampler, "trials": 6, "settings": {"epochs": [1, 2]}}}
    runs = MadeUpTrials(lambda options: options.get("epochs", 0))
    tuned = run_search(load(changes), runs)
    assert len(tuned.results) == 12
    assert len(runs.calls) == len({str(call) for call in runs.calls}) == 6
    assert tuned.winners["mean"].trial.parameters == {"epochs": 2}


@pytest.mark.parametrize(
    ("partition", "seeds", "fixed"),
    [
        ({}, 2, {"seed": 0}),
        ({"seed": 5}, 2, {}),
        ({"test": "none"}, 2, {}),
        ({"test": "none", "server_test": "per_class"}, 2, {"seed": 0}),
        ({}, 1, {}),
        ({"test": "k_fold", "folds": 3}, [4, 5], {"seed": 4, "fold": 0}),
        ({"test": "k_fold", "folds": 3, "seed": 5}, 2, {"fold": 0}),
    ],
)
def test_no_seed_or_fold_tests_on_images_that_a_trial_has_seen(load, source, partition, seeds, fixed) -> None:
    plan = {"scheme": "iid", "sites": 2, "val_fraction": 0.2} | partition
    data = {"demo": {"folder": "cohort/site-01", "partition": plan}}
    search = load({"data": data, "seeds": seeds})
    assert search.study.data["demo"].partition == plan | fixed
    assert any("use the partition of" in note for note in search.notes) == bool(fixed)


def test_a_nested_study_is_tuned_in_each_split_on_the_data_of_the_split(load_all, source, tmp_path: Path) -> None:
    """Each run of the tuned study equals the winning trial of its own split, on the same data."""
    plan = {"scheme": "iid", "sites": 2, "val_fraction": 0.2, "test": "k_fold", "folds": 3, "server_test": "none"}
    grid = GRID["tune"] | {"nested": True}
    changes = {"tune": grid, "data": {"demo": {"folder": "cohort/site-01", "partition": plan}}, "seeds": 1}
    searches = load_all(changes)
    best = {0: 0.1, 1: 0.001, 2: 0.01}
    assert [search.split for search in searches] == ["seed-0-fold-0", "seed-0-fold-1", "seed-0-fold-2"]
    tuned, places = [], []
    for number, search in enumerate(searches):
        runs = MadeUpTrials(best_near(best[number]))
        tuned.append(run_search(search, runs))
        places.append({call["dataset_dir"] for call in runs.calls})
        assert {call["seed"] for call in runs.calls} == {0}
    assert [len(place) for place in places] == [1, 1, 1]
    assert len(set.union(*places)) == 3, "each split has its own data"
    paths = write_search_reports(searches, tuned)
    assert [path.relative_to(tmp_path / "out").as_posix() for path in paths[:2]] == [
        "small-tuned.yaml",
        "seed-0-fold-0/search.md",
    ]
    prepared = load_study(paths[0], source, tmp_path / "out")
    for job in prepared.jobs:
        assert job.options["optimizer#lr"] == best[job.fold]
        assert {str(job.dataset_dir)} == places[job.fold]
    assert {job.options.get("method_args#mu") for job in prepared.jobs if job.row == "near"} == {0.5}
    assert all(not search.notes for search in searches), "no partition is fixed"


def test_a_row_may_state_its_own_rounds(load) -> None:
    """For a part of the budget that is not spent in rounds; the report says so."""
    search, runs = load({"rows__mean__settings": {"rounds": 2}}), MadeUpTrials(best_near(0.01))
    tuned = run_search(search, runs)
    assert {(call["method"], call["rounds"]) for call in runs.calls} == {("fedavg", 2), ("fedprox", 4)}
    page = write_search_reports([search], [tuned])[1].read_text()
    assert "These rows have their own number of rounds: mean 2." in page
