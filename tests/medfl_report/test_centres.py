"""Test the gains of centres: against scikit-learn from the run folders, exclusions, and how centres reach them."""

from __future__ import annotations

from statistics import fmean, stdev

import numpy as np
import pandas as pd
import pytest
from make_runs import make_run
from read_page import Page, words
from sklearn.metrics import roc_auc_score

from medfl.data.ingest.prepare import prepare
from medfl.data.partition.by_column import by_site
from medfl.data.partition.partition import partition
from medfl.data.partition.plan import PartitionPlan
from medfl.data.pooled import all_targets
from medfl.data.sites import load_site
from medfl.engine.runs.records import read_run
from medfl.engine.runs.site_bundles import format_predictions
from medfl.objectives import Multiclass
from medfl_datasets.abide.spec import Abide
from medfl_datasets.abide.synthetic import write_release
from medfl_report.groups import group_runs
from medfl_report.page import write_report
from medfl_report.predictions import read_prediction_sets
from medfl_report.sections.centres import centre_gains, centres_section
from medfl_report.site_comparison import TOO_FEW_PATIENTS

pytestmark = pytest.mark.usefixtures("undrawn")

CENTRES = ("NYU", "NYU", "YALE", "NYU", "PITT")
"""Centres of the test images of each site, repeated."""


def make(tmp_path, method, **options):
    options = {"classes": ("control", "autism"), "metrics": ("auc",), "state": False, "sites": ("a", "b")} | options
    folder = tmp_path / f"{method}-{options.get('seed', 0)}-{options.get('fold')}"
    return make_run(folder, method, skill=0.3 if method == "local" else 1.5, **{"centre": CENTRES} | options)


def read(folders):
    records = [read_run(folder) for folder in folders]
    return group_runs(records), {str(run.folder): read_prediction_sets(run) for run in records}


def gains(folders):
    """The second method against the first."""
    (base, group), tested = read(folders)
    return centre_gains(group, base, tested)


def area(folders, centre):
    """The area of a centre over folds and sites, by scikit-learn on ranks of pandas."""
    tables = [read_run(folder).predictions(site) for folder in folders for site in ("a", "b")]
    ranked = pd.concat([table.assign(rank=(table["p1"].rank() - 0.5) / len(table)) for table in tables])
    own = ranked[ranked["centre"] == centre]
    return roc_auc_score(own["label"], own["rank"])


def rewrite(folder, change):
    for path in folder.glob("sites/*/predictions.csv"):
        change(pd.read_csv(path)).to_csv(path, index=False)


def one_class(table):
    """The images of PITT are all of class 1."""
    return table.assign(label=table["label"].where(table["centre"] != "PITT", 1))


def test_each_centre_is_that_of_scikit_learn_over_folds_sites_and_seeds(tmp_path):
    draws = [{"seed": seed, "fold": fold, "data": f"{seed} {fold}"} for seed in (0, 1) for fold in (0, 1)]
    runs = {m: [make(tmp_path, m, **draw) for draw in draws] for m in ("local", "fedskd")}
    comparison, left = gains([*runs["local"], *runs["fedskd"]])
    assert [row.name for row in comparison.rows] == ["NYU", "PITT", "YALE"]
    for row in comparison.rows:
        alone, other = ([area(runs[m][2 * s : 2 * s + 2], row.name) for s in (0, 1)] for m in ("local", "fedskd"))
        gaps = [b - a for a, b in zip(alone, other, strict=True)]
        assert (row.alone, row.other, row.difference) == pytest.approx((fmean(alone), fmean(other), fmean(gaps)))
        assert row.spread == pytest.approx(stdev(gaps))
        assert row.low < row.difference < row.high
    assert [row.images for row in comparison.rows] == [96, 32, 32]
    assert comparison.mean.difference == pytest.approx(fmean(row.difference for row in comparison.rows))
    assert left == []


def test_a_centre_of_one_class_is_left_out_with_its_counts(tmp_path):
    runs = [make(tmp_path, method) for method in ("local", "fedskd")]
    for run in runs:
        rewrite(run, one_class)
    comparison, left = gains(runs)
    assert [row.name for row in comparison.rows] == ["NYU", "YALE"]
    assert [(centre.name, centre.images) for centre in left] == [("PITT", (0, 16))]
    page = Page(write_report(runs, tmp_path / "page.html").read_text())
    assert "Left out, because all images are of one class: PITT (16 images: 16 autism)." in words(
        page.sections["centres"]
    )


def test_few_images_of_a_class_give_no_interval(tmp_path):
    """With two images, every defined resample is the same, which would look like certainty."""
    runs = [make(tmp_path, method, images=10) for method in ("local", "fedskd")]
    for run in runs:
        rewrite(run, lambda table: table.assign(label=np.arange(len(table)) // 5))
    comparison, _ = gains(runs)
    by_name = {row.name: row for row in comparison.rows}
    assert (by_name["YALE"].low, by_name["YALE"].effect) == (None, TOO_FEW_PATIENTS)
    assert by_name["NYU"].low is not None
    assert by_name["YALE"].difference == pytest.approx(area(runs[1:], "YALE") - area(runs[:1], "YALE"))
    assert comparison.mean.effect == "no test at every centre"


def test_images_of_no_known_centre_count_in_the_ranks_only(tmp_path):
    runs = [make(tmp_path, method, centre=("NYU", "")) for method in ("local", "fedskd")]
    comparison, _ = gains(runs)
    assert [(row.name, row.images) for row in comparison.rows] == [("NYU", 40)]
    assert comparison.rows[0].alone == pytest.approx(area(runs[:1], "NYU"))


@pytest.mark.parametrize(("baseline", "base", "rows"), [
    (None, "local", ["fedcross", "fedskd"]), ("fedcross", "fedcross", ["local", "fedskd"]),
    ("none like that", "local", ["fedcross", "fedskd"]),
    ({"fedskd": "fedcross"}, "the reference of each", ["fedcross", "fedskd"]),
])  # fmt: skip
def test_the_baseline_is_the_one_named_or_the_sites_alone(tmp_path, baseline, base, rows):
    groups, tested = read([make(tmp_path, method) for method in ("fedcross", "local", "fedskd")])
    content = centres_section(groups, tested, baseline)
    assert (content["base"], list(content["tables"])) == (base, rows)
    assert centres_section([group for group in groups if group.method != "local"], tested)["base"] == "fedcross"


def test_the_page_draws_it_and_has_a_table_for_each_method(tmp_path):
    runs = [make(tmp_path, method) for method in ("local", "fedskd")]
    html = write_report(runs, tmp_path / "page.html").read_text()
    page = Page(html)
    (comparison, _) = gains(runs)
    table = page.tables["fedskd against local, AUC"]
    assert words(table[1][0]) == "NYU 48 images"
    assert table[1][1:3] == [f"{comparison.rows[0].alone:.3f}", f"{comparison.rows[0].other:.3f}"]
    assert "Discrimination by scanning centre" in page.sections["centres"]
    assert f"fedskd: {comparison.mean.difference:+.3f}" in html
    assert 'href="#centres"' in html


@pytest.mark.parametrize(
    ("local", "fedskd"),
    [({"centre": ()}, {"centre": ()}), ({"data": "one"}, {"data": "two"}), ({}, {"bundles": False})],
)
def test_nothing_is_shown_where_nothing_can_be_compared(tmp_path, local, fedskd):
    groups, tested = read([make(tmp_path, "local", **local), make(tmp_path, "fedskd", **fedskd)])
    assert centres_section(groups, tested) is None
    assert centres_section(groups[:1], tested) is None


def test_the_centre_goes_from_the_release_into_the_predictions(tmp_path):
    write_release(tmp_path / "release", 4, ("NYU", "UM_1"), ("reho",), size=8)
    prepare(Abide(source=tmp_path / "release", derivatives=("reho",), size=8), tmp_path / "pooled", workers=1)
    plan = PartitionPlan("by_site", column="site", test_fraction=0.5, server_test="none")
    partition(tmp_path / "pooled", tmp_path / "sites", plan, by_site)
    site = load_site(tmp_path / "sites" / "US-Middle", Multiclass(2), (0.0,), (1.0,))
    labels = all_targets(site.test)
    predictions = labels.double()[:, None].repeat(1, 2)
    lines = format_predictions(Multiclass(2), ("accuracy",), predictions, labels, site.test_metadata).splitlines()
    assert lines[0] == "row,label,p0,p1,sex,centre"
    assert {line.rsplit(",", 1)[1] for line in lines[1:]} == {"UM"}
    assert len(lines) == 3
