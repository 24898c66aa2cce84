"""``medfl compare``: what it prints and writes, and its messages."""

import pandas as pd
import pytest
from make_runs import SITES, make_run

from medfl.engine.runs.records import read_run
from medfl_report.compare import compare, to_markdown
from medfl_report.page import write_report


@pytest.fixture
def runs(tmp_path):
    """Two methods with two seeds each."""
    return [
        make_run(
            tmp_path / f"{method}-{seed}",
            method,
            seed,
            scores={
                "accuracy": dict.fromkeys(SITES, value + (0.02 if method == "local" else 0.04) * seed),
                "ece": dict.fromkeys(SITES, 0.1),
            },
            metrics=("accuracy", "ece"),
        )
        for method, value in (("local", 0.6), ("fedavg", 0.7))
        for seed in (0, 1)
    ]


def test_the_table_is_printed(medfl_command, runs):
    code, out, err = medfl_command("compare", *runs)
    assert (code, err) == (0, "")
    assert out == to_markdown(compare([read_run(run) for run in runs], ["accuracy"]))
    assert "| fedavg | 0, 1 | 2 finished | 3 | 0.720 ± 0.028 | 0.720 ± 0.028 | +0.110 [-0.043, +0.263] |" in out
    assert "| 0.2406 | too few runs |" in out


def test_metrics_and_baseline(medfl_command, runs):
    code, out, _ = medfl_command("compare", *runs, "--metric", "ece", "--metric", "accuracy", "--baseline", "fedavg")
    assert code == 0
    assert out.index("### ece (lower is better)") < out.index("### accuracy (larger is better)")
    assert "-0.110 [-0.263, +0.043] | 0.2406 | too few runs |" in out


def test_files_are_written(medfl_command, runs, tmp_path):
    code, out, _ = medfl_command("compare", *runs, "--out", tmp_path / "new" / "folder")
    assert code == 0
    assert out.split() == [str(tmp_path / "new" / "folder" / name) for name in ("compare.md", "compare.csv")]
    table = compare([read_run(run) for run in runs])
    assert (tmp_path / "new" / "folder" / "compare.md").read_text() == to_markdown(table)
    written = pd.read_csv(tmp_path / "new" / "folder" / "compare.csv", dtype={"rounds": str})
    pd.testing.assert_frame_equal(written, table)


def test_mistakes_are_explained(medfl_command, runs, tmp_path):
    def error(*arguments):
        code, out, err = medfl_command("compare", *arguments)
        assert (code, out) == (2, "")
        return err

    assert f"error: expected a run folder at '{tmp_path}', there is no run.json in it." in error(runs[0], tmp_path)
    assert "'accurcy' on the split 'test'. Did you mean 'accuracy'? Known: accuracy, ece." in error(
        *runs, "--metric", "accurcy"
    )
    assert "No run has the metric 'f1' on the split 'test'. Known: accuracy, ece." in error(*runs, "--metric", "f1")
    assert "Unknown baseline 'locla'. Did you mean 'local'?" in error(*runs, "--baseline", "locla")
    assert "No run has scores on the split 'val'. Known: test." in error(*runs, "--split", "val")
    assert "Missing argument 'RUN'" in error()
    young = make_run(tmp_path / "young", status="running")
    assert "None of these runs has scores" in error(young)


def test_logs_beside_run_folders_are_left_out(medfl_command, runs, tmp_path):
    """Those that a study writes; ``seed-*`` of a shell names them, too."""
    logs = [tmp_path / name for name in ("local-0.log", "local-0-membership.log")]
    for log in logs:
        log.write_text("round 1 of 3")
    for command in ("compare", "status", "report"):
        assert medfl_command(command, *logs, *runs)[0] == 0, command
    other = tmp_path / "notes.log"
    other.write_text("not of a run")
    code, _, err = medfl_command("report", *runs, other)
    assert code == 2
    assert "expected a run folder at" in err
    assert medfl_command("report", *logs)[0] == 2, "no run is left"


def test_folders_may_be_text(runs, tmp_path):
    text = [str(run) for run in runs]
    assert compare([read_run(run) for run in text]).equals(compare([read_run(run) for run in runs]))
    written = write_report(text, out=str(tmp_path / "page.html"))
    assert written == tmp_path / "page.html"
    assert written.read_text().startswith("<!doctype html>")
