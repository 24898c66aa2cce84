"""Test ingestion: parallel, resumable, with unreadable files excluded and reported."""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from refusals import refused

from medfl.data.ingest.pipeline import ingest, work_folder, write_quarantine
from medfl.data.ingest.workers import CRASH_REASON, LoadedItem
from medfl.errors import DataError, SettingsError
from medfl.utils.locks import LOCK_FILE, hold_lock
from medfl.utils.processes import core_count
from medfl.utils.text import describe_counts


@dataclass(frozen=True)
class Item:
    path: Path
    add: int = 0


def load(folder: Path, item: Item) -> LoadedItem:
    """Return a row with the number in the file, and record each call in a file."""
    with (folder / "calls").open("a") as file:
        file.write(f"{item.path.name}\n")
    text = item.path.read_text()
    if text == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    if text == "bug":
        raise KeyError("a bug")
    if not text.isdigit():
        raise DataError("bad_item", f"expected a number, got {text}")
    return LoadedItem(np.full((2, 3), int(text) + item.add, np.uint16), {"odd": True} if int(text) % 2 else {})


def stuck(folder: Path, item: Item) -> LoadedItem:
    """Load like `load`, but take an hour from the seventh item on."""
    if int(item.path.name[:2]) > 5:
        time.sleep(3600)
    return load(folder, item)


@pytest.fixture
def items(tmp_path):
    (tmp_path / "in").mkdir()
    made = [Item(tmp_path / "in" / f"{number:02d}-Secret-Sally") for number in range(9)]
    for number, item in enumerate(made):
        item.path.write_text(str(10 + number))
    return made


def run(tmp_path, items, *, workers=1, recipe=None, how=load, **more):
    return ingest(
        items,
        functools.partial(how, tmp_path),
        lambda item: [item.path],
        tmp_path / "images.npy",
        (2, 3),
        np.uint16,
        work=work_folder(tmp_path / "P"),
        recipe=recipe or {"size": 3},
        workers=workers,
        **more,
    )


def calls(tmp_path) -> list[str]:
    marks = tmp_path / "calls"
    names = marks.read_text().split() if marks.exists() else []
    marks.unlink(missing_ok=True)
    return sorted(name[:2] for name in names)


@pytest.mark.parametrize("workers", [1, 2])
def test_each_item_becomes_a_row_and_bad_ones_are_left_out(tmp_path, items, workers):
    items[3].path.write_text("no")
    items[7].path.write_text("nor this")
    outcome = run(tmp_path, items, workers=workers)
    assert outcome.kept == [0, 1, 2, 4, 5, 6, 8]
    assert outcome.failed == {3: "expected a number, got no", 7: "expected a number, got nor this"}
    assert outcome.facts == {place: {"odd": True} if place % 2 else {} for place in outcome.kept}
    images = np.load(tmp_path / "images.npy")
    assert images.dtype == np.uint16
    np.testing.assert_array_equal(images, np.array(outcome.kept)[:, None, None] + np.full((2, 3), 10))
    assert calls(tmp_path) == [f"{number:02d}" for number in range(9)]
    assert not work_folder(tmp_path / "P").exists()


def test_a_decoder_that_ends_its_process_costs_one_item_only(tmp_path, items):
    items[1].path.write_text("crash")
    outcome = run(tmp_path, items, workers=2)
    assert outcome.failed == {1: CRASH_REASON}
    np.testing.assert_array_equal(np.load(tmp_path / "images.npy")[:, 0, 0], [10, 12, 13, 14, 15, 16, 17, 18])


def test_a_bug_is_no_bad_file(tmp_path, items):
    items[8].path.write_text("bug")
    with pytest.raises(KeyError, match="a bug"):
        run(tmp_path, items)
    assert calls(tmp_path) == [f"{number:02d}" for number in range(9)]
    items[8].path.write_text("18")
    outcome = run(tmp_path, items)
    assert calls(tmp_path) == ["08"], "the others were done"
    assert outcome.kept == list(range(9))
    np.testing.assert_array_equal(np.load(tmp_path / "images.npy")[:, 0, 0], np.arange(10, 19))


def interrupt(tmp_path, items):
    """Leave an interrupted ingestion behind, with eight of nine rows finished."""
    whole = items[8].path.read_text()
    items[8].path.write_text("bug")
    with pytest.raises(KeyError):
        run(tmp_path, items)
    items[8].path.write_text(whole)
    calls(tmp_path)


def test_what_changed_meanwhile_is_read_again(tmp_path, items):
    interrupt(tmp_path, items)
    items[2].path.write_text("777")
    items[4] = Item(items[4].path, add=100)
    lines: list[str] = []
    run(tmp_path, items, say=lines.append)
    assert lines[0].startswith("note: needs 108 bytes on the disk of --out, which has ")
    assert lines[1:] == ["note: an earlier call was interrupted: 6 of 9 images are done, the rest follows"]
    assert calls(tmp_path) == ["02", "04", "08"]
    np.testing.assert_array_equal(np.load(tmp_path / "images.npy")[:, 0, 0], [10, 11, 777, 13, 114, 15, 16, 17, 18])


@pytest.mark.parametrize("change", ["recipe", "items", "damaged journal", "no array", "a cut array"])
def test_what_no_longer_fits_is_read_again(tmp_path, items, change):
    interrupt(tmp_path, items)
    work = work_folder(tmp_path / "P")
    if change == "items":
        items.pop()
    elif change == "damaged journal":
        (work / "journal.jsonl").write_text("{")
    elif change == "no array":
        (work / "images.npy").unlink()
    elif change == "a cut array":
        os.truncate(work / "images.npy", 150)
    run(tmp_path, items, recipe={"size": 4} if change == "recipe" else None)
    assert calls(tmp_path) == [f"{number:02d}" for number in range(len(items))]


def test_a_journal_whose_last_line_was_cut_is_believed_up_to_it(tmp_path, items):
    interrupt(tmp_path, items)
    journal = work_folder(tmp_path / "P") / "journal.jsonl"
    journal.write_text(journal.read_text()[:-9])
    items[8].path.write_text("bug")
    with pytest.raises(KeyError):
        run(tmp_path, items)
    assert calls(tmp_path) == ["07", "08"]
    items[8].path.write_text("18")
    run(tmp_path, items)
    assert calls(tmp_path) == ["08"], "what was added after the cut line counts, too"


def test_a_full_disk_ends_it_with_a_reason_and_the_same_call_continues(tmp_path, items, monkeypatch):
    write, written = os.pwrite, []

    def full(*rest):
        if len(written) == 4:
            raise OSError(errno.ENOSPC, "No space left on device")
        written.append(rest)
        return write(*rest)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with refused(DataError, "unwritable_file", reason="No space left on device"):
            run(tmp_path, items)
    calls(tmp_path)
    run(tmp_path, items)
    assert calls(tmp_path) == ["04", "05", "06", "07", "08"]
    np.testing.assert_array_equal(np.load(tmp_path / "images.npy")[:, 0, 0], np.arange(10, 19))


def children(number: int) -> list[int]:
    """Return the child processes of a process, on Linux; none on other systems."""
    path = Path(f"/proc/{number}/task/{number}/children")
    return [int(child) for child in path.read_text().split()] if path.exists() else []


def running(number: int) -> bool:
    """Return True if a process exists and has not ended; a dead process may still wait for its removal."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def test_killed_and_continued(tmp_path, items):
    """The main process is killed; its workers end with it, and the same call resumes."""
    code = (
        "from pathlib import Path; import test_ingest as t\n"
        "if __name__ == '__main__':\n"
        "    import medfl.data.ingest.checkpoint as j; j.FLUSH_SECONDS = 0\n"
        f"    top = Path({str(tmp_path)!r})\n"
        "    t.run(top, [t.Item(path) for path in sorted((top / 'in').iterdir())], workers=2, how=t.stuck)\n"
    )
    script = tmp_path / "script.py"
    script.write_text(code)
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    process = subprocess.Popen([sys.executable, script], env=os.environ | {"PYTHONPATH": paths})
    journal = work_folder(tmp_path / "P") / "journal.jsonl"
    while not (journal.exists() and len(journal.read_text().splitlines()) > 3):
        assert process.poll() is None, "it ended too early"
        time.sleep(0.005)
    workers = children(process.pid)
    process.kill()
    process.wait()
    while any(map(running, workers)):  # workers end with the process that started them
        time.sleep(0.01)
    done = len(journal.read_text().splitlines()) - 1
    assert 2 < done < 7
    calls(tmp_path)
    run(tmp_path, items)
    assert len(calls(tmp_path)) == 9 - done
    np.testing.assert_array_equal(np.load(tmp_path / "images.npy")[:, 0, 0], np.arange(10, 19))


def test_the_journal_holds_no_names(tmp_path, items):
    interrupt(tmp_path, items)
    content = (work_folder(tmp_path / "P") / "journal.jsonl").read_text()
    assert len(content.splitlines()) == 9
    assert "sally" not in content.lower()
    assert str(tmp_path) not in content
    assert set(json.loads(content.splitlines()[1])) == {"row", "stamp", "facts"}


def test_two_at_a_time_are_refused(tmp_path, items):
    work = work_folder(tmp_path / "P")
    work.mkdir()
    with hold_lock(work / LOCK_FILE), refused(DataError, "folder_in_use", path=str(work)):
        run(tmp_path, items)


def test_nothing_readable_is_an_empty_array_with_its_reasons(tmp_path, items):
    for item in items:
        item.path.write_text("no")
    items[0].path.write_text("nor")
    outcome = run(tmp_path, items)
    assert (outcome.kept, outcome.facts, len(outcome.failed)) == ([], {}, 9)
    assert outcome.failed[0] == "expected a number, got nor"
    assert np.load(tmp_path / "images.npy").shape == (0, 2, 3)
    assert not work_folder(tmp_path / "P").exists()


def test_what_the_options_may_be(tmp_path, items):
    with refused(SettingsError, "setting_out_of_range", setting="workers", minimum=1, found=0):
        run(tmp_path, items, workers=0)
    with pytest.raises(ValueError, match=r"expected an image of shape \(2, 3\)"):
        run(tmp_path, items, how=wrong_shape)
    assert 1 <= core_count() <= os.cpu_count()


def wrong_shape(folder: Path, item: Item) -> LoadedItem:
    return LoadedItem(np.zeros((3, 3)))


def test_a_script_without_its_guard_is_refused(tmp_path, items):
    script = tmp_path / "script.py"
    script.write_text(
        "from pathlib import Path; import test_ingest as t\n"
        f"top = Path({str(tmp_path)!r})\n"
        "t.run(top, [t.Item(path) for path in sorted((top / 'in').iterdir())], workers=2)\n"
    )
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    done = subprocess.run(
        [sys.executable, script], env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "could not start worker processes" in done.stderr


def test_the_quarantine_is_a_table_and_reasons_are_counted(tmp_path):
    write_quarantine(tmp_path / "q.csv", ("image", "reason"), [("a", "no, it is")])
    assert (tmp_path / "q.csv").read_text().splitlines() == ["image,reason", 'a,"no, it is"']
    assert describe_counts({1: "b.", 2: "a.", 5: "b."}) == "2 x b; 1 x a"
