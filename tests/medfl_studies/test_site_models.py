"""Local and cross-site test in the tables of a study, against values computed by hand."""

from __future__ import annotations

import math
from statistics import fmean, stdev

import pytest
from make_runs import make_run

from medfl.engine.runs.records import read_run
from medfl_report.claims import check_claim, claims_table
from medfl_report.compare import compare, to_markdown
from medfl_report.groups import group_runs
from medfl_studies.site_models import MEAN_SITE, models_markdown, models_table

NAN = math.nan
SITES = ("a", "b")
FOLDS = (
    {"a": {"a": 0.9, "b": 0.5}, "b": {"a": 0.6, "b": 0.8}},
    {"a": {"a": 0.7, "b": NAN}, "b": {"a": 0.4, "b": 0.6}},
)
"""Owner of a model to the site whose test images it sees, in each fold."""


@pytest.fixture
def runs(tmp_path):
    """Make two folds of fedskd, of local, whose models are worse by 0.1 and 0.2, and of fedavg with one model."""

    def write(method, fold, table, kind="personal"):
        own = {site: None if math.isnan(table[site][site]) else table[site][site] for site in SITES}
        options = {"sites": SITES, "metrics": ("auc",), "model": kind, "bundles": False, "state": False}
        options |= {"scores": {"auc": own}, "crossed": {"auc": table}, "fold": fold, "data": f"fold {fold}"}
        return read_run(make_run(tmp_path / f"{method}-{fold}", method, **options))

    records = []
    for fold, table in enumerate(FOLDS):
        worse = {owner: {site: v - 0.1 * (fold + 1) for site, v in row.items()} for owner, row in table.items()}
        alike = dict.fromkeys(SITES, table["b"])
        records += [write("fedskd", fold, table), write("local", fold, worse), write("fedavg", fold, alike, "global")]
    return records


def test_each_site_and_the_mean_over_folds_and_sites(runs):
    table = models_table(group_runs(runs), ["auc", "accuracy"]).set_index(["label", "site"])
    assert set(table["metric"]) == {"auc"}
    first, second, mean = (table.loc["fedskd", site] for site in (*SITES, MEAN_SITE))
    assert (first["local"], first["local_std"]) == pytest.approx((0.8, stdev([0.9, 0.7])))
    assert (first["global"], first["global_std"]) == pytest.approx((0.7, 0.0), abs=1e-12)
    assert first["global_spread"] == pytest.approx(stdev([0.9, 0.5]))  # the other fold has one score only
    assert second["global_spread"] == pytest.approx(stdev([0.6, 0.8]))
    assert (mean["local"], mean["local_std"]) == pytest.approx((0.75, stdev([0.85, 0.65])))
    assert mean["local_spread"] == pytest.approx(stdev([0.9, 0.8]))
    folds = [fmean([0.7, 0.7]), fmean([0.7, 0.5])]
    assert (mean["global"], mean["global_std"]) == pytest.approx((fmean(folds), stdev(folds)))
    assert mean["global_spread"] == pytest.approx(fmean([stdev([0.7, 0.7]), stdev([0.7, 0.5])]))
    assert (mean["runs"], mean["undefined"], first["undefined"], second["undefined"]) == (2, 1, 1, 0)


def test_one_model_for_all_sites_has_no_cross_site_test_at_each(runs):
    table = models_table(group_runs(runs), ["auc"]).set_index(["label", "site"])
    assert table.loc[("fedavg", "a"), "local"] == pytest.approx(0.5)
    assert table.loc["fedavg"].loc[list(SITES), "global"].isna().all()
    assert table.loc[("fedavg", MEAN_SITE), "global"] == pytest.approx(0.6)
    assert math.isnan(table.loc[("fedavg", MEAN_SITE), "global_spread"])


def test_sites_of_other_people_have_no_rows(tmp_path):
    folders = [
        make_run(tmp_path / f"{n}", "fedskd", n, data=f"{n}", sites=SITES, crossed={"auc": FOLDS[n]}, bundles=False)
        for n in (0, 1)
    ]
    table = models_table(group_runs([read_run(folder) for folder in folders]), ["auc"])
    assert table["site"].tolist() == [MEAN_SITE]
    assert models_table(group_runs([read_run(folders[0])]), ["accuracy"]).empty


def test_markdown_has_a_line_for_each_method(runs):
    text = models_markdown(models_table(group_runs(runs), ["auc"]), "auc")
    lines = text.splitlines()
    assert "| method | mean | over sites | a | b |" in lines
    assert "| fedskd | 0.750 ± 0.141 | 0.071 | 0.800 ± 0.141 | 0.700 ± 0.141 |" in lines
    assert "| fedskd | 0.650 ± 0.071 | 0.071 | 0.700 ± 0.000 | 0.600 ± 0.141 |" in lines
    assert "| fedavg | 0.600 ± 0.141 | - | - | - |" in lines
    assert models_markdown(models_table([], ["auc"]), "auc") == ""


def test_the_main_table_has_the_cross_site_test_with_both_spreads(runs):
    table = compare(runs, ["auc"], "local")
    row = table.set_index("label").loc["fedskd"]
    assert (row["all_sites"], row["all_sites_std"]) == pytest.approx((0.65, stdev([0.7, 0.6])))
    assert row["all_sites_spread"] == pytest.approx(stdev([0.7, 0.5]) / 2)
    assert math.isnan(row["server_test"])
    text = to_markdown(table)
    assert "| all sites' test sets | over models | difference from local |" in text
    assert "| 0.650 ± 0.071 | 0.071 |" in text


def test_rows_may_have_unlike_baselines(runs):
    table = compare(runs, ["auc"], {"fedskd": "fedavg", "fedavg": "local"})
    assert table.set_index("label")["baseline"].to_dict() == {"fedskd": "fedavg", "local": "fedskd", "fedavg": "local"}
    assert table.set_index("label").loc["fedskd", "difference"] == pytest.approx(fmean([0.15, 0.15]))
    text = to_markdown(table)
    assert "| compared with | difference | p (patients) | effect |" in text
    assert "| fedavg | +0.150 | - | - |" in text
    assert "Difference: from the reference named in the row, paired" in text


def test_claims_show_both_sides_with_their_spreads(runs):
    claims = [
        check_claim(group_runs(runs), measure, "fedskd", "local") for measure in ("local_test", "cross_site_test")
    ]
    table = claims_table(claims).set_index("measure")
    row = table.loc["cross_site_test"]
    assert (row["better_mean"], row["better_std"]) == pytest.approx((0.65, stdev([0.7, 0.6])))
    assert (row["than_mean"], row["than_std"]) == pytest.approx((0.5, stdev([0.6, 0.4])))
    assert row[["better_spread", "than_spread"]].tolist() == pytest.approx([stdev([0.7, 0.5]) / 2] * 2)
    assert (row["metric"], row["pairs"], row["difference"]) == ("auc", 2, pytest.approx(0.15))
    assert table.loc["local_test", "better_spread"] == pytest.approx(stdev([0.9, 0.8]))
    assert claims_table([]).empty
