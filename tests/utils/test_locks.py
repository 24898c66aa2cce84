"""Tests that a lock has one holder at a time, also if the file is removed."""

from __future__ import annotations

import multiprocessing
import time
from pathlib import Path

import pytest

from medfl.utils.locks import LOCK_FILE, hold_lock, is_being_written


@pytest.mark.parametrize("remove", [False, True])
def test_one_holder_at_a_time(tmp_path: Path, remove: bool) -> None:
    path = tmp_path / LOCK_FILE
    with hold_lock(path, remove=remove) as first:
        assert first
        assert is_being_written(tmp_path)
        with hold_lock(path, remove=remove) as second:
            assert not second
        assert path.exists(), "only the holder removes it"
        assert is_being_written(tmp_path)
    assert path.exists() is not remove
    assert not is_being_written(tmp_path)
    with hold_lock(path) as again:
        assert again


def count(path: Path, number: int) -> None:
    """Increment the number in a file many times, slowly enough for conflicts."""
    for _ in range(number):
        with hold_lock(path.with_name(LOCK_FILE), patience=600, remove=True) as alone:
            assert alone
            value = int(path.read_text())
            time.sleep(0.0005)
            path.write_text(str(value + 1))


def test_a_lock_that_is_removed_each_time_never_has_two_holders(tmp_path: Path) -> None:
    path = tmp_path / "number"
    path.write_text("0")
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=count, args=(path, 60)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    assert path.read_text() == "240"
