"""A data set that is a list of cases and a chain of MONAI's transforms, as a bundle has it."""

from __future__ import annotations

import functools
import hashlib
import json
import multiprocessing
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from monai.data import list_data_collate

from medfl.data.pooled import joined
from medfl.data.transforms.cache import DiskCache, MemoryCache
from medfl.data.transforms.cases import Case, case_digest, check_cases
from medfl.data.transforms.chain import Chain
from medfl.data.transforms.loaders import load_ahead
from medfl.data.transforms.loading import Check, Collate, Loading, Sample, Visit, plain_targets, samples_of
from medfl.data.transforms.packing import Packed
from medfl.errors import DataError, SettingsError
from medfl.types import Dataset, Loaded, Targets
from medfl.utils.seeds import seed_of

CacheKind = Literal["memory", "disk", "none"]
"""Where the beginnings of cases are kept."""

UNCHANGING = 0
"""The stream of `TransformDataset.batch`, which gives the same samples each time."""


SMALL = 64
"""Numbers in a target above which it is not kept: a mask."""


class TransformDataset:
    """Cases of one split of one site, each made by transforms whenever it is visited; it fulfils `medfl.types.Visited`.

    The transforms before the first random one run once for each case; `cache` says where their result is kept, known by
    the content of the case's files and by the transforms, so that a change of either is never overlooked. The other
    transforms run at each visit, with MONAI's generators, torch's, numpy's and python's seeded by (stream, row, visit):
    what a visit gives depends on nothing else, not on the number of loaders and not on what was visited before.

    A chain that cuts a case into patches gives as many samples. Of the facts that a reader finds beside an image only
    the grid is kept (`medfl.data.transforms.chain.KEPT_META`), and only numbers leave the data set.

    Args:
        cases: Dictionaries as the transforms expect them, n of them.
        transform: A `Compose`, or what makes one.
        inputs: Key of what the network takes, (C, *spatial) after the transforms.
        targets: Key of what is to be learned; with several keys targets are dictionaries.
        collate: Makes batches, as a bundle's data loader does: MONAI's `list_data_collate`, `pad_list_data_collate`.
        cache: ``memory``, ``disk`` or ``none``.
        cache_dir: The folder of the cache on disk.
        loaders: Processes that load ahead, >= 0; with 0, and within a worker process of a run, this process loads.
        class_labels: The class of each case, shape (n,), where each is of one.
        patients: For each case a number that cases of one patient share; None if no two are of one patient.
        target_type: Type of the targets; None leaves whole numbers as they come and makes others float32.
        check: Refuses targets that can't be (`Objective.check_targets`); called once for each case.
        where: What the list belongs to, for messages, for example ``site 'site-01', split 'training'``.

    Raises:
        DataError: If a case lacks an entry or a file.
        SettingsError: If the cache or the number of loaders can't be.
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
        check: Check | None = None,
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
        self._loading = Loading(cases, chain, inputs, keys, collate, where, target_type, check, disk)
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
        """SHA-256 over the content of all cases in their order and over the transforms; it reads all files once."""
        parts = [case_digest(case) for case in self._loading.cases]
        return hashlib.sha256(json.dumps([self._loading.chain.digest, *parts]).encode()).hexdigest()

    def batch(self, rows: torch.Tensor) -> tuple[torch.Tensor, Targets]:
        """Inputs (B, C, *spatial), float32, and targets (B, ...) of the given rows; the same ones each time.

        Args:
            rows: Positions within this split, each in [0, len(self)), shape (B,), int64.

        Raises:
            DataError: If a case can't be made, or cases make no batch; the rows are named.
        """
        loaded = self._load([self._visit(UNCHANGING, row, 0) for row in rows.tolist()])
        return loaded.inputs, loaded.targets

    def targets(self, rows: torch.Tensor) -> Targets:
        """Targets (B, ...) of the given rows as in `batch`.

        Nothing is loaded where the list itself has them; small ones (`SMALL`) are loaded once and kept.

        Args:
            rows: As for `batch`.

        Raises:
            DataError: As `batch`.
        """
        chain, keys = self._loading.chain, self._loading.targets
        if not len(rows):
            return self.batch(rows)[1]
        if any(chain.touches(key) for key in keys):
            return self._kept_targets(rows)
        cases = [self._loading.cases[row] for row in rows.tolist()]
        return plain_targets({key: self._loading.target([case[key] for case in cases]) for key in keys})

    def _kept_targets(self, rows: torch.Tensor) -> Targets:
        wanted = rows.tolist()
        if not all(row in self._targets for row in wanted):
            targets = self.batch(rows)[1]
            if not isinstance(targets, torch.Tensor) or len(targets) != len(rows) or targets[0].numel() > SMALL:
                return targets
            self._targets |= {row: target.clone() for row, target in zip(wanted, targets, strict=True)}
        return torch.stack([self._targets[row] for row in wanted])

    def visits(self, batches: Iterable[torch.Tensor], stream: int) -> Iterator[Loaded]:
        """Each batch in turn, as `medfl.types.Visited` says.

        Raises:
            DataError: As `batch`.
            SettingsError: If loader processes can't be started.
        """
        visits = self._counted(batches, stream)
        if self._loaders and not multiprocessing.current_process().daemon:
            yield from load_ahead(self._loading, visits, self._loaders, self._keep, self._look_up)
        else:
            yield from map(self._load, visits)

    def beginnings(self) -> Iterator[list[Sample]]:
        """What each case is before its first random transform, and before anything is made of several: its samples.

        Raises:
            DataError: If a case can't be made, or the network's input is not loaded by then; the row is named.
        """
        for row in range(len(self)):
            visit = self._look_up(self._visit(UNCHANGING, row, 0))
            item, content = self._loading.begun(visit)
            if content is not None and visit.key is not None:
                self._keep(visit.key, content)
            samples = samples_of(item)
            for sample in samples:
                self._loading.check_sample(row, sample)
            yield samples

    def pooled_with(self, parts: Sequence[Dataset]) -> TransformDataset:
        """Return data sets of cases as one data set with their common transforms.

        Args:
            parts: Data sets to pool, in this order; this one is among them.

        Raises:
            DataError: If a part has other transforms or none.
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
        patients = joined([part.patients for part in chained], [len(part) for part in chained])
        return TransformDataset(
            [case for part in chained for case in part._loading.cases],
            loading.chain.transform,
            loading.inputs,
            loading.targets,
            loading.collate,
            self._cache,
            self._cache_dir,
            self._loaders,
            torch.cat(labels) if len(labels) == len(chained) else None,
            None if patients is None else patients.tolist(),
            loading.target_type,
            loading.check,
            "the pooled sites",
        )

    def _counted(self, batches: Iterable[torch.Tensor], stream: int) -> Iterator[list[Visit]]:
        """The visits of each batch with their seeds."""
        counts = Counter[int]()
        for rows in batches:
            visits = []
            for row in rows.tolist():
                visits.append(self._visit(stream, row, counts[row]))
                counts[row] += 1
            yield visits

    def _visit(self, stream: int, row: int, count: int) -> Visit:
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} is outside this split of {len(self)} cases")
        return Visit(row, seed_of(stream, "visit", row, count))

    def _load(self, visits: Sequence[Visit]) -> Loaded:
        """A batch, loaded in this process."""
        loaded, made = self._loading.load([self._look_up(visit) for visit in visits])
        for key, content in made.items():
            self._keep(key, content)
        return loaded

    def _look_up(self, visit: Visit) -> Visit:
        """A visit with the key of its beginning, and with the beginning itself if this process keeps it."""
        if self._cache == "none":
            return visit
        key = self._loading.key(visit.row)
        return replace(visit, key=key, begun=None if self._memory is None else self._memory.get(key))

    def _keep(self, key: str, content: Packed) -> None:
        if self._memory is not None:
            self._memory.put(key, content)
