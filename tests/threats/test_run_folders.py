"""A run folder from elsewhere: looking at it runs nothing, writes nothing outside, and steers no terminal."""

from __future__ import annotations

from pathlib import Path

import pytest
from make_runs import make_run
from refusals import refused
from run_records import change_json

from medfl.engine.runs.records import read_run
from medfl.errors import StoreError
from medfl.utils.files import write_atomic
from medfl.utils.formats import csv_cell


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "run")


@pytest.mark.parametrize("name", ["../../outside", "..", ".", "", "/etc", "a\\b", "a\0b", 7])
def test_a_site_whose_name_is_no_folders_is_refused(run: Path, tmp_path: Path, name: object) -> None:
    (tmp_path / "outside").mkdir()
    change_json(run / "run.json", lambda record: record["identity"].update(sites=[name]))
    with refused(StoreError, "damaged_file", path=str(run / "run.json")):
        read_run(run)
    assert list((tmp_path / "outside").iterdir()) == []


def test_a_file_is_not_written_through_a_link_that_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.getpid", lambda: 7)
    mine = tmp_path / "mine"
    mine.write_text("mine")
    (tmp_path / ".README.md.7.tmp").symlink_to(mine)
    write_atomic(tmp_path / "README.md", b"card")
    assert mine.read_text() == "mine"
    assert (tmp_path / "README.md").read_bytes() == b"card"
    assert not (tmp_path / "README.md").is_symlink()


@pytest.mark.parametrize("content", ["[" * 100_000, "[]", "7", '{"identity": 7}', "{"])
def test_a_damaged_record_is_one_line(run: Path, content: str) -> None:
    (run / "run.json").write_text(content)
    with pytest.raises(StoreError) as caught:
        read_run(run)
    assert len(str(caught.value)) < 1000


# ---- tables that people open


@pytest.mark.parametrize("text", ["=1+1", "+cmd|' /C calc'!A0", "-2+3+cmd|' /C calc'!A0", "@SUM(A1)", "\t=1", "\r=1"])
def test_no_cell_is_a_formula(text: str) -> None:
    assert csv_cell(text) == f"'{text}"


@pytest.mark.parametrize("text", ["", "fedavg", "-0.5", "+0.125", "-0.5 (-1 to 1) ± 2", "-1e-05", "-inf", "1=1"])
def test_a_number_and_a_plain_text_stay(text: str) -> None:
    assert csv_cell(text) == text
