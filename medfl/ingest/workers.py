"""The worker processes of an ingestion: each reads items and writes their rows into the array file.

A decoder that ends its process (a damaged file can do that to a library in C) takes the whole pool of processes with
it. The items that were in work are then read one by one, each in a process of its own, and the one that ends its
process again is left out.
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
from medfl.ingest.array_file import ArrayFile

from medfl.data.readers.quiet import quiet_decoders
from medfl.errors import DataError, SettingsError
from medfl.plugins import PREFIX, load_file
from medfl.utils.processes import fresh_context, live_with_parent


class LoadedItem(NamedTuple):
    """What became of one item.

    Attributes:
        pixels: Of the shape of a row of the array; they are cast to its type.
        facts: What else is worth to be known, as JSON; nothing that identifies a patient.
    """

    pixels: np.ndarray
    facts: dict[str, Any] = {}  # noqa: RUF012


CRASHED = "reading it ended the process: the file is damaged, or the memory is too small for it"
"""Why an item is left out whose decoder crashes."""


AHEAD = 3
"""Items for each process that are handed out before the first of them is back."""


Load = Callable[[Any], "LoadedItem"]


class Read(NamedTuple):
    """What became of an item: it is in the array, or there is a reason why not."""

    place: int
    reason: str | None
    facts: dict[str, Any]


def read_all(load: Load, items: Sequence[Any], todo: Sequence[int], array: Path, workers: int) -> Iterator[Read]:
    """Read items into an array file, in any order.

    Args:
        load: Reads one of them.
        items: All of them.
        todo: The places of those to be read; item n goes to row n.
        array: The ``.npy`` file.
        workers: Processes, >= 1; with 1 all is done in this process.

    Raises:
        SettingsError: If worker processes can't be started.
    """
    if workers == 1 or len(todo) < 2:
        with ArrayFile(array) as rows, quiet_decoders():
            for place in todo:
                yield _read(load, items[place], place, rows)
        return
    rest = deque(todo)
    while rest:
        in_work: list[int] = []
        yield from _in_pool(load, items, rest, in_work, array, min(workers, len(todo)))
        yield from _one_by_one(load, items, in_work, array)


def _in_pool(
    load: Load, items: Sequence[Any], rest: deque[int], in_work: list[int], array: Path, workers: int
) -> Iterator[Read]:
    """Read until all is done or the pool breaks; `rest` is emptied, `in_work` then holds what was being read."""
    pool = _pool(workers, load, array)
    flying: dict[Future[Read], int] = {}
    try:
        while rest or flying:
            while rest and len(flying) < AHEAD * workers:
                place = rest[0]
                flying[pool.submit(_work, items[place], place)] = place
                rest.popleft()
            for future in wait(flying, return_when=FIRST_COMPLETED).done:
                read = future.result()
                del flying[future]
                yield read
    except BrokenProcessPool:
        in_work += flying.values()
    finally:
        pool.shutdown(cancel_futures=True)


def _one_by_one(load: Load, items: Sequence[Any], places: Sequence[int], array: Path) -> Iterator[Read]:
    """Read items one after another in a process that is replaced if it ends."""
    rest = deque(places)
    while rest:
        pool = _pool(1, load, array)
        try:
            _check_start(pool)
            while rest:
                place = rest.popleft()
                try:
                    yield pool.submit(_work, items[place], place).result()
                except BrokenProcessPool:
                    yield Read(place, CRASHED, {})
                    break
        finally:
            pool.shutdown(cancel_futures=True)


def _check_start(pool: ProcessPoolExecutor) -> None:
    try:
        pool.submit(_ready).result()
    except BrokenProcessPool:
        raise SettingsError(
            "worker_start_failure",
            "could not start worker processes. In a script of your own put the call below `if __name__ == "
            "'__main__':`, or ask for one worker (--workers 1).",
        ) from None


def _pool(workers: int, load: Load, array: Path) -> ProcessPoolExecutor:
    plugin = _plugin_file(load)
    context = fresh_context([__name__] if plugin else _modules_of(load))  # only workers import a plugin file
    return ProcessPoolExecutor(workers, context, initializer=_start, initargs=(_Job(load, plugin), array))


_job: tuple[Load, ArrayFile] | None = None
"""In a worker: how to read an item, and the rows of the array."""


class _Job:
    """How an item is read, for a worker process, where the plugin file that it is from is imported first."""

    def __init__(self, load: Load | None, plugin: Path | None) -> None:
        self.load, self.plugin = load, plugin
        if plugin is not None and f"{PREFIX}{plugin.stem}" not in sys.modules:
            load_file(plugin, {})

    def __reduce__(self) -> Any:
        return _Job, (None, self.plugin), {"load": self.load}  # the file comes before what is in it


def _plugin_file(load: Load) -> Path | None:
    """The plugin file that has the function, or the class, that reads; None if it is from an installed package."""
    module = sys.modules[_modules_of(load)[0]]
    return Path(module.__file__) if module.__name__.startswith(PREFIX) and module.__file__ else None


def _modules_of(load: Load) -> list[str]:
    """The module that has the function, or the class, that reads; and those of what is handed to it beforehand."""
    values: list[Any] = []
    while isinstance(load, partial):
        values += [*load.args, *load.keywords.values()]
        load = load.func
    return [load.__module__, *(type(value).__module__ for value in values)]


def _start(job: _Job, array: Path) -> None:
    """Begin a worker."""
    global _job
    live_with_parent()
    assert job.load is not None  # given in _pool
    _job = job.load, ArrayFile(array)


def _ready() -> bool:
    return _job is not None


def _work(item: Any, place: int) -> Read:
    assert _job is not None
    with quiet_decoders():
        return _read(_job[0], item, place, _job[1])


def _read(load: Load, item: Any, place: int, rows: ArrayFile) -> Read:
    try:
        pixels, facts = load(item)
    except DataError as error:
        return Read(place, str(error), {})
    if pixels.shape != rows.shape[1:]:
        raise ValueError(f"expected an image of shape {rows.shape[1:]}, got {pixels.shape}")
    rows.write(place, pixels)
    return Read(place, None, facts)
