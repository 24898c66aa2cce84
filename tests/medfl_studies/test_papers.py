"""Tables and figures of papers beside the runs of a study: orders that hold, are reversed or open, and their page."""

from __future__ import annotations

import gzip
import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from run_records import metric_scores, summary_of
from study_toys import SMALL, changed, write_run

from medfl.cli.main import main
from medfl.errors import SettingsError
from medfl.records.run_file import RunFile
from medfl.records.summary import MetricScores, Summary
from medfl.testing.synthetic import make_cohort
from medfl_report.claims import check_claim, correct_claims
from medfl_report.groups import Group
from medfl_studies.jobs import RunJob, expand_study
from medfl_studies.records.paper_items import PaperItem, read_papers
from medfl_studies.records.raw_results import RawResults, UnfinishedRun
from medfl_studies.results.check_pages import check_results, update_sums
from medfl_studies.results.collect import StudyPart, collect_study
from medfl_studies.results.paper_curves import curve_points, time_note
from medfl_studies.results.paper_orders import ItemResult, item_result
from medfl_studies.results.paper_tables import (
    open_orders,
    orders_summary,
    paper_state,
    paper_summary,
    paper_table,
    run_scale,
)
from medfl_studies.results.recorded_study import StudyResults, read_results
from medfl_studies.study_reader import read_study

FINAL = {
    "a": (0.90, 0.91, 0.92),
    "b": (0.50, 0.50, 0.50),
    "c": (0.70, 0.72, 0.71),
    "d": (0.70, 0.69, 0.735),
}
"""Final score of the global model, by row and seed."""

ROUNDS = 4

PAPERS = {
    "papers": [
        {
            "name": "FedTest",
            "source": "A, B (2026).",
            "others": "Figure 2 is a drawing.",
            "items": [
                {
                    "item": "table 1",
                    "shows": "Four methods.",
                    "data": "photographs",
                    "our_data": "drawings",
                    "studies": ["small"],
                    "raw": "small",
                    "rows": {"A": "a", "B": "b", "C": "c", "D": "d", "E": "e"},
                    "columns": [
                        {
                            "name": "final",
                            "ours": "on photographs",
                            "data": "demo",
                            "measure": "global_final",
                            "printed": {"A": 0.9, "B": 0.8, "C": 0.7, "D": 0.6, "E": 0.5},
                        },
                        {"name": "elsewhere", "data": "other", "measure": "global_final", "printed": {"A": 0.321}},
                    ],
                    "curves": [
                        {"name": "accuracy", "data": "demo", "kind": "server", "methods": ["A", "B"]},
                        {"name": "by time", "data": "demo", "kind": "seconds", "methods": ["A"]},
                        {"name": "at sites", "data": "demo", "kind": "networks", "methods": ["A"]},
                        {"name": "public", "data": "demo", "kind": "public"},
                    ],
                    "tried": "A longer warm-up.",
                },
                {"item": "table 2", "shows": "More.", "data": "photographs", "raw": "later", "studies": ["later"]},
                {"item": "figure 1", "shows": "A curve.", "data": "secret", "reason": "The data are secret."},
            ],
        }
    ]
}

TEMPLATE = """{% set results = papers("papers.yaml") %}
# Papers

{{ papers_overview(results) }}
{% for result in results %}

## {{ result.item.item }}, {{ paper_state(result) }}

{{ result.item.reason }}{{ result.item.tried }}
{{ paper_table(result) }}
{% if result.orders %}{{ orders_summary(result) }}{% endif %}
{{ orders_table(result) }}
{{ open_orders(result) }}
{% for curve in result.item.curves %}
{{ curve_table(result, curve) }}
{{ time_note(result, curve) }}
{% endfor %}
{% endfor %}
"""


def write_scored_run(job: RunJob) -> None:
    """Write a run whose global model scores `FINAL` after the last round, and grows with the rounds."""
    write_run(job.folder, job.options | {"dataset_dir": str(job.dataset_dir)}, "finished")
    final = FINAL[job.row][job.seed]
    rows = ["round,site,model,split,moment,metric,value"]
    for number in range(1, ROUNDS + 1):
        score = final * number / ROUNDS
        rows.append(f"{number},site-01,personal,train,trained,work_seconds,10.0")
        rows += [f"{number},{place},global,test,aggregated,accuracy,{score!r}" for place in ("site-01", "global")]
    (job.folder / "metrics.csv").write_text("\n".join(rows) + "\n")
    scores = {"global": {"test": {"accuracy": metric_scores({"site-01": final}, server_test=final)}}}
    summary_of(RunFile.read(job.folder / RunFile.NAME), scores).write(job.folder / Summary.NAME)


@pytest.fixture(scope="module")
def finished_docs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a generated page about a paper and the raw results of its study."""
    root = tmp_path_factory.mktemp("study")
    make_cohort(root / "source" / "cohort", sites=2, images_per_site=4, classes=2, size=8)
    for path in (root / "source").rglob("datalist.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"licence": "CC0"}))
    rows = {name: {"method": "fedprox", "method_args": {"mu": 0.1 * place}} for place, name in enumerate("abcd", 1)}
    file = root / "small.yaml"
    file.write_text(yaml.safe_dump(changed(SMALL, {"seeds": 3, "baseline": "a", "rows": rows}), sort_keys=False))
    for job in expand_study(read_study(file), root / "bundle", root / "source", root / "out"):
        write_scored_run(job)
    docs = root / "docs"
    collect_study(file, docs / "raw" / "small", root / "out", root / "source", StudyPart())
    update_sums(docs, sorted((docs / "raw" / "small").iterdir()))
    (docs / "templates").mkdir()
    (docs / "templates" / "papers.md.j2").write_text(TEMPLATE)
    (docs / "templates" / "papers.yaml").write_text(yaml.safe_dump(PAPERS, sort_keys=False))
    with pytest.raises(SystemExit) as end:
        main(["results", "render", "--docs", str(docs)])
    assert not end.value.code
    return docs


@pytest.fixture
def docs(finished_docs: Path, tmp_path: Path) -> Path:
    """Return a copy of the finished folder, to be changed."""
    return Path(shutil.copytree(finished_docs, tmp_path / "docs"))


@pytest.fixture(scope="module")
def results(finished_docs: Path) -> list[ItemResult]:
    """Return the items of the paper, of which the first has runs."""
    (paper,) = read_papers(finished_docs / "templates" / "papers.yaml")
    raw = read_results(finished_docs / "raw" / "small")
    return [item_result(paper, item, raw if item.raw == "small" else None) for item in paper.items]


def faults(docs: Path) -> list[str]:
    """Return the subjects of the failed checks."""
    return [line.subject for line in check_results(docs) if not line.ok]


# ---- orders


def test_orders_hold_are_reversed_or_open(results):
    verdicts = {(order.better, order.worse): order.verdict for order in results[0].orders}
    assert verdicts == {
        ("A", "B"): "holds",
        ("A", "C"): "holds",
        ("A", "D"): "holds",
        ("B", "C"): "reversed",
        ("B", "D"): "reversed",
        ("C", "D"): "open",
    }, "E has no run and no order"
    assert [results[0].count(verdict) for verdict in ("holds", "reversed", "open")] == [3, 2, 1]
    assert (results[0].same_sign, results[0].tests, results[0].untested) == (4, 6, 0)


def test_verdicts_are_those_of_checked_claims_after_holms_correction(results):
    groups = [Group(name.upper(), group.runs) for name, group in results[0].results.groups("demo").items()]
    pairs = [(order.better, order.worse) for order in results[0].orders]
    claims = correct_claims([check_claim(groups, "global_final", *pair) for pair in pairs])
    assert [order.p_holm for order in results[0].orders] == [claim.p_holm for claim in claims]
    assert [order.difference.value for order in results[0].orders] == pytest.approx([c.difference for c in claims])
    assert [order.difference.low for order in results[0].orders] == [claim.interval.low for claim in claims]


def test_orders_of_too_few_runs_are_counted_and_not_listed(results):
    raw = results[0].results
    few = [
        replace(raw, runs=raw.runs[:count], raw=raw.raw.model_copy(update={"runs": raw.raw.runs[:count]}))
        for count in (4, 11)
    ]
    one_seed, without_d = (item_result(results[0].paper, results[0].item, part) for part in few)
    assert {run.seed for run in one_seed.runs} == {0}
    assert paper_summary([one_seed], "FedTest") == (
        "None of this paper's 6 orders was tested: the runs have one seed, and a test needs three."
    )
    assert orders_summary(one_seed).startswith("None of the 6 orders was tested (too few runs). ")
    assert open_orders(one_seed) == ""
    assert paper_summary([without_d], "FedTest") == paper_summary([one_seed], "Other") == ""
    assert "and 3 were not tested (too few runs), after a correction for 3 comparisons" in orders_summary(without_d)
    assert open_orders(without_d) == "- final (medfl: on photographs): no order was tested."


def test_curves_by_time_state_whether_the_time_of_a_claim_is_reached(results):
    item = results[0].item
    shown = item.model_copy(update={"rows": {"B": "b", "A": "a"}})
    for claimed_at, words in (
        (500, "the claim at 500 seconds can't be compared, because B's curve"),
        (40, "B's curve"),
    ):
        curve = item.curves[1].model_copy(update={"methods": (), "claimed_at": claimed_at})
        note = time_note(replace(results[0], item=shown), curve)
        assert note.startswith("A is higher than B at 4 of the 4 times, and its difference is +0.410 at the last one.")
        assert f"{words} ends after 40 seconds" in note
    assert time_note(results[0], item.curves[1]) == "", "no claim"


def test_the_rank_correlation_is_spearmans(results):
    # ranks of the paper 4, 3, 2, 1; ours 4, 1, 3, 2: 1 - 6 * (0 + 4 + 1 + 1) / (4 * 15)
    assert results[0].columns[0].correlation == pytest.approx(0.4)
    assert results[0].columns[1].correlation is None


def test_columns_with_the_same_runs_are_one_comparison(results):
    column = PAPERS["papers"][0]["items"][0]["columns"][0]
    turned = column | {"name": "turned", "printed": {"A": 0.1, "B": 0.2}}
    stated = {"name": "stated", "data": "demo", "measure": "global_final", "orders": [["C", "A"]]}
    item = PaperItem.model_validate(PAPERS["papers"][0]["items"][0] | {"columns": [column, turned, stated]})
    result = item_result(results[0].paper, item, results[0].results)
    assert result.tests == results[0].tests == 6
    assert [order.verdict for part in result.columns[1:] for order in part.orders] == ["reversed", "reversed"]
    assert result.columns[1].orders[0].p_holm == result.columns[0].orders[0].p_holm


def test_an_unknown_metric_and_too_few_runs_decide_nothing(results):
    column = PAPERS["papers"][0]["items"][0]["columns"][0] | {"metric": "auc"}
    item = PaperItem.model_validate(PAPERS["papers"][0]["items"][0] | {"columns": [column]})
    result = item_result(results[0].paper, item, results[0].results)
    assert {*result.columns[0].ours.values()} == {None}
    assert (result.count("open"), result.untested, result.tests) == (6, 6, 0)
    assert all(order.difference is None and math.isnan(order.p_holm) for order in result.orders)


def predicting(results: StudyResults) -> StudyResults:
    """Return raw results whose runs have predictions of the global model for 300 images, with its score as accuracy."""
    labels = np.arange(300) % 2
    runs = []
    for kept, run in zip(results.raw.runs, results.runs, strict=True):
        right = np.random.default_rng([ord(kept.row), kept.seed]).permutation(300) < round(
            300 * run.server_score("accuracy")
        )
        table = pd.DataFrame({"row": range(300), "label": labels, "p0": np.where(right == (labels == 0), 0.9, 0.1)})
        runs.append(replace(run, tables={"global": table.assign(p1=1 - table["p0"])}))
    return replace(results, runs=tuple(runs))


@pytest.mark.parametrize("measure", ["global_final", "shared_test"])
def test_predictions_for_the_servers_images_are_tested_over_seeds_and_patients(results, measure):
    column = PAPERS["papers"][0]["items"][0]["columns"][0] | {"measure": measure}
    item = PaperItem.model_validate(PAPERS["papers"][0]["items"][0] | {"columns": [column]})
    tested = item_result(results[0].paper, item, predicting(results[0].results))
    alone = item_result(results[0].paper, item, results[0].results)
    for order, before in zip(tested.orders, alone.orders, strict=True):
        assert order.test.over_patients.patients == 300
        assert order.test.over_patients.variance > 0, "all seeds have the same images"
        assert order.test.p > before.test.p
        interval, narrow = order.test.over_runs.interval, before.test.over_runs.interval
        assert interval.high - interval.low > narrow.high - narrow.low
    assert [order.result for order in tested.orders[:2]] == ["holds", "holds"]
    assert {order.result for order in alone.orders} == {"holds (seeds only)", "reversed (seeds only)", "open"}
    assert [tested.count_seeds_only(verdict) for verdict in ("holds", "reversed")] == [0, 0]
    assert [alone.count_seeds_only(verdict) for verdict in ("holds", "reversed", "open")] == [3, 2, 1]


def test_models_of_the_sites_are_not_tested_by_predictions_of_the_global_model(results):
    raw = predicting(results[0].results)
    scores = {"shared": {"accuracy": MetricScores(mean=0.5, worst=0.5, sites={"site-01": 0.5, "site-02": 0.5})}}
    runs = [
        replace(run, summary=run.summary.model_copy(update={"scores": {**run.scores, "personal": scores}}))
        if kept.row == "a"
        else run
        for kept, run in zip(raw.raw.runs, raw.runs, strict=True)
    ]
    column = PAPERS["papers"][0]["items"][0]["columns"][0] | {"measure": "shared_test"}
    item = PaperItem.model_validate(PAPERS["papers"][0]["items"][0] | {"columns": [column]})
    orders = item_result(results[0].paper, item, replace(raw, runs=tuple(runs))).orders
    assert [order.test.over_patients.p is None for order in orders] == [order.better == "A" for order in orders]


# ---- state, scale, curves


def test_items_without_runs_say_so(results):
    assert [paper_state(result) for result in results] == ["12 of 12 runs finished", "not run yet", "not run"]
    assert [run_scale(result) for result in results] == ["4 rounds, 2 sites, 3 seeds, fp32", "", ""]


def test_curves_are_means_over_the_seeds(results):
    server, by_time, networks, public = (curve_points(results[0], curve) for curve in results[0].item.curves)
    assert (server.unit, server.points, set(server.values)) == ("round", (1, 2, 3, 4), {"A", "B"})
    assert server.values["A"] == pytest.approx([0.91 * number / 4 for number in (1, 2, 3, 4)])
    assert (by_time.unit, by_time.points) == ("second", (4, 10, 20, 30, 40))
    assert by_time.values["A"][0] is None, "no round has ended after 4 seconds"
    assert by_time.values["A"][1:] == pytest.approx(server.values["A"])
    assert list(networks.values.values()) == [pytest.approx(server.values["A"])]
    assert public is None


# ---- the page


def test_the_page_has_the_numbers_of_paper_and_runs(docs):
    text = (docs / "papers.md").read_text()
    cells = ["FedTest", "table 1", "`small`", "12 of 12 runs finished", "4 rounds, 2 sites, 3 seeds, fp32"]
    assert f"| {' | '.join(cells)} | 6 | 0 | 0 | 3 | 2 | 1 | 0 | 4 |" in text
    assert "| A > B | final (medfl: on photographs) | +0.410 [" in text
    assert "| holds (seeds only) | seeds |" in text
    assert "| method | final: paper | on photographs: medfl (drawings) | elsewhere: paper |" in text
    assert (
        "3 hold (seeds only), 2 are reversed (seeds only) and 1 is open, after a correction for 6 comparisons" in text
    )
    assert "| A | 0.900 | 0.910 ± 0.010 | 0.321 |" in text
    assert "| E | 0.500 | – | – |" in text
    assert "C > D (+0.002 [" in text
    assert "## table 2, not run yet" in text
    assert "The data are secret." in text
    assert "A longer warm-up." in text
    assert faults(docs) == []


def test_a_missing_folder_of_raw_results_is_rendered_as_not_run_yet(docs):
    shutil.rmtree(docs / "raw")
    update_sums(docs, [])
    assert faults(docs) == ["papers.md"]
    with pytest.raises(SystemExit):
        main(["results", "render", "--docs", str(docs)])
    text = (docs / "papers.md").read_text()
    assert "| FedTest | table 1 | `small` | not run yet |" in text
    assert "| A | 0.900 | 0.321 |" in text, "the paper's numbers are left"
    assert faults(docs) == []


def test_methods_with_fewer_runs_and_without_rounds_are_shown_as_such(docs, results):
    folder = docs / "raw" / "small"
    (folder / "rounds.csv.gz").unlink()
    raw = RawResults.read(folder / RawResults.NAME)
    last = UnfinishedRun(data="demo", row="d", seed=2, fold=None, status="failed")
    changed_raw = raw.model_copy(update={"runs": raw.runs[:-1], "unfinished": (last,)})
    assert (raw.runs[-1].row, raw.runs[-1].seed) == ("d", 2)
    changed_raw.write(folder / RawResults.NAME)
    item = PAPERS["papers"][0]["items"][0]
    column = item["columns"][0] | {"measure": "shared_test"}
    result = item_result(results[0].paper, PaperItem.model_validate(item | {"columns": [column]}), read_results(folder))
    assert paper_state(result) == "11 of 12 runs finished"
    assert "| D | 0.600 | 0.695 ± 0.007 (2 runs) |" in paper_table(result)
    assert result.untested == 3, "two pairs of runs are too few for the three orders of D"
    assert [curve_points(result, curve) for curve in result.item.curves] == [None] * 4
    assert result.count("holds") == 2


def test_a_changed_digit_of_the_paper_fails(docs):
    path = docs / "templates" / "papers.yaml"
    path.write_text(path.read_text().replace("A: 0.9", "A: 0.91", 1))
    assert faults(docs) == ["papers.md"]


def test_a_changed_digit_of_an_early_round_fails(docs):
    path = docs / "raw" / "small" / "rounds.csv.gz"
    text = gzip.decompress(path.read_bytes()).decode()
    line = next(line for line in text.splitlines() if ",a," in line and ",1,global,global," in line)
    assert line.endswith(",0.225")
    path.write_bytes(gzip.compress(text.replace(line, line.replace("0.225", "0.325")).encode(), mtime=0))
    assert "raw/small/rounds.csv.gz" in faults(docs)
    update_sums(docs, [path])  # even with a new hash, the curve on the page is another one
    assert faults(docs) == ["papers.md"]


@pytest.mark.parametrize(
    "change",
    [
        {"reason": "", "raw": None},
        {"columns": [{"name": "x", "data": "demo"}]},
        {"columns": [{"name": "x", "data": "demo", "measure": "global_finale"}]},
        {"columns": [{"name": "x", "orders": [["A", "Z"]]}]},
        {"curves": [{"name": "x", "data": "demo", "kind": "server", "methods": ["Z"]}]},
    ],
)
def test_wrong_lists_of_papers_are_refused(tmp_path, change):
    (paper,) = PAPERS["papers"]
    path = tmp_path / "papers.yaml"
    path.write_text(yaml.safe_dump({"papers": [paper | {"items": [paper["items"][0] | change]}]}))
    with pytest.raises(SettingsError) as error:
        read_papers(path)
    assert error.value.fields["settings"]
