"""``medfl clean``: output, files that stay, and refusals."""

import os
from pathlib import Path

import pytest
from make_runs import make_run
from refusals import refused

from medfl.cli import clean as clean_command
from medfl.engine.store import lock_for_writing
from medfl.errors import StoreError
from medfl.records.run_file import RunFile
from medfl.settings import Execution
from medfl.utils.locks import is_being_written

KEPT = {"run.json", "metrics.csv", "progress.jsonl", "summary.json", "sites", "global"}


def listing(folder):
    """Return the content and modification time of each file below a folder."""
    return {
        path.relative_to(folder): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


def names(folder):
    return {path.name for path in folder.iterdir() if path.name != ".lock"}


def test_looking_does_not_keep_a_writer_out(tmp_path):
    with lock_for_writing(tmp_path):
        assert is_being_written(tmp_path)
    assert not is_being_written(tmp_path)
    with lock_for_writing(tmp_path):
        pass


def test_a_folder_without_a_run_is_an_error(medfl_command, tmp_path):
    run = make_run(tmp_path / "one")
    before = listing(run)
    nothing = tmp_path / "nothing"
    for folder, why in (
        (tmp_path, "there is no run.json in it. Its runs are one"),
        (nothing, "there is no such folder"),
    ):
        code, out, err = medfl_command("clean", run, folder)
        assert (code, out) == (2, "")
        assert f"error: expected a run folder at '{folder}', {why}" in err
    assert listing(run) == before
    assert not nothing.exists()


def test_the_state_of_a_finished_run_is_removed(medfl_command, tmp_path):
    run = make_run(tmp_path / "one")
    (run / "state" / "large").write_bytes(bytes(2_500_000))
    before = listing(run)
    code, out, err = medfl_command("clean", run)
    assert (code, out, err) == (0, f"{run}: 2.5 MB freed\n", "")
    assert names(run) == KEPT
    kept = {path: content for path, content in before.items() if path.parts[0] not in ("state", "run.json", ".lock")}
    assert kept.items() <= listing(run).items()
    record = RunFile.from_bytes(before[Path("run.json")][0], run / "run.json")
    assert RunFile.read(run / "run.json") == record.model_copy(update={"cleaned": True})
    assert medfl_command("clean", run)[1] == f"{run}: 0 bytes freed\n"


def test_a_kill_between_the_two_steps_of_cleaning_leaves_the_note(tmp_path, monkeypatch):
    run = make_run(tmp_path / "one")
    monkeypatch.setattr(clean_command, "_delete", lambda folder: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        clean_command.clean(run)
    assert RunFile.read(run / "run.json").cleaned


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"status": "running", "done": 1}, "is stopped, not finished"),
        ({"status": "diverged", "done": 1}, "is diverged, not finished"),
        ({"bundles": False}, "is finished, but the bundles of 3 sites are missing"),
    ],
)
def test_a_run_that_needs_its_state_is_left_alone(medfl_command, tmp_path, options, message):
    done, run = make_run(tmp_path / "done"), make_run(tmp_path / "one", **options)
    code, out, err = medfl_command("clean", done, run)
    assert (code, out) == (2, "")
    assert message in err
    assert "remove the whole run with --all" in err
    assert (run / "state").is_dir()
    assert (done / "state").is_dir()


@pytest.mark.parametrize("options", [[], ["--all", "--yes"]], ids=["clean", "all"])
def test_a_run_that_is_being_written_is_left_alone(medfl_command, tmp_path, options):
    run = make_run(tmp_path / "one")
    with lock_for_writing(run):
        code, _, err = medfl_command("clean", run, *options)
    assert code == 2
    assert "Wait until it ends, or stop it; nothing was removed." in err
    assert names(run) == KEPT | {"state"}


@pytest.mark.parametrize("act", [clean_command.clean, clean_command.remove])
def test_a_writer_that_comes_first_keeps_cleaning_out(tmp_path, monkeypatch, act):
    monkeypatch.setattr("medfl.engine.store.LOCK_SECONDS", 0.1)
    run = make_run(tmp_path / "one")
    with lock_for_writing(run), refused(StoreError, "folder_in_use", path=str(run)):
        act(run)
    assert names(run) == KEPT | {"state"}


@pytest.mark.parametrize("options", [[], ["--all", "--yes"]], ids=["clean", "all"])
def test_links_are_not_followed(medfl_command, tmp_path, options):
    run, link = make_run(tmp_path / "one"), tmp_path / "link"
    link.symlink_to(run)
    code, _, err = medfl_command("clean", link, *options)
    assert (code, f"'{link}' is a link." in err) == (2, True)
    moved = (run / "state").rename(tmp_path / "elsewhere")
    (run / "state").symlink_to(moved)
    code, _, err = medfl_command("clean", run, *options)
    assert (code, f"'{run / 'state'}' is a link." in err) == (2, True)
    assert list(moved.iterdir())


def test_everything_goes_with_all_and_yes(medfl_command, tmp_path):
    runs = [make_run(tmp_path / "one"), make_run(tmp_path / "two", status="running", done=1)]
    code, out, _ = medfl_command("clean", *runs, runs[0], "--all", "--yes")
    assert code == 0
    assert [line.split(": ")[0] for line in out.splitlines()] == [str(run) for run in runs]
    assert not list(tmp_path.iterdir())


def test_what_tracking_studies_and_attacks_leave_goes_with_all(medfl_command, tmp_path):
    run = make_run(tmp_path / "one")
    for name in ("mlflow.json", "mlruns.db", "mlruns.db-journal", "config_20260102_030405.json", "study.json"):
        (run / name).write_text("{}")
    (run / "findings.safetensors").write_bytes(b"")
    (run / "mlruns" / "1").mkdir(parents=True)
    (run / "attacks").mkdir()
    assert medfl_command("clean", run, "--all", "--yes")[0] == 0
    assert not run.exists()


@pytest.mark.parametrize(("answer", "there"), [("y", False), ("n", True)])
def test_all_asks_first(medfl_command, tmp_path, monkeypatch, answer, there):
    run, questions = make_run(tmp_path / "one"), []
    monkeypatch.setattr("typer.confirm", lambda text: questions.append(text) or answer == "y")
    code, out, _ = medfl_command("clean", run, "--all")
    assert (code, run.exists()) == (0, there)
    assert questions[0].startswith(f"Remove these runs with their scores and models?\n  {run} (")
    assert ("nothing was removed" in out) == there


def test_without_an_answer_nothing_is_removed(medfl_command, tmp_path, monkeypatch):
    run = make_run(tmp_path / "one")
    monkeypatch.setattr("sys.stdin", open("/dev/null"))  # noqa: SIM115
    code, _, _ = medfl_command("clean", run, "--all")
    assert code != 0
    assert names(run) == KEPT | {"state"}


def test_what_no_run_writes_is_not_removed(medfl_command, tmp_path):
    done, run = make_run(tmp_path / "done"), make_run(tmp_path / "one")
    (run / "thesis.docx").write_text("years of work")
    (run / "notes").mkdir()
    (run / ".run.json.123.tmp").write_text("left over by a kill")
    code, out, err = medfl_command("clean", done, run, "--all", "--yes")
    assert (code, out) == (2, "")
    assert (
        f"'{run}' contains files that no run writes: notes, thesis.docx. Move them first; nothing was removed." in err
    )
    assert names(run) >= KEPT | {"state", "notes", "thesis.docx"}
    assert names(done) == KEPT | {"state"}


def put_features(cache, *names):
    cache.mkdir(parents=True)
    for name in names:
        (cache / name).write_bytes(bytes(1000))
    return cache


FEATURES, VIEWS = f"features-{'a' * 64}.safetensors", f"views-{'b' * 64}.safetensors"


def test_features_of_the_data_are_deleted_and_other_files_stay(medfl_command, tmp_path):
    runs = [make_run(tmp_path / "runs" / name, data_folder="../../data") for name in ("one", "two")]
    first = put_features(tmp_path / "data" / "site-1" / ".medfl_cache", FEATURES, VIEWS)
    young, old = (f".{FEATURES}.{number}.tmp" for number in (12, 13))
    second = put_features(tmp_path / "data" / "site-2" / ".medfl_cache", FEATURES, young, old, "features-notes.txt")
    os.utime(second / old, (0, 0))
    image = tmp_path / "data" / "site-1" / FEATURES
    image.write_bytes(b"no cache")
    assert medfl_command("clean", runs[0])[1].count("\n") == 1
    assert (len(list(first.iterdir())), len(list(second.iterdir()))) == (2, 4)
    code, out, err = medfl_command("clean", *runs, "--features")
    assert (code, err) == (0, "")
    assert out.splitlines()[2:] == [
        f"{first}: 2 files of features deleted, 2.0 kB freed",
        f"{second}: 2 files of features deleted, 2.0 kB freed",
    ]
    assert (first.exists(), names(second), image.exists()) == (False, {young, "features-notes.txt"}, True)
    assert medfl_command("clean", *runs, "--features")[1].splitlines()[2:] == [
        "there are no cached features of the runs' data"
    ]


def with_changes(run, **changes):
    record = RunFile.read(run / RunFile.NAME)
    record.model_copy(update=changes).write(run / RunFile.NAME)
    return run


def test_features_in_a_folder_of_their_own_are_deleted(tmp_path):
    cache = put_features(tmp_path / "cache" / "site-1", FEATURES)
    run = make_run(tmp_path / "one", data_folder="../data")
    with_changes(run, execution=Execution(cache_dir=tmp_path / "cache"))
    assert clean_command.feature_folders(run) == [cache]
    assert clean_command.delete_features(cache) == (1, 1000)


def test_features_that_are_elsewhere_are_refused_before_anything_is_removed(medfl_command, tmp_path):
    moved = make_run(tmp_path / "one", data_folder="../gone")
    remote = with_changes(make_run(tmp_path / "two"), backend="flare")
    with refused(StoreError, "missing_folder", path=str(tmp_path / "gone")):
        clean_command.feature_folders(moved)
    with refused(StoreError, "features_at_sites", path=str(remote)):
        clean_command.feature_folders(remote)
    assert medfl_command("clean", remote, "--features")[0] == 2
    assert names(remote) == KEPT | {"state"}
    assert clean_command.feature_folders(make_run(tmp_path / "three")) == []  # data in memory
