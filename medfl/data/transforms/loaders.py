"""Loader processes that load batches ahead of their use, in the requested order.

A visit is the request for one case in a batch, with the seed of its random transforms. Tensors are sent as bytes,
because torch sends tensors through shared memory, which is often small in containers. If a loader process ends
unexpectedly (a damaged file or too little memory), each case is loaded again alone, and the error names the case that
crashes the process.
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

from medfl.data.transforms.loading import CaseLoader, Visit
from medfl.data.transforms.packing import Packed
from medfl.errors import DataError, SettingsError
from medfl.types import LoadedBatch, Tensors
from medfl.utils.processes import fresh_context, live_with_parent

BATCHES_AHEAD = 2
"""Number of batches for each loader that are submitted before the first of them is used."""

TensorBytes = dict[str, tuple[np.ndarray, torch.dtype, tuple[int, ...]]]
"""Tensors as bytes: maps each name to the bytes, the data type and the shape."""


def loader_context() -> BaseContext:
    """Return the start method of loaders: fork, unless a GPU is in use, because CUDA does not work after a fork."""
    if "fork" in multiprocessing.get_all_start_methods() and not torch.cuda.is_initialized():
        return multiprocessing.get_context("fork")
    return fresh_context([__name__])


def check_picklable(loading: CaseLoader, context: BaseContext) -> None:
    """Raise if a transform can't be sent to a loader process that is not a fork of this one.

    Raises:
        SettingsError: If a transform can't be pickled. The message names the first one.
    """
    if context.get_start_method() == "fork":
        return
    for number, transform in enumerate(loading.chain.transform.transforms):
        try:
            pickle.dumps(transform)
        except Exception:  # pickling runs code of the object, which may raise anything
            raise SettingsError(
                "unpicklable_transform",
                f"transform {number} ({type(transform).__name__}) of {loading.where} can't be sent to loader "
                "processes, which are not forked if a GPU is in use: it contains a lambda or the like. Use a named "
                "function of a module, or load in this process (0 loaders).",
                where=loading.where,
                number=number,
                transform=type(transform).__name__,
            ) from None


def load_ahead(
    loading: CaseLoader,
    batches: Iterable[list[Visit]],
    loaders: int,
    keep: Callable[[str, Packed], None],
    look_up: Callable[[Visit], Visit],
) -> Iterator[LoadedBatch]:
    """Load batches in processes and yield them in order.

    Args:
        loading: Case loader, which is sent to each process.
        batches: Visits of each batch; consumed ahead of use.
        loaders: Number of processes, >= 1.
        keep: Function that stores a newly computed item under its key.
        look_up: Function that adds the cached item to a visit, if it is in memory.

    Raises:
        DataError: If a case can't be loaded, or crashes its loader. The message names the row.
        SettingsError: If loaders can't be started.
    """
    context = loader_context()
    check_picklable(loading, context)
    rest, pending = iter(batches), deque[tuple[list[Visit], Future[Any]]]()
    pool = _start_pool(loading, loaders, context)
    try:
        while True:
            while len(pending) < BATCHES_AHEAD * loaders and (visits := next(rest, None)) is not None:
                ready = [look_up(visit) for visit in visits]
                pending.append((visits, pool.submit(_load_batch, [_encode_visit(visit) for visit in ready])))
            if not pending:
                return
            loaded, new_items = pending[0][1].result()
            pending.popleft()
            for key, (form, flat) in new_items.items():
                keep(key, (form, _from_bytes(flat)))
            yield _decode_batch(loaded)
    except BrokenProcessPool:
        in_work = list(dict.fromkeys(visit.row for visits, _ in pending for visit in visits))
        raise _crash_error(loading, [visit for visits, _ in pending for visit in visits], in_work, context) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _crash_error(loading: CaseLoader, visits: Sequence[Visit], rows: list[int], context: BaseContext) -> Exception:
    """Return the error for a crashed loader, after loading each case again, alone, to find the one that crashes."""
    advice = "Check the files of that case, or leave it out of the list."
    for visit in visits:
        pool = _start_pool(loading, 1, context)
        try:
            pool.submit(_is_ready).result()
        except BrokenProcessPool:
            return SettingsError(
                "loader_start_failure",
                "could not start loader processes. In a script of your own put the call below `if __name__ == "
                "'__main__':`, or load in this process (0 loaders).",
            )
        try:
            pool.submit(_load_batch, [_encode_visit(visit)]).result()
        except BrokenProcessPool:
            return DataError(
                "crashed_loader",
                f"loading row {visit.row} of {loading.where} ends the process: a file is damaged, or the memory is too "
                f"small for it. {advice}",
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
        "be loaded alone: the memory may be too small, or the process was killed. Use fewer loaders, or smaller "
        "batches.",
        where=loading.where,
        rows=rows,
    )


def _start_pool(loading: CaseLoader, loaders: int, context: BaseContext) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(loaders, context, initializer=_start_loader, initargs=(loading, get_track_meta()))


_case_loader: CaseLoader | None = None
"""Case loader of this loader process."""


def _start_loader(loading: CaseLoader, track_meta: bool) -> None:
    global _case_loader
    live_with_parent()
    torch.set_num_threads(1)
    set_track_meta(track_meta)
    _case_loader = loading


def _is_ready() -> bool:
    return _case_loader is not None


def _load_batch(visits: list[Visit]) -> tuple[Any, dict[str, tuple[Any, TensorBytes]]]:
    assert _case_loader is not None
    loaded, new_items = _case_loader.load([_decode_visit(visit) for visit in visits])
    targets = loaded.targets if isinstance(loaded.targets, dict) else {"": loaded.targets}
    tensors = {"rows": loaded.rows, "inputs": loaded.inputs}
    tensors |= {} if loaded.spacing is None else {"spacing": loaded.spacing}
    has_disk_cache = _case_loader.cache is not None  # its items need not be sent back
    sent = {} if has_disk_cache else {key: (form, _to_bytes(some)) for key, (form, some) in new_items.items()}
    return (_to_bytes(tensors), _to_bytes(targets)), sent


def _decode_batch(loaded: tuple[TensorBytes, TensorBytes]) -> LoadedBatch:
    beside, targets = map(_from_bytes, loaded)
    return LoadedBatch(beside["rows"], beside["inputs"], targets.get("", targets), beside.get("spacing"))


def _encode_visit(visit: Visit) -> Visit:
    if visit.begun is None:
        return visit
    form, tensors = visit.begun
    return replace(visit, begun=(form, _to_bytes(tensors)))  # type: ignore[arg-type]


def _decode_visit(visit: Visit) -> Visit:
    if visit.begun is None:
        return visit
    form, flat = visit.begun
    return replace(visit, begun=(form, _from_bytes(flat)))  # type: ignore[arg-type]


def _to_bytes(tensors: Tensors) -> TensorBytes:
    return {
        name: (tensor.contiguous().reshape(-1).view(torch.uint8).numpy(), tensor.dtype, tuple(tensor.shape))
        for name, tensor in tensors.items()
    }


def _from_bytes(flat: TensorBytes) -> Tensors:
    return {name: torch.from_numpy(raw).view(kind).reshape(shape) for name, (raw, kind, shape) in flat.items()}
