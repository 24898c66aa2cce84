"""Table of the methods and summary box: one row for each method, the same effects as `compare`, leading metric."""

from __future__ import annotations

import csv
from statistics import fmean

import numpy as np
import pytest
from make_runs import SITES, make_run
from read_page import Page, words
from scipy import stats
from sklearn.dummy import DummyClassifier
from sklearn.metrics import accuracy_score, balanced_accuracy_score

from medfl.engine.runs.records import read_run
from medfl.records.summary import Summary
from medfl_report.compare import compare
from medfl_report.groups import group_runs
from medfl_report.page import write_report
from medfl_report.scores import majority_baseline, page_metrics

SKILLS = {"local": 0.2, "fedavg": 3.0, "fedprox": 0.3}
"""Raised logit of the true class for each method."""

METRICS = ("accuracy", "balanced_accuracy", "auc")


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """Run folders of three methods and three seeds on the same data."""
    place = tmp_path_factory.mktemp("study")
    return [
        make_run(place / f"{method}-{seed}", method, seed, skill=skill + seed / 10, images=60, metrics=("accuracy",))
        for method, skill in SKILLS.items()
        for seed in range(3)
    ]


def table_of(html):
    """Return the cells of the table of the methods."""
    return [[words(cell) for cell in row] for row in Page(html).tables["Methods"]]


def test_each_method_has_one_row_with_the_numbers_of_compare(study, tmp_path):
    html = write_report(study, tmp_path / "page.html", baseline="local", figures=tmp_path / "files").read_text()
    head, *rows = table_of(html)
    assert head[:3] == ["method seeds", "accuracy 95 % CI", "difference from local 95 % CI"]
    assert [row[0] for row in rows] == [f"{method} 0, 1, 2" for method in SKILLS]
    table = compare([read_run(folder) for folder in study], ["accuracy"], "local").set_index("label")
    for row, method in zip(rows, SKILLS, strict=True):
        expected = table.loc[method]
        assert row[1].startswith(f"{expected['mean']:.3f}")
        if method == "local":
            assert row[2] == "reference"
            continue
        assert row[2] == f"{expected['difference']:+.3f}{expected['low']:+.3f} to {expected['high']:+.3f}".replace(
            "-", "\N{MINUS SIGN}"
        )
        assert row[4] == {"n.s.": "no clear difference"}.get(expected["effect"], expected["effect"])
    assert [row[5] for row in rows] == ["3", "1", "2"]
    assert "Student's t over the seeds" in words(Page(html).sections["methods"])
    with (tmp_path / "files" / "methods.csv").open(newline="") as file:
        assert [line[0] for line in csv.reader(file)][1:] == [f"{method} (0, 1, 2)" for method in SKILLS]
    assert r"\caption{Accuracy on test images" in (tmp_path / "files" / "methods.tex").read_text()


def test_the_interval_of_a_mean_is_students_t_over_the_seeds(study, tmp_path):
    row = table_of(write_report(study, tmp_path / "page.html").read_text())[1]
    scores = [fmean(read_run(folder).score(site, "accuracy") for site in SITES) for folder in study[:3]]
    ends = stats.ttest_1samp(scores, 0).confidence_interval()
    assert row[1] == f"{fmean(scores):.3f}{ends.low:.3f} to {ends.high:.3f}"


def test_the_site_tables_never_contradict_the_table_of_the_methods(study, tmp_path):
    """Both are over the seeds, so the mean of the sites has the same difference and interval."""
    document = Page(write_report(study, tmp_path / "page.html", baseline="local").read_text())
    rows = {words(row[0]).split()[0]: row for row in document.tables["Methods"][1:]}
    for method in ("fedavg", "fedprox"):
        mean = next(
            row for row in document.tables[f"{method} against local, accuracy"] if words(row[0]) == "mean of sites"
        )
        assert words(mean[3]).startswith(words(rows[method][2]))


def test_one_run_of_each_method_has_intervals_over_patients(tmp_path):
    runs = [make_run(tmp_path / method, method, skill=skill, images=60) for method, skill in SKILLS.items()]
    html = words(write_report(runs, tmp_path / "page.html").read_text())
    document = Page(html)
    text = words(document.sections["glance"])
    assert "bootstrap over the test images of one run of each method" in text
    assert "p: test over the test images." in words(document.sections["methods"])
    assert "over the test patients" not in html
    assert "Whether the effect is the same with other seeds: each method has one run." in text
    assert "180 test images at 3 sites; no two images are known to share a patient." in text
    rows = [[words(cell) for cell in row] for row in document.tables["Methods"]]
    assert [row[0] for row in rows[1:]] == list(SKILLS)
    assert all(" to " in row[1] for row in rows[1:])


def test_a_single_run_has_no_table_of_methods(tmp_path):
    document = Page(write_report([make_run(tmp_path / "run", images=20)]).read_text())
    assert "Methods" not in document.tables
    assert "there is no run of the method local or of another reference" in words(document.sections["glance"])


def skew(folder, counts):
    """Give all sites of a run these image counts of each class, in training and test."""
    summary = Summary.read(folder / "summary.json")
    sites = dict.fromkeys(SITES, {"training": counts, "validation": (0, 0, 0), "test": counts})
    held = summary.holdings.model_copy(update={"sites": sites})
    summary.model_copy(update={"holdings": held}).write(folder / "summary.json")
    return read_run(folder)


@pytest.mark.parametrize(("counts", "first"), [((20, 20, 20), "accuracy"), ((40, 15, 5), "balanced_accuracy")])
def test_accuracy_leads_only_with_equal_class_sizes(tmp_path, counts, first):
    run = skew(make_run(tmp_path / "run", metrics=METRICS), counts)
    assert page_metrics(group_runs([run]))[0] == first


def test_the_majority_baseline_is_scikit_learns_dummy(tmp_path):
    run = skew(make_run(tmp_path / "run", metrics=METRICS), (5, 40, 15))
    labels = np.repeat(range(3), (5, 40, 15))
    predicted = DummyClassifier(strategy="most_frequent").fit(labels[:, None], labels).predict(labels[:, None])
    scores = {"accuracy": accuracy_score, "balanced_accuracy": balanced_accuracy_score}
    expected = {name: pytest.approx(score(labels, predicted)) for name, score in scores.items()}
    assert majority_baseline(run) == expected | {"auc": 0.5}
    page = Page(write_report([run.folder], tmp_path / "page.html").read_text())
    assert "gives balanced accuracy 0.333, AUC 0.500 and accuracy 0.667" in words(page.sections["glance"])
