"""A run folder from elsewhere: reports and cards run nothing, write nothing outside, and steer no terminal."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest
from make_runs import make_run
from refusals import refused
from run_records import change_json

from medfl.cli.main import main
from medfl.engine.runs.records import read_run
from medfl.errors import StoreError
from medfl.plugins import load_plugins
from medfl.utils.formats import csv_table
from medfl_report.cards.evidence import Evidence
from medfl_report.cards.verify import verify
from medfl_report.cards.write import write_cards
from medfl_report.compare import compare
from medfl_report.page import write_report

ESCAPE = "\x1b]0;owned\x07\x1b[2J"
CODE = "import pathlib\npathlib.Path(__file__).with_suffix('.ran').touch()\n"


def say(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """All that a command says."""
    with pytest.raises(SystemExit):
        main(words)
    captured = capsys.readouterr()
    return captured.out + captured.err


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "run")


def test_looking_at_a_run_evaluates_nothing_of_its_bundles(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plugin = run / "harmless.py"
    plugin.write_text(CODE)
    code = f"$__import__('pathlib').Path({str(tmp_path / 'evaluated')!r}).touch()"
    change_json(run / "run.json", lambda record: record["provenance"].update(plugins={"harmless": str(plugin)}))
    for home in (run / "global", *(run / "sites").iterdir()):
        for name in ("train.json", "inference.json", "metadata.json"):
            content = {"network_name": code, "network": {"_target_": code}, "site": code, "intended_use": code}
            (home / "configs" / name).write_text(json.dumps(content))
    for words in (["report"], ["card"], ["verify"], ["compare"], ["status"], ["monitor", "--once"]):
        say([*words, str(run)], capsys)
    assert (run / "report.html").is_file()
    assert (run / "global" / "README.md").is_file()
    assert not (tmp_path / "evaluated").exists()
    assert not plugin.with_suffix(".ran").exists()


@pytest.mark.parametrize("place", ["sites", "sites/site-1", "global"])
def test_a_card_is_not_written_through_a_link(run: Path, tmp_path: Path, place: str) -> None:
    outside = shutil.move(run / place, tmp_path / "outside")
    before = sorted(Path(outside).rglob("*"))
    (run / place).symlink_to(outside, target_is_directory=True)
    with refused(StoreError, "linked_folder", path=str(run / place)):
        write_cards(run, load_plugins())
    assert sorted(Path(outside).rglob("*")) == before


def test_evidence_names_no_folder_above(run: Path) -> None:
    write_cards(run, load_plugins())
    path = run / "global" / Evidence.NAME
    Evidence.read(path).model_copy(update={"predictions": {"..": "0" * 64}}).write(path)
    with refused(StoreError, "damaged_file", key="predictions....[key]"):
        Evidence.read(path)
    (result,) = [result for result in verify(run) if result.name == "global"]
    assert any(Evidence.NAME in problem for problem in result.problems)


def test_names_and_reasons_of_a_run_steer_no_terminal(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change_json(run / "run.json", lambda record: record["identity"].update(method=ESCAPE))
    change_json(run / "summary.json", lambda summary: summary.update(method=ESCAPE, reason=ESCAPE, status="incomplete"))
    write_cards(run, load_plugins())
    (run / "global" / f"x{ESCAPE}").write_text("")
    damaged = run.with_name(f"other{ESCAPE}")
    damaged.mkdir()
    shown = ""
    for words in (["status", run], ["verify", run], ["monitor", "--once", run.parent], ["status", damaged]):
        shown += say([str(word) for word in words], capsys)
    assert "owned" in shown
    assert "\x1b" not in shown
    assert "\x07" not in shown


def test_names_of_classes_and_methods_are_no_formulas_in_tables(tmp_path: Path) -> None:
    formula = '=HYPERLINK("http://evil.example")'
    runs = [make_run(tmp_path / name, name, classes=(formula, "b", "c")) for name in ("local", "=1+1")]
    write_report(runs, figures=tmp_path / "paper")
    cells = [
        cell
        for path in (tmp_path / "paper").glob("*.csv")
        for line in csv.reader(path.read_text().splitlines())
        for cell in line
    ]
    assert any("HYPERLINK" in cell for cell in cells)
    assert not [cell for cell in cells if cell[:1] in ("=", "@")]
    assert "\n=" not in csv_table(compare([read_run(run) for run in runs]))
    assert ",=" not in csv_table(compare([read_run(run) for run in runs]))
