"""Site participation: a matrix of sites and rounds of runs in which a site missed some."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pandas as pd
from make_runs import SITES, make_run
from run_records import rewrite, run_file, summary_of
from toys import builtin

from medfl.engine.attendance import MISSED, TOOK_PART
from medfl.engine.runs.records import RunRecord, read_run
from medfl.engine.runs.summary import describe_unavailable
from medfl.records.summary import Attendance, Summary
from medfl.testing.cohort import make_sites
from medfl_report.page import write_report
from medfl_report.sections.attendance import attendance_of


def with_attendance(folder: Path, away: list[str], missed: dict[str, list[list[int]]]) -> RunRecord:
    rewrite(Summary, folder, attendance={"sites": len(SITES), "unavailable": away, "missed_rounds": missed})
    return read_run(folder)


def test_a_site_took_part_where_it_spent_time_and_missed_where_the_journal_says_so(tmp_path: Path) -> None:
    run = with_attendance(make_run(tmp_path / "one", rounds=4), [SITES[1]], {SITES[1]: [[1, 1], [3, 4]]})
    elsewhere = (run.metrics["site"] != SITES[2]) | (run.metrics["round"] != 2)
    known = attendance_of(replace(run, metrics=run.metrics[elsewhere]))
    assert known[SITES[0]] == dict.fromkeys(range(1, 5), TOOK_PART)
    assert known[SITES[1]] == {1: MISSED, 2: TOOK_PART, 3: MISSED, 4: MISSED}
    assert known[SITES[2]] == {1: TOOK_PART, 3: TOOK_PART, 4: TOOK_PART}, "it was not asked in the second"


def test_the_report_has_the_matrix_and_says_on_how_many_sites_the_run_ended(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "one", rounds=4)
    assert "Site participation by round" not in write_report([folder]).read_text()
    with_attendance(folder, [SITES[1]], {SITES[1]: [[3, 4]]})
    page = write_report([folder]).read_text()
    assert "Site participation by round" in page
    assert f"fedavg finished on 2 of 3 sites: without {SITES[1]}." in page
    assert f"{SITES[1]} took part in rounds 1 to 2, missed rounds 3 to 4" in page
    rects = re.findall(r'<rect class="(\w+)" x="(\d+)" width="(\d+)"', page)
    assert rects == [("took", "0", "4"), ("took", "0", "2"), ("missed", "2", "2"), ("took", "0", "4")]
    assert "2 of 4" in page


def test_a_run_in_which_a_site_came_back_ended_on_all_and_has_the_matrix(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "one", rounds=4)
    with_attendance(folder, [], {SITES[1]: [[2, 2]]})
    page = write_report([folder]).read_text()
    assert "on all of its sites" in page
    assert "without" not in re.sub(r"<style>.*</style>", "", page, flags=re.DOTALL).split("<main>")[0]


def test_in_words() -> None:
    some, everyone = Attendance(sites=7, unavailable=("a", "b")), Attendance(sites=7)
    assert describe_unavailable(None) == ""
    assert describe_unavailable(summary_of(run_file(), attendance=some)) == " on 5 of 7 sites"
    assert describe_unavailable(summary_of(run_file(), status="diverged", attendance=some)) == ""
    assert describe_unavailable(summary_of(run_file(), attendance=everyone)) == ""


def test_a_real_run_knows_who_was_absent_also_when_it_is_resumed(tmp_path: Path) -> None:
    sites = make_sites({"site-1": 7, "site-2": 5})

    def unavailable(site: str, step: int) -> bool:
        return site == "site-2" and step in (2, 3)

    case = builtin("fedavg")
    case.run(tmp_path, sites=sites, rounds=2, unavailable=unavailable)
    summary = case.run(tmp_path, sites=sites, rounds=5, unavailable=unavailable).summary
    assert summary.attendance.sites == 2
    (span,) = summary.attendance.missed_rounds["site-2"]
    known = attendance_of(read_run(tmp_path))["site-2"]
    assert known == {round_: MISSED if span[0] <= round_ <= span[1] else TOOK_PART for round_ in range(1, 6)}
    losses = pd.read_csv(tmp_path / "metrics.csv").query("site == 'site-2' and metric == 'loss'")["round"]
    assert sorted(losses) == [round_ for round_, did in known.items() if did == TOOK_PART]
    assert summary.attendance.unavailable == ()
