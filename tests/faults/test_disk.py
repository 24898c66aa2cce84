"""A full or read-only disk: a message that says where and what to do, nothing half written, and on it goes later."""

from __future__ import annotations

import errno
import os
import resource
import signal
from pathlib import Path
from typing import Any

import pytest
from fault_harness import Child, Faults
from refusals import refused
from toys import PAIR, Ring, Toy, leftovers, snapshot

from medfl.contract import State
from medfl.engine.store import Store, lock_for_writing
from medfl.errors import MedflError, StoreError
from medfl.testing.cohort import make_sites
from medfl.utils.files import write_atomic

WRITES = ("open", "write", "fsync", "replace")


def run(case: Any, folder: Path, workers: int = 1) -> None:
    case.run(folder, workers=workers, sites=make_sites(PAIR))


def failing(case: Any, folder: Path, number: int, code: int, workers: int) -> str:
    """Run in a child in which every write from the given call on fails; a write fails when half of it is done."""

    def act(count: int, what: str, path: str) -> str | None:
        if what == "rest" or (count >= number and what in WRITES):
            if what == "write":
                return "half"
            raise OSError(code, os.strerror(code))
        return None

    faults = Faults(act)

    def work() -> None:
        faults.install()
        run(case, folder, workers)

    return Child(work).end()


@pytest.mark.parametrize(
    ("workers", "stride"),
    [(1, 16), *(pytest.param(workers, 3 * workers, marks=pytest.mark.slow) for workers in (1, 2))],
)
def test_disk_full_from_any_write_on(workers: int, stride: int, tmp_path: Path) -> None:
    case = Toy(Ring)
    run(case, tmp_path / "whole")
    wanted = snapshot(tmp_path / "whole")
    for number in range(1, 1000, stride):
        folder = tmp_path / str(number)
        how = failing(case, folder, number, errno.ENOSPC, workers)
        if how == "done":
            break
        assert how.startswith("StoreError: Could not write"), f"call {number}: {how}"
        assert "No space left" in how, how
        assert str(folder) in how, f"call {number}: the message does not say where: {how}"
        assert not leftovers(folder), f"call {number}"
        for path in (folder / "state").glob("*"):
            steps = Store(path).steps()
            assert all(Store(path).load(step).step == step for step in steps), f"call {number}: {path.name}"
        run(case, folder, workers)
        assert snapshot(folder) == wanted, f"full at call {number}: {how}"
    assert number > 40, f"only calls up to {number} were tried"


def test_a_file_may_not_grow(tmp_path: Path) -> None:
    """A limit of the system, as a quota is: no call is patched."""
    case = Toy(Ring)
    run(case, tmp_path / "whole")
    largest = max(path.stat().st_size for path in (tmp_path / "whole" / "state").rglob("step-*"))
    limit = largest - 64  # a step holds seconds, so its size differs by a few bytes between two runs

    def work() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        run(case, tmp_path / "run")

    how = Child(work).end()
    assert how.startswith("StoreError: Could not write"), how
    assert "File too large" in how, how
    assert "/state/" in how, how
    assert "free some space" in how, how
    assert not leftovers(tmp_path / "run")
    run(case, tmp_path / "run")
    assert snapshot(tmp_path / "run") == snapshot(tmp_path / "whole")


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES])
def test_read_only_folder(code: int, tmp_path: Path) -> None:
    case = Toy(Ring)
    run(case, tmp_path / "whole")
    for number in (1, 2, 14, 41):
        folder = tmp_path / str(number)
        how = failing(case, folder, number, code, workers=1)
        assert how.startswith("StoreError: Could not write"), how
        assert os.strerror(code) in how, how
        assert str(folder) in how, how
        run(case, folder)
        assert snapshot(folder) == snapshot(tmp_path / "whole")


def test_the_folder_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for folder in (tmp_path / "file", tmp_path / "file" / "run"):
        with refused(StoreError, "unwritable_folder", path=str(folder)):
            run(Toy(Ring), folder)
    assert (tmp_path / "file").read_text() == "mine"


def test_nothing_can_be_deleted(tmp_path: Path) -> None:
    """Old steps that can't be deleted stay; the run goes on."""

    def act(count: int, what: str, path: str) -> str | None:
        if what == "unlink":
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))
        return None

    def work() -> None:
        Faults(act).install()
        run(Toy(Ring), tmp_path / "run")

    assert Child(work).end() == "done"
    run(Toy(Ring), tmp_path / "whole")
    assert snapshot(tmp_path / "run") == snapshot(tmp_path / "whole")


def test_what_stood_there_before_is_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_atomic(path, b"old")
    store = Store(tmp_path / "store")
    store.save(1, State(meta={"a": 1}), {})

    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", full)
    for write in (lambda: write_atomic(path, b"new"), lambda: store.save(2, State(meta={"a": 2}), {})):
        with refused(MedflError, "unwritable_file", reason=os.strerror(errno.ENOSPC)) as caught:
            write()
        assert "Everything saved before is still valid" in str(caught.value)
    assert path.read_bytes() == b"old"
    assert store.latest().state().meta == {"a": 1}  # type: ignore[union-attr]
    assert not leftovers(tmp_path)
    with lock_for_writing(tmp_path):  # a lock needs no space
        pass
