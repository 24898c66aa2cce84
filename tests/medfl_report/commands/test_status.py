"""The command ``medfl status``: its output, and that it changes no file."""

import re
import subprocess
import sys

import pytest
from make_runs import make_run
from refusals import refused
from run_events import add, commit, end, missing, start, work, write
from run_records import rewrite

from medfl.cli.clean import clean
from medfl.engine.store import lock_for_writing
from medfl.errors import StoreError
from medfl.records.run_file import RunFile
from medfl_report.commands.status import run_status_lines

STOPPED = "stopped: no process works on it; run the same command again to resume it"


def listing(folder):
    """Return the content and modification time of every file below a folder."""
    return {
        path.relative_to(folder): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_finished_run(medfl_command, tmp_path):
    run = make_run(tmp_path / "one", seed=4, scores={"accuracy": {"site-1": 0.5, "site-2": 0.6, "site-3": 0.7}})
    code, out, err = medfl_command("status", run)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == str(run)
    assert lines[1:6] == [
        "  method    fedavg, seed 4",
        "  status    finished",
        "  rounds    3 of 3",
        "  score     accuracy, global model, test images: 0.600 after round 3 (mean of 3, from 0.500 to 0.700)",
        "  time      about 6.0 s a round, 24.0 s since the start",
    ]
    assert re.fullmatch(r"  disk      [\d.]+ kB, of which state [\d.]+ kB", lines[6])
    assert lines[7] == "  bundles   3 of 3 sites, and global"


def test_several_runs_stand_one_after_the_other(medfl_command, tmp_path):
    runs = [make_run(tmp_path / name, name) for name in ("fedavg", "local")]
    out = medfl_command("status", *runs)[1]
    assert [line for line in out.splitlines() if not line.startswith(" ")] == [str(run) for run in runs]


def test_a_run_that_was_stopped(tmp_path):
    facts = run_status_lines(make_run(tmp_path / "one", rounds=10, done=4, status="running"))
    assert facts["status"] == STOPPED
    assert facts["rounds"] == "4 of 10"
    assert facts["time"] == "about 6.0 s a round, 24.0 s since the start; about 36.0 s left"
    assert facts["bundles"] == "none; they are written at the end"


def test_a_run_that_is_being_written(tmp_path):
    run = make_run(tmp_path / "one", rounds=10, done=4, status="running")
    with lock_for_writing(run):
        assert run_status_lines(run)["status"] == "running, round 5 of 10"
    assert run_status_lines(run)["status"] == STOPPED


def test_a_run_that_is_being_written_says_who_is_at_work_and_who_is_missing(tmp_path):
    run = make_run(tmp_path / "one", rounds=10, done=4, status="running")
    write(run, [start(0), work(1, "site-1", "site-2"), missing(2, "site-3", "no answer")])
    with lock_for_writing(run):
        facts = run_status_lines(run)
    assert facts["sites"] == "2 of 3 at work; site-3 unavailable: no answer"
    assert "sites" not in run_status_lines(run), "nobody is at work in a run that was stopped"


def test_a_run_that_ended_on_a_part_of_its_sites_says_so(tmp_path):
    run = write(make_run(tmp_path / "one"), [start(0), commit(6, 1), end(7, unavailable=["site-2"])])
    assert run_status_lines(run)["status"] == "finished on 2 of 3 sites"


def test_a_finished_run_that_is_continued_counts_by_its_commits(tmp_path):
    run = make_run(tmp_path / "one", rounds=3)
    rewrite(RunFile, run, rounds=9)
    add(run, start(100, rounds=9))
    with lock_for_writing(run):
        facts = run_status_lines(run)
    assert (facts["status"], facts["rounds"]) == ("running, round 4 of 9", "3 of 9")
    assert facts["time"] == "about 6.0 s a round, 94.0 s since the start; about 36.0 s left"


def test_a_run_that_diverged(tmp_path):
    run = make_run(tmp_path / "one", rounds=10, done=4, status="diverged", reason="Tensor 'a' is not finite.")
    facts = run_status_lines(run)
    assert facts["status"] == "diverged: Tensor 'a' is not finite. Run the same command again to repeat that round."
    assert (facts["rounds"], facts["time"]) == ("4 of 10", "about 6.0 s a round, 30.0 s since the start")


def test_a_run_that_has_just_begun(tmp_path):
    run = make_run(tmp_path / "one", done=0, status="running", state=False)
    facts = run_status_lines(run)
    assert (facts["rounds"], facts["score"], facts["time"]) == ("0 of 3", "none yet", "0.0 s since the start")


def test_looking_needs_neither_torch_nor_tables(tmp_path):
    """Importing them would take longer than the rest of the command."""
    run = make_run(tmp_path / "one")
    code = (
        "import sys; from pathlib import Path; from medfl_report.commands.status import run_status_lines; "
        "assert run_status_lines(Path(sys.argv[1]))['rounds'] == '3 of 3'; "
        "print(sorted({'torch', 'pandas', 'numpy', 'monai'} & {*sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(run)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("options", [{}, {"status": "running", "done": 1}], ids=["finished", "stopped"])
def test_looking_changes_nothing(tmp_path, options):
    run = make_run(tmp_path / "one", **options)
    before = listing(run)
    run_status_lines(run)
    assert listing(run) == before


def test_damaged_facts_are_named(tmp_path):
    run = make_run(tmp_path / "one", status="running", done=1)
    (run / "run.json").write_text("{")
    with refused(StoreError, "damaged_file", path=str(run / "run.json")):
        run_status_lines(run)


def test_a_cleaned_run(tmp_path):
    run = make_run(tmp_path / "one")
    clean(run)
    assert run_status_lines(run)["status"] == "finished; cleaned, so it can't be resumed"


def test_a_folder_without_a_run_is_an_error(medfl_command, tmp_path):
    run = make_run(tmp_path / "one")
    code, out, err = medfl_command("status", run, tmp_path)
    assert (code, out) == (2, "")
    assert f"error: expected a run folder at '{tmp_path}', there is no run.json in it. Its runs are one" in err
