"""The page: its numbers against independent ones, and what it says of runs that went wrong or lack something."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from make_runs import SITES, make_run
from read_page import Page, words
from scipy.stats import binomtest
from sklearn.metrics import accuracy_score, confusion_matrix

from medfl.engine.runs.records import read_run
from medfl.records.summary import Summary
from medfl_report.groups import Group
from medfl_report.notices import MAX_NAMED, headline
from medfl_report.page import write_report
from medfl_report.predictions import pooled, read_prediction_sets

pytestmark = pytest.mark.usefixtures("undrawn")


@pytest.fixture
def page(tmp_path):
    """Make runs in folders named after them, write their report and take it apart."""

    def write(*runs: tuple[str, dict]) -> Page:
        folders = [make_run(tmp_path / name, re.split("[-/]", name)[0], **options) for name, options in runs]
        return Page(write_report(folders, tmp_path / "page.html").read_text())

    return write


# ---- numbers


def test_the_first_table_says_what_scikit_learn_says(page, tmp_path):
    document = page(("local", {"skill": 0.3, "images": 90}), ("fedavg", {"skill": 2.0, "images": 90}))
    head, *rows = document.tables["fedavg against local, accuracy"]
    assert [words(cell) for cell in head[:4]] == ["site test images", "local", "fedavg", "difference 95 % CI"]
    tested = [read_prediction_sets(read_run(tmp_path / name)) for name in ("local", "fedavg")]
    alone, other = (
        [accuracy_score(sets[site].targets, sets[site].predictions.argmax(1)) for site in SITES] for sets in tested
    )
    for site, row, before, after in zip(SITES, rows, alone, other, strict=False):
        assert words(row[0]) == f"{site} 90 images"
        assert row[1:3] == [f"{before:.3f}", f"{after:.3f}"]
        assert row[3].startswith(f"{after - before:+.3f}"), "with this skill every site gains"
        low, high = (float(end) for end in row[3][6:].split(" to "))
        assert low <= after - before <= high
        assert words(row[4]).startswith(("better, p = 0.0", "better, p < 0.001"))
    mean, worst = rows[3:]
    assert [words(cell) for cell in mean[:3]] == ["mean of sites", f"{sum(alone) / 3:.3f}", f"{sum(other) / 3:.3f}"]
    assert [words(cell) for cell in worst[:3]] == ["worst site", f"{min(alone):.3f}", f"{min(other):.3f}"]
    assert "3 sites: 3 better." in document.sections["gains"]
    assert "AUC on each site's test images" in document.sections["gains"]


def test_alone_a_run_shows_accuracies_with_wilsons_interval(page, tmp_path):
    document = page(("fedavg", {}))
    assert "There is no run of the method local" in words(document.sections["gains"])
    rows = document.tables["Scores of fedavg by site"]
    assert len(rows) == 6
    for site, tested in read_prediction_sets(read_run(tmp_path / "fedavg")).items():
        ends = binomtest(tested.correct, 40).proportion_ci(method="wilson")
        wanted = [f"{site} 40 images", f"{tested.correct / 40:.3f}{ends.low:.3f} to {ends.high:.3f}"]
        assert wanted in [[row[0], row[2]] for row in rows]


def test_the_confusion_matrix_is_scikit_learns(page, tmp_path):
    document = page(("fedavg", {}))
    everything = pooled(read_prediction_sets(read_run(tmp_path / "fedavg")))
    wanted = confusion_matrix(everything.targets, everything.predictions.argmax(1))
    head, *rows = document.tables["Confusion matrix of fedavg"]
    assert head == ["", "basophil", "eosinophil", "lymphocyte"]
    for row, counts in zip(rows, wanted, strict=True):
        assert row[1:] == [f"{count}{100 * count / counts.sum():.0f} %" for count in counts]


def test_scores_are_those_of_the_summary_with_their_spread_over_seeds(page):
    values = [{"site-1": 0.5, "site-2": 0.75}, {"site-1": 0.75, "site-2": 0.8}]
    runs = [
        (f"fedavg-{seed}", {"seed": seed, "scores": {"accuracy": scores}, "sites": SITES[:2]})
        for seed, scores in enumerate(values)
    ]
    document = page(*runs)
    assert ["accuracy", "fedavg", "global", "0.700 ± 0.106", "0.625 ± 0.177"] in document.tables[
        "Scores on test images"
    ]
    assert "± is the standard deviation over the seeds" in document.sections["scores"]


def test_costs_are_added_up(page, tmp_path):
    document = page(("fedavg", {"rounds": 3}))
    costs = json.loads((tmp_path / "fedavg/summary.json").read_text())["costs"]
    up = sum(site["bytes_up"] for site in costs.values())
    seconds = sum(site["train_seconds"] for site in costs.values())
    head, total, each = document.tables["Costs of the runs"]
    assert total[:2] == ["fedavg", f"{up / 1000:.1f} kB"]
    assert total[3] == f"{seconds:.1f} s"
    assert each[1] == f"{up / 9000:.1f} kB"
    assert len(document.tables["Costs of fedavg by site"]) == 4


def test_costs_of_several_runs_are_their_median(tmp_path):
    spent = {"seed-0": 10.0, "seed-1": 700.0, "seed-2": 12.0}  # a machine that slept tells nothing about a method
    folders = [make_run(tmp_path / name, "fedavg", seed=int(name[-1])) for name in spent]
    for folder, seconds in zip(folders, spent.values(), strict=True):
        summary = Summary.read(folder / "summary.json")
        costs = {site: replace(cost, train_seconds=seconds) for site, cost in summary.costs.items()}
        summary.model_copy(update={"costs": costs}).write(folder / "summary.json")
    document = Page(write_report(folders, tmp_path / "page.html").read_text())
    sites = len(summary.costs)
    _, total, each = document.tables["Costs of the methods"]
    assert total[0] == "fedavg, median of 3 runs"
    assert total[3] == f"{12 * sites:.1f} s"
    assert each[3] == f"{12 / summary.rounds:.1f} s"
    assert len(document.tables["Costs of the runs"]) == 7


def test_each_setting_is_shown_with_its_origin_and_what_differs_comes_first(page):
    args = [{"method_args": {"mu": mu}} for mu in (0.1, 1.0)]
    document = page(("fedprox-a", args[0]), ("fedprox-b", args[1]))
    unlike = document.tables["Settings in which the runs differ"]
    assert ["method_args.mu", "0.1", "command line", "fedprox (mu=0.1)"] in unlike
    assert ["method_args.mu", "1.0", "command line", "fedprox (mu=1.0)"] in unlike
    assert len(unlike) == 3
    assert ["optimizer.lr", "0.05", "command line"] in document.tables["Settings that all runs share"]
    assert ["torch", "2.13.0", "all"] in document.tables["Versions, threads, device, plugins"]
    assert ["site-2", f"{1:064x}"[:12], "all"] in document.tables["Data hashes"]


def test_holdings_are_counted_for_each_split(page, tmp_path):
    document = page(("fedavg", {}))
    counts = json.loads((tmp_path / "fedavg/summary.json").read_text())["holdings"]["sites"]
    rows = document.tables["Images for training"]
    assert ["site-2", *map(str, counts["site-2"]["training"]), str(sum(counts["site-2"]["training"]))] in rows
    total = sum(sum(site["training"]) for site in counts.values())
    assert rows[-1][-1] == str(total)
    assert "Images for validation" not in document.tables, "nobody has any"


def test_the_first_sentence_names_the_data(page):
    document = page(("fedavg", {"data_name": "bloodmnist"}))
    assert "1 run over 3 rounds with the seed 0 on bloodmnist at 3 sites with 600 images of 3 classes" in words(
        document.sections[""]
    )
    assert "with the seed 0 at 3 sites" in words(page(("local", {})).sections[""])


def test_a_title_names_methods_until_they_are_many(tmp_path):
    run = read_run(make_run(tmp_path / "run", "fedavg"))
    groups = [Group(f"method-{number}", (run,)) for number in range(MAX_NAMED + 1)]
    assert headline(groups[:2]) == f"method-0 and method-1 at {len(SITES)} sites"
    assert headline(groups) == f"{MAX_NAMED + 1} methods at {len(SITES)} sites"


def test_the_first_sentence_counts_no_images_where_the_data_differ(page):
    document = page(("fedavg", {"data_name": "one"}), ("local", {"data_name": "two", "data": "other"}))
    assert "on 2 data sets made from one and two: all finished." in words(document.sections[""])


# ---- notices


def test_what_went_wrong_comes_first(page):
    document = page(
        ("local", {}),
        ("fedavg", {"status": "diverged", "reason": "the norm is nan", "done": 2, "leaks": ["a patient is twice."]}),
    )
    notices = [
        attributes["class"]
        for tag, attributes in document.tags
        if tag == "p" and "notice" in (attributes.get("class") or "")
    ]
    assert notices == ["notice bad", "notice bad"]
    start = words(document.sections[""])
    assert "fedavg ended as diverged after 2 of 3 rounds: the norm is nan. Its scores are those after round 2." in start
    assert "The user allowed a data leak (fedavg): a patient is twice." in start
    assert "ifferential privacy" not in start
    assert "1 finished and 1 diverged" in start


def test_the_page_begins_with_what_is_promised(page):
    private = {"settings": {"privacy": {"epsilon": 5.0, "clip": 2.5, "delta": 1e-5}}, "rounds": 7}
    start = words(page(("local", {}), ("fedavg", private)).sections[""])
    promise = "Differential privacy: epsilon 5 with delta 1e-05 for a site that is replaced by any other (fedavg)."
    assert promise in start
    assert "No differential privacy: local." in start


def test_other_data_give_no_difference_and_the_page_says_so(page):
    document = page(("local", {"data": "aaaaaaaaaa"}), ("fedavg", {"data": "bbbbbbbbbb"}))
    assert "The runs did not use the same data (data aaaaaaaa: local; data bbbbbbbb: fedavg)." in document.sections[""]
    assert "No difference for fedavg" in document.sections["gains"]
    assert not [name for name in document.tables if "against local" in name]
    assert "Scores of fedavg by site, data bbbbbbbb" in document.tables
    assert "Data aaaaaaaa" in document.sections["images"]


def test_seeds_with_data_of_their_own_are_reported_site_by_site(page):
    """A site's name stands for other images in each seed, so its scores are never averaged over the seeds."""
    runs = [(f"fedavg-{seed}", {"seed": seed, "data": f"{seed}" * 10}) for seed in (0, 1)]
    with_local = page(*runs, *((f"local-{args['seed']}", args) for _, args in runs))
    assert {name for name in with_local.tables if "against local" in name} >= {
        f"fedavg, data of seed {seed} against local, accuracy" for seed in (0, 1)
    }


def test_a_table_of_sites_alone_for_each_seed_with_data_of_its_own(page):
    document = page(*((f"fedavg-{seed}", {"seed": seed, "data": f"{seed}" * 10}) for seed in (0, 1)))
    assert "Each seed has its own data set. Differences are paired within a seed." in document.sections[""]
    tables = [document.tables[f"Scores of fedavg by site, data of seed {seed}"] for seed in (0, 1)]
    assert tables[0][1] != tables[1][1]
    assert "Data of seed 1" in document.sections["images"]


def test_folders_are_distinguished_without_a_path_of_the_machine(page):
    table = page(("fedavg/seed-0", {}), ("fedprox/seed-0", {})).tables["The runs of this page"]
    assert [row[-1] for row in table[1:]] == ["fedavg/seed-0", "fedprox/seed-0"]


@pytest.mark.parametrize("done", [0, 1, 3])
def test_a_run_that_is_not_over_has_a_page(page, done):
    document = page(("fedavg", {"status": "running", "done": done}))
    assert f"with {done} of 3 rounds in its metrics. The same command continues it" in words(document.sections[""])
    assert not {"glance", "methods", "gains", "scores", "images", "costs"} & document.sections.keys()
    assert ("curves" in document.sections) == (done > 1)
    assert bool([tag for tag, _ in document.tags if tag == "svg"]) == (done > 1)


def test_a_local_run_that_is_not_over_leaves_the_other_without_a_difference(page):
    document = page(("local", {"status": "running"}), ("fedavg", {}))
    assert "no run of local training on the same data has scores" in document.sections["gains"]
    assert "Scores of fedavg by site" in document.tables


def test_the_sites_alone_ask_for_another_run(page):
    assert "All runs are local training." in page(("local", {})).sections["gains"]


def test_a_run_without_test_images_says_so(page):
    document = page(("fedavg", {"splits": ("val",), "bundles": False}))
    assert "There are no test scores of fedavg: no site evaluated test images." in document.sections[""]
    assert "Scores on validation images" in document.tables


def test_one_class_only_leaves_the_auc_open(page):
    """Accuracy is defined for data with one class; the AUC is not."""
    options = {"classes": ("a", "b"), "metrics": ("accuracy", "auc"), "images": 1, "scores": None}
    document = page(("local", options), ("fedavg", options | {"skill": 9.0}))
    assert "fedavg against local, accuracy" in document.tables
    assert "fedavg against local, AUC" not in document.tables
    assert ["AUC", "local", "global", "–", "–"] in document.tables["Scores on test images"]
    assert "no test image of" in document.sections["scores"]


def test_a_diverged_model_without_numbers_is_no_crash(page, tmp_path):
    page(("local", {}), ("fedavg", {}))
    for site in SITES:
        path = tmp_path / "fedavg/sites" / site / "predictions.csv"
        path.write_text(re.sub(r"(?m)^(\d+,\d+),.*$", r"\1,nan,nan,nan", path.read_text()))
    document = Page(write_report([tmp_path / "local", tmp_path / "fedavg"]).read_text())
    assert "no interval: a model gives no numbers" in words(document.sections["gains"])
    assert "There are no predictions on test images from fedavg." in document.sections["scores"]


def test_predictions_of_an_earlier_end_are_not_shown(page, tmp_path):
    """A finished run that was given more rounds has no summary until it is over again, but still its old bundles."""
    page(("local", {}), ("fedavg", {}))
    (tmp_path / "fedavg/summary.json").unlink()
    document = Page(write_report([tmp_path / "local", tmp_path / "fedavg"]).read_text())
    assert "Confusion matrix of local" in document.tables
    assert "Confusion matrix of fedavg" not in document.tables
    assert "fedavg is not over" in words(document.sections[""])


def test_predictions_of_another_round_than_the_scores_give_no_interval(page):
    """Scored every 2 rounds, diverged in the fourth: scores are of round 2, the models at home of round 3."""
    document = page(("local", {}), ("fedavg", {"rounds": 9, "done": 3, "unscored": 1, "status": "diverged"}))
    rows = document.tables["fedavg against local, accuracy"]
    assert [words(row[4]) for row in rows[1:4]] == ["no interval: no predictions"] * 3
    assert "Its scores are those after round 2." in words(document.sections[""])


def test_a_seed_without_a_run_alone_is_named(page):
    document = page(
        ("local", {}), ("fedavg-0", {}), ("fedavg-1", {"seed": 1, "data": "other"}), ("fedavg-2", {"seed": 2})
    )
    text = words(document.sections["gains"])
    assert "No difference for fedavg, data other" in text
    assert "1 of the 2 runs of fedavg, data data are compared" in text


def test_a_seed_that_is_not_over_is_left_out_and_named(page):
    document = page(("local", {}), ("fedavg-0", {}), ("fedavg-1", {"seed": 1, "status": "running"}))
    text = words(document.sections["gains"])
    assert "1 of the 2 runs of fedavg are compared: the others are not over" in text


def test_runs_without_a_common_metric_are_not_compared(page):
    document = page(("local", {"metrics": ("accuracy",)}), ("fedavg", {"metrics": ("f1",)}))
    assert "The runs have no metric in common" in document.sections["gains"]
    assert len(document.tables["Scores on test images"]) == 3


def test_a_page_says_first_that_a_run_is_an_attack(tmp_path):
    run = make_run(tmp_path / "run", settings={"adversaries": {"attack": "alie", "sites": ["site-1", "site-2"]}})
    text = write_report([run]).read_text()
    assert "contains a simulated attack (alie at site-1 and site-2)." in text
    assert "simulated attack" not in write_report([make_run(tmp_path / "other")]).read_text()
