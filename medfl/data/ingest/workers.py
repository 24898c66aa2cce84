"""Worker processes of an ingestion: each reads items and writes their rows into the array file.

A damaged file can crash a decoder in C, which ends its process and breaks the whole process pool. The items in work are
then read one by one, each in a new process. An item that crashes its process again is excluded.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from medfl.data.ingest.array_file import ArrayFile
from medfl.data.readers.quiet import quiet_decoders
from medfl.errors import DataError, SettingsError
from medfl.plugin_sources import MODULE_PREFIX, load_plugin_file
from medfl.utils.processes import fresh_context, live_with_parent


class LoadedItem(NamedTuple):
    """Result of reading one item.

    Attributes:
        pixels: Row of the array; cast to the array's type.
        facts: Further metadata, as JSON; nothing in it may identify a patient.
    """

    pixels: np.ndarray
    facts: dict[str, Any] = {}  # noqa: RUF012


CRASH_REASON = "reading it ended the process: the file is damaged, or the memory is too small for it"
"""Reason for excluding an item whose decoder crashes."""


ITEMS_AHEAD = 3
"""Number of items for each process that are submitted before the first result is back."""


LoadFunction = Callable[[Any], "LoadedItem"]
"""Function that reads one item and returns its pixels and metadata. It raises DataError if the item can't be read."""


class ReadResult(NamedTuple):
    """Result of reading an item into the array.

    Attributes:
        place: Position of the item in the list of items, and number of its row.
        reason: Reason for the exclusion, or None if the row was written.
        facts: Metadata of the item.
    """

    place: int
    reason: str | None
    facts: dict[str, Any]


def read_all(
    load: LoadFunction, items: Sequence[Any], todo: Sequence[int], array: Path, workers: int
) -> Iterator[ReadResult]:
    """Read items into an array file; yield the results in any order.

    Args:
        load: Function that reads an item.
        items: All items.
        todo: Positions of the items to read; item n is written to row n.
        array: The ``.npy`` file.
        workers: Number of processes, >= 1; with 1, this process reads all items.

    Raises:
        SettingsError: If worker processes can't be started.
    """
    if workers == 1 or len(todo) < 2:
        with ArrayFile(array) as rows, quiet_decoders():
            for place in todo:
                yield _read_item(load, items[place], place, rows)
        return
    rest = deque(todo)
    while rest:
        in_work: list[int] = []
        yield from _read_in_pool(load, items, rest, in_work, array, min(workers, len(todo)))
        yield from _read_one_by_one(load, items, in_work, array)


def _read_in_pool(
    load: LoadFunction, items: Sequence[Any], rest: deque[int], in_work: list[int], array: Path, workers: int
) -> Iterator[ReadResult]:
    """Read until all items are done or the pool breaks.

    Empty `rest` and, if the pool breaks, append the items in work to `in_work`, both in place.
    """
    pool = _start_pool(workers, load, array)
    running: dict[Future[ReadResult], int] = {}
    try:
        while rest or running:
            while rest and len(running) < ITEMS_AHEAD * workers:
                place = rest[0]
                running[pool.submit(_read_in_worker, items[place], place)] = place
                rest.popleft()
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                read = future.result()
                del running[future]
                yield read
    except BrokenProcessPool:
        in_work += running.values()
    finally:
        pool.shutdown(cancel_futures=True)


def _read_one_by_one(
    load: LoadFunction, items: Sequence[Any], places: Sequence[int], array: Path
) -> Iterator[ReadResult]:
    """Read items one after another in a single worker process, which is replaced if it crashes."""
    rest = deque(places)
    while rest:
        pool = _start_pool(1, load, array)
        try:
            _check_start(pool)
            while rest:
                place = rest.popleft()
                try:
                    yield pool.submit(_read_in_worker, items[place], place).result()
                except BrokenProcessPool:
                    yield ReadResult(place, CRASH_REASON, {})
                    break
        finally:
            pool.shutdown(cancel_futures=True)


def _check_start(pool: ProcessPoolExecutor) -> None:
    try:
        pool.submit(_is_ready).result()
    except BrokenProcessPool:
        raise SettingsError(
            "worker_start_failure",
            "could not start worker processes. In a script of your own put the call below `if __name__ == "
            "'__main__':`, or ask for one worker (--workers 1).",
        ) from None


def _start_pool(workers: int, load: LoadFunction, array: Path) -> ProcessPoolExecutor:
    plugin = _plugin_file(load)
    # the worker processes import a plugin file themselves
    context = fresh_context([__name__] if plugin else _modules_of(load))
    return ProcessPoolExecutor(workers, context, initializer=_start_worker, initargs=(_WorkerTask(load, plugin), array))


_task_and_rows: tuple[LoadFunction, ArrayFile] | None = None
"""Task and open array of this worker process."""


class _WorkerTask:
    """Function that reads an item, as sent to a worker process.

    Unpickling first imports the plugin file that defines the function.

    Args:
        load: Function that reads an item.
        plugin: Path of the plugin file that defines `load`; None if it is from an installed package.
    """

    def __init__(self, load: LoadFunction | None, plugin: Path | None) -> None:
        self.load, self.plugin = load, plugin
        if plugin is not None and f"{MODULE_PREFIX}{plugin.stem}" not in sys.modules:
            load_plugin_file(plugin, {})

    def __reduce__(self) -> Any:
        # the state is unpickled after the call, so that the plugin file is imported before `load`, which it defines
        return _WorkerTask, (None, self.plugin), {"load": self.load}


def _plugin_file(load: LoadFunction) -> Path | None:
    """Return the plugin file that defines the reading function, or None if it is from an installed package."""
    module = sys.modules[_modules_of(load)[0]]
    return Path(module.__file__) if module.__name__.startswith(MODULE_PREFIX) and module.__file__ else None


def _modules_of(load: LoadFunction) -> list[str]:
    """Return the module of the reading function, and the modules of arguments bound to it with `functools.partial`."""
    values: list[Any] = []
    while isinstance(load, partial):
        values += [*load.args, *load.keywords.values()]
        load = load.func
    return [load.__module__, *(type(value).__module__ for value in values)]


def _start_worker(job: _WorkerTask, array: Path) -> None:
    """Initialise a worker process."""
    global _task_and_rows
    live_with_parent()
    assert job.load is not None  # set by _start_pool
    _task_and_rows = job.load, ArrayFile(array)


def _is_ready() -> bool:
    return _task_and_rows is not None


def _read_in_worker(item: Any, place: int) -> ReadResult:
    assert _task_and_rows is not None
    with quiet_decoders():
        return _read_item(_task_and_rows[0], item, place, _task_and_rows[1])


def _read_item(load: LoadFunction, item: Any, place: int, rows: ArrayFile) -> ReadResult:
    try:
        pixels, facts = load(item)
    except DataError as error:
        return ReadResult(place, str(error), {})
    if pixels.shape != rows.shape[1:]:
        raise ValueError(f"expected an image of shape {rows.shape[1:]}, got {pixels.shape}")
    rows.write(place, pixels)
    return ReadResult(place, None, facts)
