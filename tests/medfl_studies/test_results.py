"""Raw results of a study, the pages that are generated from them, and the check that finds a changed digit."""

from __future__ import annotations

import gzip
import json
import math
import random
import shutil
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import toy_attacks
import yaml
from study_toys import SMALL, changed, write_run

from medfl.cli.main import main
from medfl.engine.runs.records import read_run
from medfl.errors import DataError, MedflError, StoreError
from medfl.plugins import load_plugins
from medfl.testing.synthetic import make_cohort
from medfl_report.claims import check_claim
from medfl_report.compare import compare
from medfl_report.forgetting import forgetting_table, measures
from medfl_report.groups import group_runs
from medfl_report.predictions import read_prediction_sets
from medfl_report.trajectory import read_trajectory
from medfl_studies.attacks import attack_jobs, attack_table, attack_values
from medfl_studies.jobs import RunJob, expand_study
from medfl_studies.records.raw_results import RawResults
from medfl_studies.records.study_files import (
    JobIdentity,
    SearchDefinition,
    SearchOutcome,
    SearchRecord,
    Trial,
    TrialResult,
)
from medfl_studies.results.attack_results import attack_results
from medfl_studies.results.check_pages import SUMS, check_results, update_sums
from medfl_studies.results.collect import StudyPart, collect_study
from medfl_studies.results.compressed_tables import read_table, round_probabilities, write_table
from medfl_studies.results.fair_tables import (
    TUNED,
    choose_on_validation,
    compare_both,
    fair_table,
    still_rising,
    validation_curve,
    validation_table,
)
from medfl_studies.results.page_formats import cell, count_word, ends, interval, p_cell, short, signed, size
from medfl_studies.results.page_statistics import DataScores, Estimate, image_epsilon, site_epsilon
from medfl_studies.results.page_tables import methods_table
from medfl_studies.results.pages import choose_pages, page_renderer
from medfl_studies.results.recorded_study import ATTACKS, TEXT_COLUMNS, RecordedRun, read_results, run_key
from medfl_studies.results.trials_table import TRIALS, collect_trials
from medfl_studies.study_reader import read_study

ROW = "fedprox mu=0.1"
TEMPLATE = """# Small
{% set demo = study("small", "demo", metric="accuracy") %}
{% set gain = demo.difference("fedprox mu=0.1", "alone") %}
{{ require(gain.value > 0, "fedprox is better than alone") -}}
{{ sites_table(demo) }}

{{ differences_table(demo, [("fedprox mu=0.1", "alone")], ["accuracy"]) }}

Alone has {{ demo.mean("alone")|short(3) }}, fedprox gains {{ gain|interval }} in {{ gain.seeds|count }} seeds.
"""
IMAGES = 8


def write_predictions(job: RunJob) -> None:
    """Write predictions whose accuracy is the score of `write_run`: the first images are right."""
    right = round(IMAGES * ((0.5 if job.row == "alone" else 0.625) + job.seed / 8))
    for site in ("site-01", "site-02"):
        lines = ["row,label,p0,p1,patient"]
        for row in range(IMAGES):
            label = row % 2
            low, high = 0.123456789 + row / 100, 0.876543211 - row / 100
            first_is_high = (label == 0) == (row < right)
            lines.append(
                f"{row},{label},{high if first_is_high else low:.9g},{low if first_is_high else high:.9g},{row // 2}"
            )
        folder = job.folder / "sites" / site
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "predictions.csv").write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """Return a study whose four runs have ended, with a stated licence of its data."""
    root = tmp_path_factory.mktemp("study")
    make_cohort(root / "source" / "cohort", sites=2, images_per_site=20, classes=2, size=8)
    for path in (root / "source").rglob("datalist.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"licence": "CC0", "citation": "A, B (2026)"}))
    file = root / "small.yaml"
    file.write_text(yaml.safe_dump(changed(SMALL, {}), sort_keys=False))
    jobs = expand_study(read_study(file), root / "bundle", root / "source", root / "out")
    for job in jobs:
        write_run(job.folder, job.options | {"dataset_dir": str(job.dataset_dir)}, "finished")
        write_predictions(job)
        JobIdentity(options=job.options, configuration="c", data="d", commit="abc").write(job.folder / JobIdentity.NAME)
    return SimpleNamespace(file=file, out=root / "out", source=root / "source", jobs=jobs)


@pytest.fixture(scope="module")
def finished_docs(ended: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a page, its raw results and a file with measured numbers."""
    docs = tmp_path_factory.mktemp("docs")
    (docs / "templates").mkdir()
    (docs / "templates" / "small.md.j2").write_text(TEMPLATE)
    (docs / "measured.json").write_text('{"score": 0.75}\n')
    places = ["--docs", docs]
    for words in (
        ["collect", ended.file, "--out", ended.out, "--source", ended.source, *places],
        ["keep", docs / "measured.json", *places],
        ["render", *places],
    ):
        with pytest.raises(SystemExit) as end:
            main(["results", *map(str, words)])
        assert not end.value.code
    return docs


@pytest.fixture
def docs(finished_docs: Path, tmp_path: Path) -> Path:
    """Return a copy of the finished folder, to be changed."""
    return Path(shutil.copytree(finished_docs, tmp_path / "docs"))


def faults(docs: Path) -> list[str]:
    """Return the subjects of the failed checks."""
    return [line.subject for line in check_results(docs) if not line.ok]


@pytest.fixture
def collected(ended: SimpleNamespace, tmp_path: Path) -> Path:
    """Return the folder of the study's raw results."""
    return collect_study(ended.file, tmp_path / "raw", ended.out, ended.source).folder


# ---- raw results


def test_recorded_runs_give_the_same_scores_predictions_and_comparison(ended, collected):
    results, runs = read_results(collected), [read_run(job.folder) for job in ended.jobs]
    assert [(kept.row, kept.seed) for kept in results.raw.runs] == [(job.row, job.seed) for job in ended.jobs]
    for recorded, run in zip(results.runs, runs, strict=True):
        assert recorded.scores == run.scores
        ours, theirs = read_prediction_sets(recorded), read_prediction_sets(run)
        assert ours.keys() == theirs.keys() == {"site-01", "site-02"}
        for site, test_set in ours.items():
            assert test_set.same_images(theirs[site])
            assert test_set.predictions.equal(theirs[site].predictions)
            assert test_set.patients.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    labels = [job.row for job in ended.jobs]
    assert compare(results.runs, labels=labels).equals(compare(runs, labels=labels))


def write_search(folder: Path, split: str, is_finished: bool = True) -> None:
    """Write the record of a search with three trials, of which the last one repeats the second."""
    definition = {"study": {}, "bundle": "b", "metric": "auc", "optuna": "4"}
    trials = [Trial(number=number, parameters={"lr": 0.1 * number}) for number in range(3)]
    results = tuple(
        TrialResult(row=ROW, trial=trial, run=min(trial.number, 1), status="finished", score=0.5, seconds=2.0)
        for trial in trials
    )
    outcome = SearchOutcome(trials=3, rounds=1, score="mean", seed=0, winners={ROW: 1}, prices=())
    record = SearchRecord(
        definition=SearchDefinition(split=split, **definition),
        results=results,
        outcome=outcome if is_finished else None,
    )
    (folder / split).mkdir(parents=True)
    record.write(folder / split / SearchRecord.NAME)


def test_trials_of_nested_searches_are_kept(collected, tmp_path: Path) -> None:
    """Each finished search counts once, a repeated trial costs nothing, and unfinished searches are left out."""
    for split, is_finished in (("seed-0", True), ("seed-1", True), ("seed-2", False)):
        write_search(tmp_path, split, is_finished)
    write_table(collected / TRIALS, collect_trials(tmp_path))
    results = read_results(collected)
    assert results.trials.groupby("split")["chosen"].apply(list).to_dict() == dict.fromkeys(
        ("seed-0", "seed-1"), [False, True, False]
    )
    assert (results.trial_seconds(ROW), results.trial_seconds("alone")) == (8.0, 0.0)
    assert json.loads(results.trials["parameters"][1]) == {"lr": 0.1}


def test_rows_as_published_and_tuned_have_a_baseline_each(collected) -> None:
    """Each column has its own baseline; equal scores give equal differences."""
    demo = DataScores(read_results(collected), "demo", "accuracy")
    both, runs = compare_both(demo, demo), [run for row in demo.rows for run in demo.group(row).runs]
    alone = compare(runs, ["accuracy"], "alone", labels=[row for row in demo.rows for _ in demo.group(row).runs])
    expected = alone[alone["label"] == ROW].iloc[0]
    assert both["alone"] is None
    assert both[ROW].value == both[f"{ROW}{TUNED}"].value == expected["difference"]
    assert both[ROW].effect == both[ROW + TUNED].effect == expected["effect"]
    page = fair_table(demo, demo, both).splitlines()
    assert page[2].startswith("| alone | none | ")
    assert f"| alone: {cell(both[ROW], '+')} | {both[ROW].effect} |" in page[3]


def test_validation_curves_are_means_over_sites_and_runs(collected) -> None:
    results = read_results(collected)
    tables = []
    for seed, run in enumerate(results.runs):
        lines = [
            (number, site, kind, "val", "aggregated", "accuracy", 0.1 * number + 0.01 * seed + place)
            for number in (2, 4)
            for place, site in enumerate(("site-01", "site-02"))
            for kind in ("global", "personal")
        ]
        names = ["round", "site", "model", "split", "moment", "metric", "value"]
        tables.append(replace(run, metrics=pd.DataFrame(lines, columns=names)))
    demo = DataScores(replace(results, runs=tuple(tables)), "demo", "accuracy")
    curve = validation_curve(demo, "alone")
    assert curve == pytest.approx({2: 0.2 + 0.5 + 0.01, 4: 0.4 + 0.5 + 0.01})
    assert validation_table(demo).splitlines()[2] == "| alone | 0.710 | 0.910 | +0.200 |"
    assert "alone" in still_rising(demo, 0.19)
    assert "alone" not in still_rising(demo, 0.21)


def test_a_tuned_row_is_never_worse_on_validation_images_than_its_published_settings(collected):
    """Each split takes the run with the better validation score in the last round, whatever the test scores are."""
    results = read_results(collected)

    def with_scores(last: Sequence[float]) -> DataScores:
        names = ["round", "site", "model", "split", "moment", "metric", "value"]
        runs = []
        for run, score in zip(results.runs, last, strict=True):
            lines = [
                (number, site, run.exported_kind(site), split, "aggregated", "accuracy", value)
                for site in run.sites
                for number, split, value in ((1, "val", 1.0), (2, "val", score), (2, "test", 1 - score))
            ]
            runs.append(replace(run, metrics=pd.DataFrame(lines, columns=names)))
        return DataScores(replace(results, runs=tuple(runs)), "demo", "accuracy")

    published, tuned = with_scores([0.5, 0.5, 0.5, 0.5]), with_scores([0.4, 0.5, 0.6, 0.7])
    chosen = choose_on_validation(published, tuned).results.runs
    expected = (*published.results.runs[:2], *tuned.results.runs[2:])
    assert all(ours is theirs for ours, theirs in zip(chosen, expected, strict=True))
    last = tuned.results.runs[3].metrics
    last.loc[(last["round"] == 2) & (last["site"] == "site-02"), "value"] = math.nan  # its training diverged
    assert choose_on_validation(published, tuned).results.runs[3] is published.results.runs[3]


class DivergedRun(RecordedRun):
    """A run without a score at the second site, because its training diverged there."""

    def score(self, site: str, metric: str, split: str = "test") -> float | None:
        return None if site == "site-02" else super().score(site, metric, split)


def test_a_mean_over_fewer_sites_says_so(collected) -> None:
    results = read_results(collected)
    demo = DataScores(results, "demo", "accuracy")
    assert "sites)" not in fair_table(demo, demo, compare_both(demo, demo))
    runs = tuple(
        DivergedRun(**{field.name: getattr(run, field.name) for field in fields(run)})
        if (kept.row, kept.seed) == (ROW, 0)
        else run
        for kept, run in zip(results.raw.runs, results.runs, strict=True)
    )
    less = DataScores(replace(results, runs=runs), "demo", "accuracy")
    page = fair_table(demo, less, compare_both(demo, less)).splitlines()
    assert [line.count("(1 to 2 of 2 sites)") for line in page[2:]] == [0, 1]


def test_the_record_states_study_code_licence_and_identity(ended, collected):
    raw = RawResults.read(collected / RawResults.NAME)
    assert raw.study_file == ended.file.read_text()
    assert {kept.job.commit for kept in raw.runs} == {"abc"}
    assert raw.data["demo"].licence == "CC0"
    assert raw.data["demo"].citation == "A, B (2026)"
    assert raw.data["demo"].rounding_error == raw.data["demo"].score_error == 0
    assert all(kept.run.provenance.data.folder is None for kept in raw.runs)


def test_files_depend_on_the_runs_alone(ended, collected, tmp_path):
    again = collect_study(ended.file, tmp_path / "again", ended.out, ended.source).folder
    names = sorted(path.name for path in collected.iterdir())
    assert names == ["predictions-demo.csv.gz", "rounds.csv.gz", "runs.json.gz", "scores.csv.gz"]
    assert all((again / name).read_bytes() == (collected / name).read_bytes() for name in names)


def test_data_without_a_licence_are_refused(ended, tmp_path):
    source = Path(shutil.copytree(ended.source, tmp_path / "source"))
    path = source / "cohort" / "site-02" / "datalist.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"licence": "unknown"}))
    with pytest.raises(DataError) as error:
        collect_study(ended.file, tmp_path / "raw", ended.out, source)
    assert error.value.code == "no_licence"
    assert not (tmp_path / "raw").exists()


def test_runs_with_other_options_are_refused(ended, tmp_path):
    file = tmp_path / "small.yaml"
    file.write_text(yaml.safe_dump(changed(SMALL, {"settings__rounds": 5}), sort_keys=False))
    with pytest.raises(StoreError) as error:
        collect_study(file, tmp_path / "raw", ended.out, ended.source)
    assert (error.value.code, error.value.fields["options"]) == ("other_run", ["rounds"])


def test_rounding_that_changes_a_score_is_refused(ended, tmp_path):
    out = Path(shutil.copytree(ended.out, tmp_path / "out"))
    path = next(out.rglob("predictions.csv"))
    path.write_text(path.read_text().replace("0,0,0.876543211,0.123456789", "0,0,0.4996,0.5004"))
    with pytest.raises(StoreError) as error:
        collect_study(ended.file, tmp_path / "raw", out, ended.source, digits=1)
    assert (error.value.code, error.value.fields["metric"]) == ("rounded_too_far", "accuracy")
    assert [path.name for path in tmp_path.iterdir()] == ["out"], "nothing is left behind"


def test_rounded_probabilities_keep_every_predicted_class(ended, tmp_path):
    out = Path(shutil.copytree(ended.out, tmp_path / "out"))
    path = next(out.rglob("predictions.csv"))
    path.write_text(path.read_text().replace("0,0,0.876543211,0.123456789", "0,0,0.4996,0.5004"))
    collect_study(ended.file, tmp_path / "raw", out, ended.source, decimals=1)
    table = read_table(next((tmp_path / "raw").glob("predictions-*")), TEXT_COLUMNS)
    assert [0.4996, 0.5004] in table[["p0", "p1"]].to_numpy().tolist(), "rounded, both classes would be equal"
    others = table[table["p0"] != 0.4996]
    assert len(others) == len(table) - 1
    assert (others[["p0", "p1"]] == others[["p0", "p1"]].round(1)).all(axis=None)


def test_probabilities_after_a_diverged_training_stay_missing():
    table = pd.DataFrame({"p0": [np.nan, 0.26], "p1": [np.nan, 0.74]})
    assert round_probabilities(table, 1).equals(pd.DataFrame({"p0": [np.nan, 0.3], "p1": [np.nan, 0.7]}))


def test_decimals_are_for_probabilities_of_classes():
    with pytest.raises(StoreError) as error:
        round_probabilities(pd.DataFrame({"image": [0], "risk": [0.123]}), 2)
    assert error.value.code == "no_probabilities"


def test_unfinished_runs_are_listed(ended, tmp_path):
    out = Path(shutil.copytree(ended.out, tmp_path / "out"))
    shutil.rmtree(next(out.glob("runs/demo/alone/seed-1")))
    raw = collect_study(ended.file, tmp_path / "raw", out, ended.source).raw
    assert [(run.row, run.seed, run.status) for run in raw.unfinished] == [("alone", 1, "not run")]


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        (StudyPart(rows=["alone"]), [("alone", 0), ("alone", 1)]),
        (StudyPart(seeds=1), [("alone", 0), (ROW, 0)]),
        (StudyPart(seeds=1, data=["demo"], rows=[ROW]), [(ROW, 0)]),
    ],
)
def test_a_part_of_a_study_is_collected_and_nothing_else_is_listed(ended, tmp_path, part, expected):
    raw = collect_study(ended.file, tmp_path / "raw", ended.out, ended.source, part).raw
    assert [(run.row, run.seed) for run in raw.runs] == expected
    assert raw.rows == tuple(dict.fromkeys(row for row, _ in expected))
    assert raw.baseline == ("alone" if "alone" in raw.rows else None)
    assert raw.unfinished == ()


@pytest.mark.parametrize("part", [StudyPart(rows=["alon"]), StudyPart(data=["dem"]), StudyPart(scale="cpuu")])
def test_unknown_parts_of_a_study_are_refused(ended, tmp_path, part):
    with pytest.raises(MedflError) as error:
        collect_study(ended.file, tmp_path / "raw", ended.out, ended.source, part)
    assert error.value.code == "unknown_choice"


def test_the_command_collects_a_part_and_counts_what_is_left_out(ended, tmp_path, capsys):
    out = Path(shutil.copytree(ended.out, tmp_path / "out"))
    shutil.rmtree(out / "runs" / "demo" / "alone")
    words = ["collect", ended.file, "--out", out, "--source", ended.source, "--into", tmp_path / "raw"]
    with pytest.raises(SystemExit) as end:
        main(["results", *map(str, words)])
    assert not end.value.code
    assert "left out: demo / alone: 2 runs: not run" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["results", *map(str, words), "--row", ROW, "--data", "demo", "--seeds", "1"])
    assert "left out" not in capsys.readouterr().out
    raw = RawResults.read(tmp_path / "raw" / RawResults.NAME)
    assert [(run.row, run.seed) for run in raw.runs] == [(ROW, 0)]


def moved(ended: SimpleNamespace, out: Path, seeds: Sequence[int]) -> Path:
    """Return a copy of the study's output folder with the runs of some seeds alone."""
    shutil.copytree(ended.out, out)
    for folder in out.glob("runs/*/*/seed-*"):
        if int(folder.name.removeprefix("seed-")) not in seeds:
            shutil.rmtree(folder)
    return out


def test_parts_that_are_added_one_after_the_other_give_the_raw_results_of_the_whole_study(ended, collected, tmp_path):
    for seed in (1, 0):
        out = moved(ended, tmp_path / f"out-{seed}", [seed])
        part = StudyPart(seeds=[seed])
        collect_study(ended.file, tmp_path / "added", out, ended.source, part, add=True)
    part = StudyPart(rows=[ROW])
    added = collect_study(ended.file, tmp_path / "added", ended.out, ended.source, part, add=True).folder
    names = sorted(path.name for path in collected.iterdir())
    assert sorted(path.name for path in added.iterdir()) == names
    assert all((added / name).read_bytes() == (collected / name).read_bytes() for name in names)


def test_added_runs_may_have_more_digits_than_earlier_ones(ended, tmp_path):
    exact = collect_study(ended.file, tmp_path / "exact", ended.out, ended.source).folder
    collect_study(ended.file, tmp_path / "raw", moved(ended, tmp_path / "one", [0]), ended.source, digits=3)
    collect_study(ended.file, tmp_path / "raw", moved(ended, tmp_path / "two", [1]), ended.source, add=True)
    before, after = (
        read_table(folder / "predictions-demo.csv.gz", TEXT_COLUMNS) for folder in (exact, tmp_path / "raw")
    )
    rounded = {seed: not before[before.seed == seed].equals(after[after.seed == seed]) for seed in (0, 1)}
    assert rounded == {0: True, 1: False}
    probabilities = after[after.seed == 0].select_dtypes(float)
    assert probabilities.map(lambda value: float(f"{value:.3g}")).equals(probabilities)


def test_searches_are_added_once(ended, tmp_path):
    for seed in (0, 1, 1):
        out = tmp_path / f"out-{seed}"
        if not out.exists():
            write_search(moved(ended, out, [seed]), f"seed-{seed}")
        collect_study(ended.file, tmp_path / "raw", out, ended.source, StudyPart(seeds=[seed]), add=True)
    assert list(read_results(tmp_path / "raw").trials["split"]) == ["seed-0"] * 3 + ["seed-1"] * 3


def test_runs_that_are_added_later_are_no_longer_unfinished(ended, tmp_path):
    raw = collect_study(ended.file, tmp_path / "raw", moved(ended, tmp_path / "one", [0]), ended.source).raw
    assert [(run.row, run.seed) for run in raw.unfinished] == [("alone", 1), (ROW, 1)]
    out = moved(ended, tmp_path / "two", [1])
    part = StudyPart(rows=["alone"], seeds=[1])
    raw = collect_study(ended.file, tmp_path / "raw", out, ended.source, part, add=True).raw
    assert [(run.row, run.seed) for run in raw.runs] == [("alone", 0), (ROW, 0), ("alone", 1)]
    assert [(run.row, run.seed) for run in raw.unfinished] == [(ROW, 1)]


@pytest.mark.parametrize(
    ("changes", "options", "code", "fields"),
    [
        ({}, {"digits": 8}, "other_results", {"setting": "digits"}),
        ({}, {"decimals": 3}, "other_results", {"setting": "decimals"}),
        ({"settings__rounds": 5}, {}, "other_run", {"options": ["rounds"]}),
        ({"rows": {"beside": {"method": "local"}}, "baseline": None}, {}, "other_results", {"setting": "run"}),
    ],
)
def test_runs_of_another_study_are_not_joined(ended, tmp_path, changes, options, code, fields):
    collect_study(ended.file, tmp_path / "raw", ended.out, ended.source)
    before = (tmp_path / "raw" / RawResults.NAME).read_bytes()
    file = tmp_path / "small.yaml"
    study = changed(SMALL, changes)
    file.write_text(yaml.safe_dump(study, sort_keys=False))
    out = tmp_path / "out"
    for job in expand_study(read_study(file), tmp_path / "bundle", ended.source, out)[1:]:
        write_run(job.folder, job.options | {"dataset_dir": str(job.dataset_dir)}, "finished")
    with pytest.raises(StoreError) as error:
        collect_study(file, tmp_path / "raw", out, ended.source, add=True, **options)
    assert error.value.code == code
    assert {name: error.value.fields[name] for name in fields} == fields
    assert (tmp_path / "raw" / RawResults.NAME).read_bytes() == before


def test_a_row_that_was_run_again_may_have_other_options(ended, tmp_path):
    earlier = collect_study(ended.file, tmp_path / "raw", ended.out, ended.source).raw
    row = next(iter(SMALL["rows"]))
    file = tmp_path / "small.yaml"
    rows = SMALL["rows"] | {row: SMALL["rows"][row] | {"settings": {"batch_size": 3}}}
    file.write_text(yaml.safe_dump(changed(SMALL, {"rows": rows}), sort_keys=False))
    out = tmp_path / "out"
    jobs = [job for job in expand_study(read_study(file), tmp_path / "bundle", ended.source, out) if job.row == row]
    for job in jobs:
        write_run(job.folder, job.options | {"dataset_dir": str(job.dataset_dir)}, "finished")
    raw = collect_study(file, tmp_path / "raw", out, ended.source, StudyPart(rows=[row]), add=True).raw
    assert [run_key(kept) for kept in raw.runs] == [run_key(kept) for kept in earlier.runs]
    assert [kept.row == row for kept in raw.runs] == [
        after != before for after, before in zip(raw.runs, earlier.runs, strict=True)
    ]


# ---- attacks


@pytest.fixture
def attacked(ended: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Return the study with attacks on its runs; the AUC of the seed n is 0.5 + n / 4."""
    registry = load_plugins([Path(toy_attacks.__file__)])
    for module in ("collect", "attack_results"):
        monkeypatch.setattr(f"medfl_studies.results.{module}.load_plugins", lambda *_: registry)
    file = tmp_path / "small.yaml"
    attacks = {"guess": {"options": {"images": 500}}, "rebuild": {"rows": [ROW]}}
    file.write_text(yaml.safe_dump(changed(SMALL, {"attacks": attacks}), sort_keys=False))
    out = Path(shutil.copytree(ended.out, tmp_path / "attacked"))
    for job in ended.jobs:
        folder = out / job.folder.relative_to(ended.out)
        toy_attacks.write(folder, "guess", {"images": 500}, toy_attacks.Guess(auc=0.5 + job.seed / 4))
        toy_attacks.write(folder, "rebuild", {}, toy_attacks.Rebuilt(mse=0.1), toy_attacks.Rebuilt(mse=0.3))
    return SimpleNamespace(file=file, out=out, source=ended.source)


def test_results_of_attacks_are_kept_and_give_the_same_table(attacked, tmp_path) -> None:
    results = read_results(collect_study(attacked.file, tmp_path / "raw", attacked.out, attacked.source).folder)
    jobs = expand_study(read_study(attacked.file), tmp_path / "bundle", attacked.source, attacked.out)
    registry = load_plugins([Path(toy_attacks.__file__)])
    direct = attack_table(attack_values(attack_jobs(read_study(attacked.file), jobs, registry)))
    shown = attack_results(results, "demo")
    keys = ["kind", "label", "measure"]
    pd.testing.assert_frame_equal(shown.table.set_index(keys).sort_index(), direct.set_index(keys).sort_index())
    assert shown.mean("alone", "loss", "auc") == 0.625
    assert shown.mean(ROW, "decoder", "mse", item="x_p") == pytest.approx(0.2), "results of one run are averaged"
    assert [line.split(" | ")[0] for line in shown.tables().splitlines() if "loss" in line] == ["| alone", f"| {ROW}"]
    with pytest.raises(StoreError, match="got 0"):
        shown.mean("alone", "decoder", "mse", item="x_p")


def test_attacks_of_parts_that_are_added_are_those_of_the_whole_study(attacked, tmp_path) -> None:
    whole = collect_study(attacked.file, tmp_path / "raw", attacked.out, attacked.source).folder
    for seed in (1, 0, 0):
        part = StudyPart(seeds=[seed])
        added = collect_study(attacked.file, tmp_path / "added", attacked.out, attacked.source, part, add=True).folder
    assert (added / ATTACKS).read_bytes() == (whole / ATTACKS).read_bytes()


# ---- scores by round


def write_rounds(job: RunJob) -> None:
    """Write five rounds of two sites, of which one trains in a round, with scores of 15 digits and a loss."""
    rng, rows = random.Random(f"{job.row} {job.seed}"), ["round,site,model,split,moment,metric,value"]
    for number in range(1, 6):
        site = f"site-0{1 + number % 2}"
        rows += [f"{number},{site},personal,train,trained,{name},{rng.random()!r}" for name in ("loss", "work_seconds")]
        rows.append(f"{number},{site},personal,test,trained,accuracy,{rng.random()!r}")
        for place in ("site-01", "site-02", "global"):
            rows.append(f"{number},{place},global,test,aggregated,accuracy,{rng.random()!r}")
    rows.append("5,site-01,global@site-02,test,aggregated,accuracy,")
    (job.folder / "metrics.csv").write_text("\n".join(rows) + "\n")


def test_forgetting_of_recorded_rounds_equals_that_of_the_run_folders(ended, tmp_path):
    out = Path(shutil.copytree(ended.out, tmp_path / "out"))
    jobs = [replace(job, folder=out / job.folder.relative_to(ended.out)) for job in ended.jobs]
    for job in jobs:
        write_rounds(job)
    folder = collect_study(ended.file, tmp_path / "raw", out, ended.source).folder
    recorded, runs = read_results(folder).runs, [read_run(job.folder) for job in jobs]
    for ours, theirs in zip(recorded, runs, strict=True):
        measured = measures(theirs, "accuracy")
        assert measures(ours, "accuracy") == measured
        assert {"global_mean", "local_mean", "balance", "bwt_mean", "consistency_global", "worst_site"} <= {*measured}
        rounding = read_trajectory(ours, "accuracy").seconds - read_trajectory(theirs, "accuracy").seconds
        assert 0 < rounding.abs().max() <= 5 * 0.005 + 1e-12, "the seconds of five rounds, in hundredths"
        assert "loss" not in set(ours.metrics["metric"])
        assert ours.metrics["value"].isna().sum() == 1, "an undefined score stays undefined"
    labels = [job.row for job in ended.jobs]
    ours, theirs = (forgetting_table(group_runs(part, labels), "accuracy") for part in (recorded, runs))
    assert ours.equals(theirs)
    checks = [check_claim(group_runs(part, labels), "bwt_mean", ROW, "alone") for part in (recorded, runs)]
    assert checks[0].difference == checks[1].difference != 0


def test_raw_results_without_rounds_are_still_read(docs):
    (docs / "raw" / "small" / "rounds.csv.gz").unlink()
    update_sums(docs, [])
    assert faults(docs) == []
    assert all(run.metrics.empty for run in read_results(docs / "raw" / "small").runs)


# ---- pages and their check


def test_a_page_shows_the_numbers_of_the_raw_results(docs):
    text = (docs / "small.md").read_text()
    assert "Alone has .562, fedprox gains +.12 [" in text
    assert "in two seeds." in text
    assert "| accuracy | site-01 (8) | site-02 (8) |" in text
    assert faults(docs) == []


def test_the_command_fails_on_a_changed_digit_and_names_its_line(docs, capsys):
    page = docs / "small.md"
    page.write_text(page.read_text().replace("has .562", "has .563"))
    with pytest.raises(SystemExit) as end:
        main(["results", "check", "--docs", str(docs)])
    assert end.value.code == 1
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("FAIL")]
    assert line.startswith("FAIL small.md: line 11 differs")


def test_a_file_with_measured_numbers_can_not_be_changed(docs):
    measured = docs / "measured.json"
    measured.write_text(measured.read_text().replace("0.75", "0.76"))
    assert faults(docs) == ["measured.json"]


def test_a_page_without_a_template_fails(docs):
    (docs / "old.md").write_text("# Old\n\nIts score was .75.\n")
    update_sums(docs, [docs / "old.md"])
    assert faults(docs) == ["old.md"]


def change_table(path: Path, before: str, after: str) -> None:
    text = gzip.decompress(path.read_bytes()).decode()
    assert before in text
    path.write_bytes(gzip.compress(text.replace(before, after, 1).encode(), mtime=0))


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("scores.csv.gz", ",accuracy,0.5\n", ",accuracy,0.6\n"),
        ("predictions-demo.csv.gz", ",0.876543211,0.123456789,", ",0.476543211,0.523456789,"),
    ],
)
def test_a_changed_digit_in_raw_data_fails_with_its_place(docs, name, before, after):
    path = docs / "raw" / "small" / name
    change_table(path, before, after)
    assert f"raw/small/{name}" in faults(docs)
    update_sums(docs, [path])  # even with a new hash, scores and predictions contradict each other
    (line,) = [line for line in check_results(docs) if line.subject == "raw/small"]
    assert not line.ok
    assert line.text.startswith("demo, alone, seed-0, site-01: accuracy is")


def test_pages_that_are_checked_in_other_processes_have_the_same_lines(docs):
    path = docs / "raw" / "small" / "scores.csv.gz"
    change_table(path, ",accuracy,0.5\n", ",accuracy,0.6\n")
    alone, together = ([replace(line, seconds=0.0) for line in check_results(docs, jobs)] for jobs in (1, 2))
    assert together == alone
    assert [line.subject for line in alone] == ["raw/small/scores.csv.gz", "raw/small", "small.md"]


def test_a_changed_digit_in_the_rounds_fails_with_its_place(docs):
    path = docs / "raw" / "small" / "rounds.csv.gz"
    change_table(path, ",aggregated,accuracy,0.5\n", ",aggregated,accuracy,0.6\n")
    assert "raw/small/rounds.csv.gz" in faults(docs)
    update_sums(docs, [path])  # even with a new hash, the last round and the final score contradict each other
    (line,) = [line for line in check_results(docs) if line.subject == "raw/small"]
    assert (line.ok, line.text.split(":")[0]) == (False, "demo, alone, seed-0, site-01, round 4")


def test_a_changed_setting_in_raw_data_fails(docs):
    change_table(docs / "raw" / "small" / "runs.json.gz", '"seed":0', '"seed":2')
    assert "raw/small/runs.json.gz" in faults(docs)


def test_runs_that_are_not_compressed_are_named(docs):
    path = docs / "raw" / "small" / "runs.json.gz"
    path.write_bytes(b"{}")
    with pytest.raises(StoreError) as error:
        read_results(path.parent)
    assert error.value.code == "damaged_file"


def test_missing_and_new_files_fail(docs):
    (docs / "new.csv").write_text("a\n")
    (docs / "raw" / "small" / "scores.csv.gz").unlink()
    assert {"new.csv", "raw/small/scores.csv.gz", "raw/small", "small.md"} == {*faults(docs)}


def test_raw_data_that_were_changed_are_not_rendered(docs):
    change_table(docs / "raw" / "small" / "scores.csv.gz", ",accuracy,0.5\n", ",accuracy,0.6\n")
    with pytest.raises(SystemExit) as end:
        main(["results", "render", "--docs", str(docs)])
    assert end.value.code


@pytest.mark.parametrize(
    ("before", "after", "code"),
    [
        ("gain.value > 0", "gain.value < 0", "claim_fails"),
        ('mean("alone")', 'mean("alon")', "unknown_choice"),
        ("|short(3)", "|shorter", "bad_template"),
        ("{{ gain", "{{ gane", "bad_template"),
    ],
)
def test_wrong_templates_and_claims_that_fail_are_errors(docs, before, after, code):
    template = docs / "templates" / "small.md.j2"
    template.write_text(TEMPLATE.replace(before, after))
    (page,) = choose_pages(docs, ["small.md"])
    with pytest.raises(MedflError) as error:
        page_renderer(docs)(page)
    assert error.value.code == code
    assert faults(docs) == ["small.md"]


def test_a_page_with_a_template_can_not_be_kept(docs, capsys):
    with pytest.raises(SystemExit) as end:
        main(["results", "keep", str(docs / "small.md"), "--docs", str(docs)])
    assert end.value.code
    assert "small.md" not in (docs / SUMS).read_text()


# ---- numbers


def test_a_difference_is_the_mean_of_sites_and_seeds(collected):
    scores = DataScores(read_results(collected), "demo", "accuracy")
    gain = scores.difference(ROW, "alone")
    assert gain.value == pytest.approx(0.125)
    assert (gain.seeds, gain.spread) == (2, 0.0)
    assert gain.low <= gain.value <= gain.high
    assert scores.difference("alone", "alone", "site-01").value == 0
    assert scores.worst("alone").value == scores.mean("alone").value == pytest.approx(0.5625)
    assert scores.by_seed("alone") == [0.5, 0.625]
    assert scores.compare("alone", "alone") is None
    assert scores.compare(ROW, "alone").value == pytest.approx(0.125)


def test_differences_of_a_table_are_one_family(collected, monkeypatch) -> None:
    """Holm's procedure multiplies the smallest of m p-values by m, and no smaller one follows."""
    scores = DataScores(read_results(collected), "demo", "accuracy")
    raw = iter([0.03, 0.01, None])
    monkeypatch.setattr(DataScores, "difference", lambda *_, **__: Estimate(0.1, p=next(raw)))
    family = scores.differences([(ROW, "alone"), ("alone", ROW), (ROW, "no such row"), (ROW, ROW)], ["accuracy"])
    assert {key[:2]: value.p for key, value in family.items()} == {
        (ROW, "alone"): 0.03,
        ("alone", ROW): 0.02,
        (ROW, ROW): None,
    }


def test_a_table_of_methods_has_the_corrected_effects(collected) -> None:
    scores = DataScores(read_results(collected), "demo", "accuracy")
    runs = [run for row in scores.rows for run in scores.group(row).runs]
    expected = compare(runs, ["accuracy"], "alone", labels=[row for row in scores.rows for _ in scores.group(row).runs])
    family = scores.compare_all("alone")
    assert family["alone"] is None
    assert [family[ROW].effect] == expected.loc[expected["label"] == ROW, "effect"].tolist()
    columns = (cell(family[ROW], "+"), p_cell(family[ROW]), family[ROW].effect)
    assert f" | {' | '.join(columns)} |" in methods_table(scores, "alone")


def test_epsilons_are_those_of_the_closed_forms():
    images = [image_epsilon(0.15, is_replaced) for is_replaced in (False, True)]
    assert images == pytest.approx([13.76, 34.63], abs=0.005)
    sites = [site_epsilon(3.98856, 20, is_replaced) for is_replaced in (False, True)]
    assert sites == pytest.approx([5.0, 11.52], abs=0.005)


def test_formats():
    estimate = Estimate(-0.004, -0.0951, 0.0849)
    assert [short(0.75), short(-0.034), short(1.0), short(-0.001), short(None)] == [".75", "−.03", "1.00", ".00", "–"]
    assert [signed(0.114), signed(0.0), size(-0.114)] == ["+.11", ".00", ".11"]
    assert (interval(estimate), ends(estimate)) == (".00 [−.10, +.08]", "[−.10, +.08]")
    assert cell(estimate, "+") == "-0.004 [-0.095, +0.085]"
    assert cell(-1e-12) == "0.000"
    assert cell(0.0625 - 1e-13) == cell(0.0625), "a rounding error of another processor changes no digit"
    assert [p_cell(Estimate(0.1, p=p)) for p in (0.0123, 0.00002, None)] == ["0.0123", "< 0.0001", "–"]
    assert [count_word(3), count_word([1, 2]), count_word(12)] == ["three", "two", "12"]


def test_a_recorded_run_without_predictions_has_no_test_sets(collected):
    run = read_results(collected).runs[0]
    bare = RecordedRun(folder=run.folder, run=run.run, summary=run.summary, metrics=run.metrics, tables={})
    assert read_prediction_sets(bare) == {}
