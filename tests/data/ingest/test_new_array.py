"""Test array files that are filled piece by piece: their content, memory and disk use."""

from __future__ import annotations

import errno
import os
import tracemalloc

import numpy as np
import pytest
from refusals import refused

from medfl.data.ingest import array_file as module
from medfl.data.ingest.array_file import ArrayFile, keep_rows, new_array, report_space_needed, stack_rows
from medfl.errors import DataError

ROWS = np.random.default_rng(0).integers(0, 65536, (8, 3, 5), dtype=np.uint16)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32])
def test_rows_come_in_any_order_and_some_are_kept(tmp_path, dtype):
    path, rows = tmp_path / "a.npy", ROWS.astype(dtype)
    with new_array(path, [np.int64(8), 3, 5], dtype) as array:
        assert (array.shape, array.dtype, len(array)) == ((8, 3, 5), dtype, 8)
        array.write(5, ROWS[5])
        array.write(1, rows[1:4])
        array.flush()
    expected = np.where(np.isin(np.arange(8), (1, 2, 3, 5))[:, None, None], rows, 0)
    array_ = np.load(path)
    assert array_.dtype == dtype
    np.testing.assert_array_equal(array_, expected)
    for kept in ([0, 1, 2, 3, 5, 7], [1, 2, 4], [0, 1], []):
        expected = expected[kept]
        keep_rows(path, kept)
        np.testing.assert_array_equal(np.load(path), expected)
        assert path.stat().st_size == path.read_bytes().index(b"\n") + 1 + expected.nbytes
        assert os.listdir(tmp_path) == ["a.npy"], "a second copy would need as much room again"


def test_no_more_than_a_row_is_in_memory(tmp_path):
    """The file is not mapped either, because mapped pages would count as memory of the process."""
    path, row = tmp_path / "a.npy", np.ones((256, 1024), np.float32)
    tracemalloc.start()
    try:
        with new_array(path, (40, *row.shape), np.float32) as array:
            for place in range(40):
                array.write(place, row)
            array.keep(range(1, 40))
            if os.path.exists("/proc/self/maps"):  # noqa: PTH110
                with open("/proc/self/maps") as maps:
                    assert str(path) not in maps.read()
        assert tracemalloc.get_traced_memory()[1] < 3 * row.nbytes
    finally:
        tracemalloc.stop()
    assert np.load(path, mmap_mode="r").shape == (39, 256, 1024)


def test_what_is_needed_is_said_before_and_refused_if_it_is_not_there(tmp_path, monkeypatch):
    path, lines = tmp_path / "a.npy", []
    monkeypatch.setattr(module, "_free_bytes", lambda folder: 3 * 10**9)
    report_space_needed(path, (17092, 224, 224, 3), np.uint8, 2, lines.append)
    assert lines == [
        "note: needs 2.6 GB on the disk of --out, which has 3.0 GB left, and about 450.0 MB of memory for 2 processes, "
        "for any number of images"
    ]
    for attempt in (
        lambda: report_space_needed(path, (10**10,), np.uint8, 1, lines.append),
        lambda: new_array(path, [10**10], "u1"),
    ):
        with refused(DataError, "disk_full", needed=10**10, free=3 * 10**9):
            attempt()
    assert len(lines) == 1
    assert not path.exists()
    path.write_bytes(bytes(8192))
    os.sync()
    there = path.stat().st_blocks * 512
    report_space_needed(path, (3 * 10**9 + there,), np.uint8, 1, lines.append)  # what is there is written over
    assert "3.0 GB" in lines[-1]


def test_a_disk_that_fills_meanwhile_is_reported(tmp_path, monkeypatch):
    def full(*rest):
        raise OSError(errno.ENOSPC, "No space left on device")

    with new_array(tmp_path / "a.npy", (2, 3), np.uint8) as array, monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with refused(DataError, "unwritable_file", reason="No space left on device"):
            array.write(0, np.zeros(3))


@pytest.mark.parametrize(("shape", "count"), [((6, 2, 5), 3), ((4, 3), 1), ((871, 4), 871)])
def test_rows_that_follow_each_other_become_the_last_axis(tmp_path, shape, count):
    rows = np.random.default_rng(0).integers(0, 9, shape, dtype=np.uint16)
    np.save(tmp_path / "a.npy", rows)
    stack_rows(tmp_path / "a.npy", count)
    expected = np.stack([np.stack(list(part), axis=-1) for part in rows.reshape(-1, count, *shape[1:])])
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), expected)
    np.save(tmp_path / "b.npy", expected)
    assert (tmp_path / "a.npy").read_bytes() == (tmp_path / "b.npy").read_bytes(), "as if it had been written so"


def test_an_array_file_that_is_cut_short_is_none(tmp_path):
    path = tmp_path / "a.npy"
    for content in (ROWS, np.asfortranarray(ROWS)):
        np.save(path, content)
        if content is ROWS:
            path.write_bytes(path.read_bytes()[:-1])
        with pytest.raises(ValueError, match="cut short or in Fortran order"):
            ArrayFile(path)
