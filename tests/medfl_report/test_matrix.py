"""Test cross-site evaluation: local and cross-site test computed by hand, and the tables on the page."""

from __future__ import annotations

import math
from statistics import fmean, stdev

import pytest
from make_runs import make_run
from read_page import Page, render_section, words
from run_records import rewrite

from medfl.engine.runs.records import read_run
from medfl.records.summary import Summary
from medfl_report.groups import group_runs, same_people
from medfl_report.page import write_report
from medfl_report.sections.cross_site import count_undefined, cross_site_scores, global_mean, local_mean, matrix_section

pytestmark = pytest.mark.usefixtures("undrawn")

NAN = math.nan
SITES = ("a", "b", "c")
TABLE = {"a": {"a": 0.9, "b": 0.5, "c": 0.4}, "b": {"a": 0.6, "b": 0.8, "c": NAN}, "c": {"a": 0.3, "b": 0.5, "c": NAN}}
NAME = "Every model at every site: "


def make(tmp_path, name, table=TABLE, **options):
    """A run folder of a method with the name's first part, with a table of AUCs."""
    options = {"sites": SITES, "model": "personal", "metrics": ("auc",), "bundles": False, "state": False} | options
    return make_run(tmp_path / name, name.split("-")[0], crossed={"auc": table} if table else {}, **options)


def shifted(by):
    return {owner: {site: value + by for site, value in row.items()} for owner, row in TABLE.items()}


@pytest.fixture
def section(tmp_path):
    """Make runs and take the section about them apart."""

    def write(*runs: tuple[str, dict]) -> Page:
        groups = group_runs([read_run(make(tmp_path, name, **options)) for name, options in runs])
        html = render_section("matrix", matrix_section(groups))
        return Page(f'<section id="matrix">{html}</section>')

    return write


def test_both_tests_by_hand():
    """A cell that is not defined is left out of its row, and each model counts the same."""
    assert local_mean(TABLE) == pytest.approx((0.9 + 0.8) / 2)
    assert global_mean(TABLE) == pytest.approx((1.8 / 3 + 1.4 / 2 + 0.8 / 2) / 3)
    assert count_undefined(TABLE) == 2


def test_the_cross_site_evaluation_is_not_pooled():
    """The mean over the cells would be 0.8: a model with few defined cells counts as much as the others."""
    table = {"a": {"a": 1.0, "b": 1.0, "c": 1.0}, "b": {"a": NAN, "b": 0.2, "c": NAN}}
    assert global_mean(table) == pytest.approx(0.6)


def test_a_table_without_any_score_has_no_means():
    table = {"a": {"a": NAN}}
    assert math.isnan(local_mean(table))
    assert math.isnan(global_mean(table))


def test_the_table_is_that_of_the_run(tmp_path):
    table = cross_site_scores(read_run(make(tmp_path, "fedskd")), "auc")
    assert {owner: list(row) for owner, row in table.items()} == dict.fromkeys(SITES, list(SITES))
    assert all(table[o][s] == pytest.approx(TABLE[o][s], nan_ok=True) for o in SITES for s in SITES)
    assert cross_site_scores(read_run(tmp_path / "fedskd"), "accuracy") is None
    assert cross_site_scores(read_run(make(tmp_path, "local", table=None)), "auc") is None


def test_sites_without_test_images_are_no_columns_but_have_models(tmp_path):
    table = {owner: {"a": 0.5, "c": 0.7} for owner in SITES}
    crossed = cross_site_scores(read_run(make(tmp_path, "fedskd", table=table)), "auc")
    assert list(crossed) == list(SITES)
    assert {tuple(row) for row in crossed.values()} == {("a", "c")}
    assert local_mean(crossed) == pytest.approx(0.6)


def test_a_test_of_an_earlier_end_is_not_shown(tmp_path):
    """A run that was given more rounds keeps the rows of its first end."""
    folder = make(tmp_path, "fedskd", status="running")
    assert cross_site_scores(read_run(folder), "auc") is None
    other = make(tmp_path, "fedskd-2")
    rewrite(Summary, other, evaluated_round=5)
    assert cross_site_scores(read_run(other), "auc") is None


def test_the_section_shows_cells_means_and_what_is_left_out(section):
    document = section(("fedskd", {}))
    head, *rows = document.tables[NAME + "fedskd"]
    assert head == ["", "mean", *SITES]
    assert rows == [
        ["a", "0.600", "0.900", "0.500", "0.400"],
        ["b", "0.700", "0.600", "0.800", "–"],
        ["c", "0.400", "0.300", "0.500", "–"],
    ]
    assert document.tables["Local test and cross-site test"][1] == ["fedskd", "0.850", "0.567", "1", "2 of 9 scores"]
    assert [attributes.get("class") for tag, attributes in document.tags if tag == "td"].count("right") == len(SITES)


def test_shades_grow_from_the_smallest_to_the_largest_score_of_all_tables(section):
    document = section(("fedskd", {}), ("local", {"table": shifted(-0.3)}))
    shades = [
        float(attributes["style"].split("/")[1][:-1])
        for tag, attributes in document.tags
        if tag == "td" and "style" in attributes
    ]
    values = [TABLE[o][s] + by for by in (0, -0.3) for o in SITES for s in SITES]
    expected = [0 if math.isnan(value) else 0.5 * (value - 0.0) / 0.9 for value in values]
    assert shades == pytest.approx(expected, abs=0.006)
    assert "on the same scale in all tables (0.000 to 0.900)" in words(document.sections["matrix"])


def test_folds_are_averaged_cell_by_cell_and_spread_over_runs(section):
    """A cell that one fold does not define is the mean of the others; the tests are computed in each fold first."""
    whole = {owner: dict.fromkeys(SITES, 0.5) for owner in SITES}
    runs = [(f"fedskd-{n}", {"table": t, "fold": n, "data": f"fold {n}"}) for n, t in enumerate((TABLE, whole))]
    document = section(*runs)
    assert document.tables[NAME + "fedskd"][2] == ["b", "0.600", "0.550", "0.650", "0.500"]
    tests = [[mean(table) for table in (TABLE, whole)] for mean in (local_mean, global_mean)]
    shown = [f"{fmean(values):.3f} ± {stdev(values):.3f}" for values in tests]
    assert [words(cell) for cell in document.tables["Local test and cross-site test"][1]] == [
        "fedskd",
        *shown,
        "2",
        "2 of 18 scores",
    ]
    assert "mean over 2 runs" in words(document.sections["matrix"])


def test_sites_of_other_data_are_never_averaged(section):
    """Without folds, other data of another seed are other people under the same names."""
    document = section(*((f"fedskd-{n}", {"seed": n, "data": f"{n}", "table": shifted(n / 10)}) for n in (0, 1)))
    assert document.tables[NAME + "fedskd, seed 0"][1][1] == "0.600"
    assert document.tables[NAME + "fedskd, seed 1"][1][1] == "0.700"


@pytest.mark.parametrize(
    ("runs", "parts"),
    [
        ([(0, "x", None), (1, "x", None)], {"": 2}),
        ([(0, "x", None), (1, "y", None)], {"seed 0": 1, "seed 1": 1}),
        ([(0, "x", 0), (0, "y", 1)], {"": 2}),
        ([(0, "x", 0), (0, "y", 1), (1, "z", 0), (1, "w", 1)], {"seed 0": 2, "seed 1": 2}),
        ([(0, "x", 0), (0, "y", 1), (1, "x", 0), (2, "z", 0)], {"seeds 0 and 1": 3, "seed 2": 1}),
        ([(0, "x", 0), (1, "y", 1), (1, "x", 0)], {"": 3}),
    ],
)
def test_who_has_the_same_people(tmp_path, runs, parts):
    folders = [
        make(tmp_path, f"fedskd-{n}", seed=seed, data=data, fold=fold) for n, (seed, data, fold) in enumerate(runs)
    ]
    (group,) = group_runs([read_run(folder) for folder in folders])
    assert {name: len(members) for name, members in same_people(group).items()} == parts


def test_one_model_for_all_sites_is_one_row(section):
    row = {"a": 0.6, "b": 0.7, "c": NAN}
    document = section(("fedavg", {"model": "global", "table": dict.fromkeys(SITES, row)}))
    assert document.tables[NAME + "fedavg"][1:] == [["the one global model", "0.650", "0.600", "0.700", "–"]]
    assert document.tables["Local test and cross-site test"][1][1:3] == ["0.650", "0.650"]
    assert "In fedavg all sites have the same model" in document.sections["matrix"]


def test_who_was_not_tested_is_named(section):
    document = section(("fedskd-0", {}), ("fedskd-1", {"seed": 1, "status": "running"}), ("local", {"table": None}))
    text = words(document.sections["matrix"])
    assert "No cross-site evaluation: local." in text
    assert "Only 1 of the 2 runs of fedskd are shown" in text


def test_too_many_sites_are_reported_in_two_numbers(section):
    sites = [f"s{number:02d}" for number in range(31)]
    document = section(("fedskd", {"sites": sites, "table": {o: dict.fromkeys(sites, 0.5) for o in sites}}))
    assert list(document.tables) == ["Local test and cross-site test"]
    assert "The table of fedskd is left out: more than 30 sites." in document.sections["matrix"]


def test_the_page_has_the_section_only_where_there_is_something_to_show(tmp_path):
    for table in (TABLE, None):
        folder = make(tmp_path, f"fedskd-{bool(table)}", table=table)
        document = Page(write_report([folder]).read_text())
        assert ("matrix" in document.sections) == bool(table)
        links = {attributes.get("href") for tag, attributes in document.tags if tag == "a"}
        assert ("#matrix" in links) == bool(table)
