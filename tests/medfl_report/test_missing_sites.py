"""A report names the sites that were missing when they were asked last."""

from __future__ import annotations

from pathlib import Path

from make_runs import make_run
from run_records import rewrite

from medfl.engine.runs.records import read_run
from medfl.records.summary import Summary
from medfl_report.groups import group_runs
from medfl_report.notices import make_notices
from medfl_report.page import write_report


def test_missing_sites_are_named_with_the_reason(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "one", "fedavg", 0)
    rewrite(Summary, folder, unavailable_reasons={"site-9": "did not answer in time"})
    texts = [notice.text for notice in make_notices(group_runs([read_run(folder)]))]
    assert any("site site-9 did not reply" in text and "did not answer in time" in text for text in texts)


def test_a_run_across_machines_has_a_report_without_what_stays_at_the_sites(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "one", "fedavg", 0, bundles=False, state=False)
    rewrite(Summary, folder, holdings=None)
    assert "fedavg" in write_report([folder]).read_text()
