"""Test the saving by quantisation: a run records the bytes without it, and the page shows the share."""

from __future__ import annotations

import pytest
import torch
from make_runs import SITES, make_run
from read_page import Page

from medfl.engine.filters import Filters, decode, unquantised_bytes
from medfl.engine.runs.records import read_metrics, read_run
from medfl.plugins import load_plugins
from medfl.settings import Compression, Settings
from medfl.testing.cohort import Case, make_task
from medfl.utils.wire import payload_bytes
from medfl_report.page import write_report
from medfl_report.sections.run_tables import savings

pytestmark = pytest.mark.usefixtures("undrawn")


@pytest.mark.parametrize("bits", [4, 8, 16])
def test_plain_bytes_are_those_of_what_is_decoded(bits):
    update = {
        "u/odd": torch.randn(7, 3),
        "u/double": torch.randn(5, dtype=torch.float64),
        "u/half": torch.randn(6).half(),
        "u/batches": torch.tensor(3),
        "u/none": torch.empty(0),
    }
    filters = Filters({"u/": "update"}, {}, Settings(rounds=1, compression=Compression(bits=bits)), 1)
    sent, meta = filters.outgoing(update, {}, site="a", stream_factory=lambda payload: pytest.fail("no noise"))
    assert unquantised_bytes(sent, meta) == payload_bytes(decode(sent, meta)[0]) == payload_bytes(update)


def test_a_run_notes_down_what_it_would_have_sent(tmp_path):
    case = Case(load_plugins(), "fedavg", {}, {"norm_sync": "params"})
    for name, settings in (("exact", {}), ("coarse", {"compression": {"bits": 8}})):
        case.run(tmp_path / name, rounds=1, task=make_task("plain"), **settings)
    exact, coarse = (read_metrics(tmp_path / name / "metrics.csv") for name in ("exact", "coarse"))
    sent = exact[exact["metric"] == "bytes_up"].set_index("site")["value"]
    noted = coarse[coarse["metric"] == "bytes_up_plain"].set_index("site")["value"]
    assert sent.to_dict() == noted.to_dict()
    assert sent.sum() > 0
    assert "bytes_up_plain" not in set(exact["metric"])


def savings_of(folder, **changes):
    options = {"settings": {"compression": {"bits": 8}}, "state": False, "bundles": False} | changes
    return savings([("fedavg", read_run(make_run(folder, **options)))])


def test_the_share_is_that_of_all_sites_in_a_round(tmp_path):
    (saving,) = savings_of(tmp_path / "run", plain=16000.0)
    assert (saving.bits, saving.sent, saving.plain, saving.share) == (
        8,
        4000.0 * len(SITES),
        16000.0 * len(SITES),
        0.75,
    )


def test_a_run_that_did_not_note_it_down_has_no_share(tmp_path):
    (saving,) = savings_of(tmp_path / "run")
    assert (saving.plain, saving.share) == (None, None)


def test_a_run_that_noted_it_down_for_some_rounds_has_no_share(tmp_path):
    run = make_run(tmp_path / "run", settings={"compression": {"bits": 8}}, plain=16000.0)
    lines = (run / "metrics.csv").read_text().splitlines(keepends=True)
    kept = [line for line in lines if not (line.startswith("1,site-1,") and "_plain" in line)]
    (run / "metrics.csv").write_text("".join(kept))
    (saving,) = savings([("fedavg", read_run(run))])
    assert saving.share is None


def test_the_page_says_the_share(tmp_path):
    options = {"settings": {"compression": {"bits": 8}}, "state": False, "bundles": False}
    runs = [make_run(tmp_path / name, name, **options, plain=16000.0) for name in ("fedavg", "fedprox")]
    (runs[1] / "metrics.csv").write_text((runs[1] / "metrics.csv").read_text().replace("_plain", "_other"))
    rows = Page(write_report(runs).read_text()).tables["Savings by quantisation"][1:]
    assert rows[0] == ["fedavg", "8", "12.0 kB", "48.0 kB", "75.0 %"]
    assert rows[1] == ["fedprox", "8", "12.0 kB", "not recorded", "–"]


def test_runs_without_quantisation_save_nothing(tmp_path):
    assert savings_of(tmp_path / "run", settings={}) == []
