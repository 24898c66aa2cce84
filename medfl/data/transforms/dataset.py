"""Data set of a list of cases and a chain of MONAI transforms, as a bundle defines it."""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import multiprocessing
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from monai.data import list_data_collate

from medfl.data.pooled import concatenate_patients
from medfl.data.transforms.cache import DiskCache, MemoryCache
from medfl.data.transforms.cases import Case, case_digest, check_cases
from medfl.data.transforms.chain import Chain
from medfl.data.transforms.loaders import load_ahead
from medfl.data.transforms.loading import CaseLoader, Collate, TargetCheck, Visit, plain_targets
from medfl.data.transforms.packing import Packed
from medfl.errors import DataError, SettingsError
from medfl.types import Dataset, LoadedBatch, Targets
from medfl.utils.seeds import seed_of

CacheKind = Literal["memory", "disk", "none"]
"""Location of the cache for the results of deterministic transforms: the process's memory, a folder, or no cache."""

FIXED_STREAM = 0
"""Seed of the random transforms in `TransformDataset.batch`, so that it returns the same samples each time."""


MAX_CACHED_TARGET_SIZE = 64
"""Maximum number of elements of a target that is kept in memory. Larger targets are masks."""


class TransformDataset:
    """Cases of one split of one site, transformed at each visit; implements `medfl.types.AugmentingDataset`.

    The transforms before the first random one run once for each case. `cache` decides where their result is stored. Its
    key contains the content of the case's files and the transforms, so that any change is noticed. The other transforms
    run at each visit. The generators of MONAI, torch, NumPy and Python are then seeded by (stream, row, visit number),
    so the result depends on nothing else: not on the number of loaders and not on earlier visits.

    A chain that crops a case into patches gives as many samples. Of an image's metadata only the grid is kept
    (`medfl.data.transforms.chain.KEPT_META`), and only numbers leave the data set.

    Args:
        cases: Dictionaries as the transforms expect them, n of them.
        transform: A `Compose`, or the argument for one.
        inputs: Key of the network's input, (C, *spatial) after the transforms.
        targets: Key of the target; with several keys, targets are dictionaries.
        collate: Function that makes batches, as in a bundle's data loader: MONAI's `list_data_collate` or
            `pad_list_data_collate`.
        cache: ``memory``, ``disk`` or ``none``.
        cache_dir: Folder of the disk cache.
        loaders: Number of processes that load ahead, >= 0. With 0, and in a worker process of a run, this process
            loads.
        class_labels: Class label of each case, shape (n,), if cases have one.
        patients: Patient number of each case, shared by cases of one patient; None if no two cases share a patient.
        target_type: Data type of the targets; None keeps integers unchanged and converts other numbers to float32.
        check: Function that raises for invalid targets (`Objective.check_targets`); called once for each case.
        where: Name of the list, for messages, for example ``site 'site-01', split 'training'``.

    Attributes:
        inputs: Key of the network's input.
        target_keys: Keys of the targets.
        class_labels: Class label of each case, shape (n,), int64; None if cases have none.
        patients: Patient number of each case, shape (n,), int64; None if no two cases share a patient.

    Raises:
        DataError: If a case lacks an entry or a file.
        SettingsError: If `cache` and `cache_dir` do not fit together, or `loaders` is negative.
    """

    def __init__(
        self,
        cases: Sequence[Case],
        transform: Callable[..., Any] | Sequence[Callable[..., Any]],
        inputs: str = "image",
        targets: str | Sequence[str] = "label",
        collate: Collate = list_data_collate,
        cache: CacheKind = "memory",
        cache_dir: Path | None = None,
        loaders: int = 0,
        class_labels: Sequence[int] | torch.Tensor | None = None,
        patients: Sequence[int] | None = None,
        target_type: torch.dtype | None = None,
        check: TargetCheck | None = None,
        where: str = "the list",
    ) -> None:
        if cache not in ("memory", "disk", "none") or (cache == "disk") != (cache_dir is not None):
            raise SettingsError(
                "incompatible_settings",
                f"expected cache 'memory' or 'none', or 'disk' with a folder, got '{cache}' with "
                f"{'a' if cache_dir else 'no'} folder for {where}.",
                where=where,
                settings=["cache", "cache_dir"],
                cache=cache,
            )
        if loaders < 0:
            raise SettingsError(
                "setting_out_of_range",
                f"expected 0 or more loader processes for {where}, got {loaders}.",
                where=where,
                setting="loaders",
                minimum=0,
                found=loaders,
            )
        keys = (targets,) if isinstance(targets, str) else tuple(targets)
        chain = Chain(transform)
        check_cases(cases, (inputs, *keys), chain.loaded, where)
        disk = None if cache_dir is None else DiskCache(cache_dir)
        self._loading = CaseLoader(
            cases=cases,
            chain=chain,
            inputs=inputs,
            targets=keys,
            collate=collate,
            where=where,
            target_type=target_type,
            check=check,
            cache=disk,
        )
        self._targets: dict[int, torch.Tensor] = {}
        self._memory = MemoryCache() if cache == "memory" else None
        self._cache, self._cache_dir, self._loaders = cache, cache_dir, loaders
        self.inputs, self.target_keys = inputs, keys
        labels = None if class_labels is None else torch.as_tensor(class_labels, dtype=torch.int64)
        self.class_labels = labels
        self.patients = None if patients is None else torch.tensor(patients, dtype=torch.int64)

    def __len__(self) -> int:
        return len(self._loading.cases)

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 over the content of all cases and over the transforms; the first access reads all files."""
        parts = [case_digest(case) for case in self._loading.cases]
        return hashlib.sha256(json.dumps([self._loading.chain.digest, *parts]).encode()).hexdigest()

    def batch(self, rows: torch.Tensor) -> tuple[torch.Tensor, Targets]:
        """Return the inputs (B, C, *spatial), float32, and the targets (B, ...) of rows; the same each time.

        Args:
            rows: Positions within this split, each in [0, len(self)), shape (B,), int64.

        Raises:
            DataError: If a case can't be loaded, or the cases can't be collated. The message names the rows.
        """
        loaded = self._load([self._visit(FIXED_STREAM, row, 0) for row in rows.tolist()])
        return loaded.inputs, loaded.targets

    def targets(self, rows: torch.Tensor) -> Targets:
        """Return the targets (B, ...) of rows as in `batch`.

        Nothing is loaded if no transform changes the targets in the list. Otherwise small targets (up to
        `MAX_CACHED_TARGET_SIZE` elements) are loaded once and kept.

        Args:
            rows: As in `batch`.

        Raises:
            DataError: As in `batch`.
        """
        chain, keys = self._loading.chain, self._loading.targets
        if not len(rows):
            return self.batch(rows)[1]
        if any(chain.touches(key) for key in keys):
            return self._cached_targets(rows)
        cases = [self._loading.cases[row] for row in rows.tolist()]
        return plain_targets({key: self._loading.target([case[key] for case in cases]) for key in keys})

    def _cached_targets(self, rows: torch.Tensor) -> Targets:
        """Return the targets of rows from memory; load missing ones and keep them if they are small."""
        wanted = rows.tolist()
        if not all(row in self._targets for row in wanted):
            targets = self.batch(rows)[1]
            is_one_per_row = isinstance(targets, torch.Tensor) and len(targets) == len(rows)
            if not is_one_per_row or targets[0].numel() > MAX_CACHED_TARGET_SIZE:
                return targets
            self._targets |= {row: target.clone() for row, target in zip(wanted, targets, strict=True)}
        return torch.stack([self._targets[row] for row in wanted])

    def visits(self, batches: Iterable[torch.Tensor], stream: int, skip: int = 0) -> Iterator[LoadedBatch]:
        """Load batches with new random draws and yield each in turn. A row that occurs again is transformed anew.

        Args:
            batches: Rows of each batch, each shape (B,).
            stream: Seed of the visits, >= 0.
            skip: Number of batches at the beginning that count as visits, but are not loaded.

        Raises:
            DataError: As in `batch`.
            SettingsError: If loader processes can't be started.
        """
        visits = itertools.islice(self._visits_of_batches(batches, stream), skip, None)
        if self._loaders and not multiprocessing.current_process().daemon:
            yield from load_ahead(self._loading, visits, self._loaders, self._store_in_memory, self._look_up)
        else:
            yield from map(self._load, visits)

    def pooled_with(self, parts: Sequence[Dataset]) -> TransformDataset:
        """Return several data sets as one data set with their common transforms.

        Args:
            parts: Data sets to pool, in this order; this one is among them.

        Raises:
            DataError: If a part has no transforms, or other transforms.
        """
        chained = [part for part in parts if isinstance(part, TransformDataset)]
        loading = self._loading
        if len(chained) < len(parts) or len({part._loading.chain.digest for part in chained}) > 1:
            raise DataError(
                "different_transforms",
                "expected the same transforms at all sites whose data are pooled, got different ones. Give them one "
                "chain, or choose a method that pools no data.",
            )
        labels = [part.class_labels for part in chained if part.class_labels is not None]
        patients = concatenate_patients([part.patients for part in chained], [len(part) for part in chained])
        return TransformDataset(
            cases=[case for part in chained for case in part._loading.cases],
            transform=loading.chain.transform,
            inputs=loading.inputs,
            targets=loading.targets,
            collate=loading.collate,
            cache=self._cache,
            cache_dir=self._cache_dir,
            loaders=self._loaders,
            class_labels=torch.cat(labels) if len(labels) == len(chained) else None,
            patients=None if patients is None else patients.tolist(),
            target_type=loading.target_type,
            check=loading.check,
            where="the pooled sites",
        )

    def _visits_of_batches(self, batches: Iterable[torch.Tensor], stream: int) -> Iterator[list[Visit]]:
        """Yield the visits of each batch with their seeds."""
        counts = Counter[int]()
        for rows in batches:
            visits = []
            for row in rows.tolist():
                visits.append(self._visit(stream, row, counts[row]))
                counts[row] += 1
            yield visits

    def _visit(self, stream: int, row: int, count: int) -> Visit:
        """Return the visit of a row with the seed that follows from stream, row and number of earlier visits."""
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} is outside this split of {len(self)} cases")
        return Visit(row, seed_of(stream, "visit", row, count))

    def _load(self, visits: Sequence[Visit]) -> LoadedBatch:
        """Load a batch in this process."""
        loaded, new_items = self._loading.load([self._look_up(visit) for visit in visits])
        for key, content in new_items.items():
            self._store_in_memory(key, content)
        return loaded

    def _look_up(self, visit: Visit) -> Visit:
        """Return a visit with its cache key, and with the cached item if this process has it in memory."""
        if self._cache == "none":
            return visit
        key = self._loading.key(visit.row)
        return replace(visit, key=key, begun=None if self._memory is None else self._memory.get(key))

    def _store_in_memory(self, key: str, content: Packed) -> None:
        """Store an item in the memory cache, if there is one."""
        if self._memory is not None:
            self._memory.put(key, content)
