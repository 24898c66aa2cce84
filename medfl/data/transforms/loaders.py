"""Processes that load cases ahead of their use, in the order in which they are wanted.

Nothing that travels is a torch tensor: those go through shared memory, of which containers often have little. A loader
that ends, as a damaged file or too little memory can have it, is noticed, and the case that ends a loader again when it
is loaded alone is named.
"""

from __future__ import annotations

import multiprocessing
import pickle
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from multiprocessing.context import BaseContext
from typing import Any

import numpy as np
import torch
from monai.data import get_track_meta, set_track_meta

from medfl.data.transforms.loading import Loading, Visit
from medfl.data.transforms.packing import Packed
from medfl.errors import DataError, SettingsError
from medfl.types import Loaded, Tensors
from medfl.utils.processes import fresh_context, live_with_parent

AHEAD = 2
"""Batches for each loader that are handed out before the first of them is used."""

Flat = dict[str, tuple[np.ndarray, torch.dtype, tuple[int, ...]]]
"""Tensors as bytes with their types and shapes."""


def loader_context() -> BaseContext:
    """How loaders are started: not by a fork where a GPU is in use, as CUDA works in no fork."""
    if "fork" in multiprocessing.get_all_start_methods() and not torch.cuda.is_initialized():
        return multiprocessing.get_context("fork")
    return fresh_context([__name__])


def check_can_be_sent(loading: Loading, context: BaseContext) -> None:
    """Refuse transforms that can't be handed to a process that is not a fork of this one.

    Raises:
        SettingsError: Naming the first of them.
    """
    if context.get_start_method() == "fork":
        return
    for number, transform in enumerate(loading.chain.transform.transforms):
        try:
            pickle.dumps(transform)
        except Exception:  # pickle raises whatever an object's parts raise
            raise SettingsError(
                "unpicklable_transform",
                f"transform {number} ({type(transform).__name__}) of {loading.where} can't be handed to loader "
                "processes, which are no forks where a GPU is in use: it holds a lambda or the like. Use a named "
                "function of a module, or load in this process (0 loaders).",
                where=loading.where,
                number=number,
                transform=type(transform).__name__,
            ) from None


def load_ahead(
    loading: Loading,
    batches: Iterable[list[Visit]],
    loaders: int,
    keep: Callable[[str, Packed], None],
    look_up: Callable[[Visit], Visit],
) -> Iterator[Loaded]:
    """Batches, loaded by processes, in their order.

    Args:
        loading: How it is done.
        batches: What is wanted; drawn ahead of use.
        loaders: Processes, >= 1.
        keep: Takes beginnings that were made.
        look_up: Gives a visit its beginning, if it is at hand.

    Raises:
        DataError: If a case can't be loaded, or ends its loader, naming its row.
        SettingsError: If loaders can't be started.
    """
    context = loader_context()
    check_can_be_sent(loading, context)
    rest, pending = iter(batches), deque[tuple[list[Visit], Future[Any]]]()
    pool = _pool(loading, loaders, context)
    try:
        while True:
            while len(pending) < AHEAD * loaders and (visits := next(rest, None)) is not None:
                ready = [look_up(visit) for visit in visits]
                pending.append((visits, pool.submit(_load, [_sent(visit) for visit in ready])))
            if not pending:
                return
            loaded, made = pending[0][1].result()
            pending.popleft()
            for key, (form, flat) in made.items():
                keep(key, (form, _whole(flat)))
            yield _received(loaded)
    except BrokenProcessPool:
        in_work = list(dict.fromkeys(visit.row for visits, _ in pending for visit in visits))
        raise _crash(loading, [visit for visits, _ in pending for visit in visits], in_work, context) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _crash(loading: Loading, visits: Sequence[Visit], rows: list[int], context: BaseContext) -> Exception:
    """What to say of a loader that ended: each case is loaded once more, alone, to see which one did it."""
    do = "Look at that case's files, or leave it out of the list."
    for visit in visits:
        pool = _pool(loading, 1, context)
        try:
            pool.submit(_ready).result()
        except BrokenProcessPool:
            return SettingsError(
                "loader_start_failure",
                "could not start loader processes. In a script of your own put the call below `if __name__ == "
                "'__main__':`, or load in this process (0 loaders).",
            )
        try:
            pool.submit(_load, [_sent(visit)]).result()
        except BrokenProcessPool:
            return DataError(
                "crashed_loader",
                f"loading row {visit.row} of {loading.where} ends the process: a file is damaged, or the memory is too "
                f"small for it. {do}",
                where=loading.where,
                rows=[visit.row],
            )
        except DataError as error:
            return error
        finally:
            pool.shutdown(cancel_futures=True)
    return DataError(
        "crashed_loader",
        f"a loader process ended while rows {', '.join(map(str, rows))} of {loading.where} were loaded, and each can "
        "be loaded alone: the memory may be too small, or somebody ended it. Use fewer loaders, or smaller batches.",
        where=loading.where,
        rows=rows,
    )


def _pool(loading: Loading, loaders: int, context: BaseContext) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(loaders, context, initializer=_start, initargs=(loading, get_track_meta()))


_loading: Loading | None = None
"""In a loader: what it does."""


def _start(loading: Loading, track_meta: bool) -> None:
    global _loading
    live_with_parent()
    torch.set_num_threads(1)
    set_track_meta(track_meta)
    _loading = loading


def _ready() -> bool:
    return _loading is not None


def _load(visits: list[Visit]) -> tuple[Any, dict[str, tuple[Any, Flat]]]:
    assert _loading is not None
    loaded, made = _loading.load([_whole_visit(visit) for visit in visits])
    targets = loaded.targets if isinstance(loaded.targets, dict) else {"": loaded.targets}
    beside = {"rows": loaded.rows, "inputs": loaded.inputs}
    beside |= {} if loaded.spacing is None else {"spacing": loaded.spacing}
    # a folder holds them already
    sent = {} if _loading.cache is not None else {key: (form, _flat(some)) for key, (form, some) in made.items()}
    return (_flat(beside), _flat(targets)), sent


def _received(loaded: tuple[Flat, Flat]) -> Loaded:
    beside, targets = map(_whole, loaded)
    return Loaded(beside["rows"], beside["inputs"], targets.get("", targets), beside.get("spacing"))


def _sent(visit: Visit) -> Visit:
    if visit.begun is None:
        return visit
    form, tensors = visit.begun
    return replace(visit, begun=(form, _flat(tensors)))  # type: ignore[arg-type]


def _whole_visit(visit: Visit) -> Visit:
    if visit.begun is None:
        return visit
    form, flat = visit.begun
    return replace(visit, begun=(form, _whole(flat)))  # type: ignore[arg-type]


def _flat(tensors: Tensors) -> Flat:
    return {
        name: (tensor.contiguous().reshape(-1).view(torch.uint8).numpy(), tensor.dtype, tuple(tensor.shape))
        for name, tensor in tensors.items()
    }


def _whole(flat: Flat) -> Tensors:
    return {name: torch.from_numpy(raw).view(kind).reshape(shape) for name, (raw, kind, shape) in flat.items()}
