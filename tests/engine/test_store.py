"""Test the files of a participant: atomic writes, checksums, pruning, waiting peer messages, and the lock."""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from refusals import refused

from medfl.contract import PeerMessage, State
from medfl.engine.store import DISCARDED, Inbox, Store, lock_for_writing
from medfl.errors import DamagedError, StoreError
from medfl.utils.files import write_atomic, write_json
from medfl.utils.wire import decode, encode, tensors_equal


def state(value: int, **blobs: str) -> State:
    return State({"w": torch.full((4, 5), float(value)), "n": torch.tensor(value)}, {"value": value}, dict(blobs))


def flip(path: Path, at: int = -3) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


# ---- writing


def test_a_file_is_flushed_then_renamed_then_its_folder_is_flushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = []
    fsync, replace = os.fsync, os.replace

    def logged_fsync(descriptor: int) -> None:
        done.append("flush " + os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    def logged_replace(source: Path, target: Path) -> None:
        assert source.read_bytes() == b"new", "renamed before it was written"
        done.append(f"rename to {target}")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", logged_fsync)
    monkeypatch.setattr(os, "replace", logged_replace)
    path = tmp_path / "deep" / "er" / "file"
    write_atomic(path, b"new")
    temporary = path.with_name(f".file.{os.getpid()}.tmp")
    assert done == [f"flush {temporary}", f"rename to {path}", f"flush {path.parent}"]
    assert [p.name for p in path.parent.iterdir()] == ["file"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_write_that_fails_leaves_what_was_there(call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_atomic(path, b"old")

    def fail(*args: object) -> None:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr(os, call, fail)
    with refused(StoreError, "unwritable_file", path=str(path), reason="Disk quota exceeded"):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_json_is_sorted(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"b": 1, "a": [2]})
    assert (tmp_path / "a.json").read_text() == '{\n  "a": [\n    2\n  ],\n  "b": 1\n}\n'


# ---- steps


def test_a_step_comes_back_with_the_same_bits(tmp_path: Path) -> None:
    store = Store(tmp_path / "a")
    assert store.latest() is None
    assert store.steps() == []
    saved = state(3, big="0" * 64)
    saved.tensors |= {"nan": torch.tensor([float("nan"), -0.0]), "view": torch.arange(12).reshape(3, 4).t()}
    store.save(7, saved, {"rows": [[1, "x"]]}, {"reply/u": torch.ones(2)})
    record = store.latest()
    assert record is not None
    assert (record.step, record.meta["rows"]) == (7, [[1, "x"]])
    restored = record.state()
    assert tensors_equal(restored.tensors, saved.tensors)
    assert (restored.meta, restored.blobs) == (saved.meta, saved.blobs)
    assert tensors_equal(store.read(7, "reply/"), {"u": torch.ones(2)})


def test_a_step_of_an_earlier_version_is_read_and_verified(tmp_path: Path) -> None:
    """Earlier versions wrote step files with a SHA-256. Their runs can be continued."""
    store = Store(tmp_path)
    store.save(1, state(1), {})
    store.save(2, state(2), {})
    store.path(2).write_bytes(encode(*decode(store.path(2).read_bytes()), "sha256"))
    assert store.latest().state().meta == {"value": 2}  # type: ignore[union-attr]
    flip(store.path(2))
    assert store.latest().step == 1  # type: ignore[union-attr]


def test_only_whole_step_files_count_as_steps(tmp_path: Path) -> None:
    store = Store(tmp_path / "site")
    assert store.steps() == []  # a site that never took part has no folder
    store.save(3, State(), {})
    for name in ("step-00000004.damaged", ".step-00000005.safetensors.1.tmp", "step-00000006.safetensors.old"):
        (store.folder / name).touch()
    assert store.steps() == [3]


def test_the_last_two_steps_are_kept(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for step in (0, 1, 4, 5, 9):
        store.save(step, state(step), {})
        assert store.latest().step == step  # type: ignore[union-attr]
    assert store.steps() == [5, 9]
    assert store.latest(before=9).state().meta == {"value": 5}  # type: ignore[union-attr]
    assert store.latest(before=5) is None
    assert store.read_state(before=9).meta == {"value": 5}
    assert store.read_state(before=5) == State()
    store.delete_step(9)
    assert store.steps() == [5]


def test_a_finished_run_keeps_the_newest_step_and_those_that_are_needed(tmp_path: Path) -> None:
    store = Store(tmp_path)
    kept, gone = store.put({"c": torch.ones(1)}), store.put({"c": torch.zeros(1)})
    sent = {"reply/u": torch.ones(2), "peer_message/0/u": torch.ones(2)}
    for step in (2, 5, 6, 9):
        blobs = {2: kept, 6: gone}.get(step)
        store.save(step, state(step, **({"big": blobs} if blobs else {})), {"rows": [step]}, sent, keep=(2, 4))
    Inbox(tmp_path).post(8, "other", PeerMessage("me", {}, {}))
    Inbox(tmp_path).post(9, "other", PeerMessage("me", {}, {}))
    for _ in range(2):  # again it finds nothing to do
        store.free_space(keep=(1, 4))
        assert store.steps() == [2, 9], "of step 4 the newest is step 2; of step 1 there is none"
        for step in (2, 9):
            record = store.load(step)
            assert tensors_equal(record.state().tensors, state(step).tensors)
            assert not [name for name in record.tensors if not name.startswith("state/")]
            assert (record.meta["rows"], record.meta[DISCARDED]) == ([step], True)
        assert tensors_equal(store.get(kept), {"c": torch.ones(1)})
        with refused(StoreError, "unreadable_file", path=str(tmp_path / "blobs" / f"{gone}.safetensors")):
            store.get(gone)
        assert [path.name[:8] for path in Inbox(tmp_path).folder.iterdir()] == ["00000009"]


def test_nothing_is_freed_if_the_newest_step_is_damaged(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for step in (1, 2):
        store.save(step, state(step), {}, {"reply/u": torch.ones(2)})
    store.path(2).write_bytes(b"cut short")
    store.free_space()
    assert store.steps() == [1, 2]
    assert "reply/u" in store.load(1).tensors
    Store(tmp_path / "empty").free_space()


def test_older_steps_stay_while_they_are_needed(tmp_path: Path) -> None:
    store = Store(tmp_path)
    digest = store.put({"c": torch.ones(1)})
    for step, keep in ((2, ()), (4, ()), (5, (3,)), (6, (3,)), (7, (3, 5)), (9, (1, 5))):
        store.save(step, state(step, **({"big": digest} if step == 5 else {})), {}, keep=keep)
    assert store.steps() == [5, 7, 9], "of step 3 the newest is step 2, needed until step 7; of step 1 there is none"
    assert store.read_state(before=7).meta == {"value": 5}
    assert tensors_equal(store.get(digest), {"c": torch.ones(1)})
    store.save(10, state(10), {})
    assert store.steps() == [9, 10]
    with refused(StoreError, "unreadable_file", path=str(tmp_path / "blobs" / f"{digest}.safetensors")):
        store.get(digest)


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (flip, "wrong_checksum"),
        (cut, "invalid_message"),
        (lambda path: flip(path, 3), "invalid_message"),
        (lambda path: path.write_bytes(b""), "invalid_message"),
    ],
)
def test_a_damaged_step_is_passed_over_with_a_warning(
    damage: Callable[[Path], None], code: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store(tmp_path)
    for step in (1, 2):
        store.save(step, state(step), {})
    damage(store.path(2))
    with refused(DamagedError, code):
        store.load(2)
    with caplog.at_level(logging.WARNING):
        record = store.latest()
    assert record is not None
    assert (record.step, record.state().meta) == (1, {"value": 1})
    assert str(store.path(2)) in caplog.text
    assert "The step before it is used" in caplog.text
    assert store.set_damaged_aside() == 1
    assert store.steps() == [1], "set aside"
    assert store.read_state(before=3).meta == {"value": 1}
    assert (tmp_path / "step-00000002.damaged").exists()
    damage(store.path(1))
    assert store.latest() is None
    assert store.set_damaged_aside() == 0
    assert store.steps() == []


def test_the_last_state_is_verified_unless_this_store_wrote_the_unchanged_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, other = Store(tmp_path), Store(tmp_path)
    assert ours.last_state(before=1) == (0, State())
    for step in (1, 2):
        ours.save(step, state(step), {}, {"reply/w": torch.ones(3)})
    verified: list[int] = []
    load = Store.load
    monkeypatch.setattr(Store, "load", lambda store, step: verified.append(step) or load(store, step))  # type: ignore[func-returns-value]
    for store in (ours, other):
        step, last = store.last_state(before=3)
        assert step == 2
        assert tensors_equal(last.tensors, state(2).tensors)
        assert last.meta == state(2).meta
    assert ours.last_state(before=2)[0] == 1
    assert verified == [2, 1], "the other store verifies step 2, ours only the step that is not its last"
    flip(ours.path(2))
    os.utime(ours.path(2), ns=(1, 1))
    assert ours.last_state(before=3)[0] == 1, "a changed file is verified, and passed over"


def test_a_healthy_store_needs_no_mending(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert store.set_damaged_aside() == 0
    store.save(1, state(1), {})
    store.save(2, state(2), {})
    cut(store.path(1))  # older than the newest: nothing reads it
    assert store.set_damaged_aside() == 2
    assert store.steps() == [1, 2]


# ---- blobs


def test_a_blob_is_written_once_and_kept_while_a_step_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, constant = Store(tmp_path), {"c": torch.randn(50)}
    digest = store.put(constant)
    path = tmp_path / "blobs" / f"{digest}.safetensors"
    before = path.stat()
    assert store.put({"c": constant["c"].clone()}) == digest
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    assert path.stat().st_ino == before.st_ino, "written again"
    other = store.put({"c": torch.zeros(1)})
    assert other != digest
    store.save(1, state(1, big=digest, small=other), {})
    store.save(2, state(2, big=digest), {})
    store.save(3, state(3, big=digest), {})
    assert tensors_equal(store.get(digest), constant)
    with refused(StoreError, "unreadable_file", path=str(tmp_path / "blobs" / f"{other}.safetensors")):
        store.get(other)
    store.save(4, state(4), {})
    assert path.exists(), "step 3 names it"
    store.save(5, state(5), {})
    assert not path.exists(), "no kept step names it"


def test_a_damaged_blob_is_named(tmp_path: Path) -> None:
    store = Store(tmp_path)
    digest = store.put({"c": torch.randn(50)})
    path = tmp_path / "blobs" / f"{digest}.safetensors"
    cut(path)
    with refused(StoreError, "unreadable_file", path=str(path)):
        store.get(digest)


def test_a_damaged_step_keeps_its_blobs(tmp_path: Path) -> None:
    """Damage a step: its references to blobs can't be read, so no blob is deleted, and saving works."""
    store = Store(tmp_path)
    digest = store.put({"c": torch.randn(5)})
    for step in (1, 2):
        store.save(step, state(step, big=digest), {})
    cut(store.path(2))
    store.save(3, state(3), {})
    assert store.get(digest)
    assert store.latest().step == 3  # type: ignore[union-attr]


# ---- peer messages


def peer_message(value: int) -> PeerMessage:
    return PeerMessage("b", {"x": torch.tensor([value])}, {"value": value})


def read(inbox: Inbox, since: int, before: int) -> list[tuple[str, int]]:
    messages = inbox.read(since, before)
    assert all(p.to == "b" and int(p.tensors["x"]) == p.meta["value"] for p in messages)
    return [(p.sender, p.meta["value"]) for p in messages]


def test_a_peer_message_is_read_by_the_first_step_after_it_was_posted(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path / "b")
    assert read(inbox, 0, 1) == []
    inbox.post(3, "c", peer_message(1))
    inbox.post(3, "a", peer_message(2))
    inbox.post(4, "a", peer_message(3))
    assert read(inbox, 0, 3) == [], "step 3 began before it was posted"
    assert read(inbox, 1, 4) == [("a", 2), ("c", 1)], "sorted by sender"
    assert read(inbox, 4, 5) == [("a", 3)]
    assert read(inbox, 1, 9) == [("a", 2), ("a", 3), ("c", 1)], "away for some steps"
    assert read(inbox, 5, 9) == []


def test_doubles_are_dropped_and_reading_consumes_nothing(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path / "b")
    inbox.post(3, "c", peer_message(1))
    inbox.post(3, "c", peer_message(9))
    assert read(inbox, 2, 4) == read(inbox, 2, 4) == [("c", 1)]
    inbox.delete_before(3)
    assert read(inbox, 2, 4) == [("c", 1)], "step 4 may have to be done again"
    inbox.delete_before(4)
    assert read(inbox, 2, 4) == []


def test_a_damaged_peer_message_is_named(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path / "b")
    inbox.post(3, "c", peer_message(1))
    path = next((tmp_path / "b" / "inbox").iterdir())
    flip(path)
    with refused(DamagedError, "damaged_file", path=str(path)):
        inbox.read(0, 9)


# ---- one writer


def test_only_one_process_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("medfl.engine.store.LOCK_SECONDS", 0.05)
    Store(tmp_path / "a").save(1, state(1), {})
    with lock_for_writing(tmp_path):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                assert Store(tmp_path / "a").latest().step == 1  # type: ignore[union-attr] # reading is fine
                with refused(StoreError, "folder_in_use", path=str(tmp_path)), lock_for_writing(tmp_path):
                    pass
                status = 0
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    with lock_for_writing(tmp_path):
        pass


def test_the_lock_waits_for_processes_that_are_ending(tmp_path: Path) -> None:
    """Release a lock a moment later, as the system does after a kill; waiting for it succeeds."""
    ready, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        with lock_for_writing(tmp_path):
            os.write(tell, b"x")
            time.sleep(0.2)
            os._exit(0)
    os.read(ready, 1)
    with lock_for_writing(tmp_path, patience=600):
        pass
    os.waitpid(pid, 0)
    os.close(ready)
    os.close(tell)


def test_half_written_files_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    stale = tmp_path / "state" / "a" / ".step-00000002.safetensors.123.tmp"
    stale.parent.mkdir(parents=True)
    stale.write_bytes(b"half")
    (tmp_path / "mine.tmp").write_text("not hidden: not ours")
    with lock_for_writing(tmp_path):
        assert not stale.exists()
    assert (tmp_path / "mine.tmp").exists()
