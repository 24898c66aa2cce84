"""Load the cases of a batch: look up or compute their deterministic part, run the random transforms, and collate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from monai.data import MetaTensor
from monai.data.utils import affine_to_spacing

from medfl.data.transforms.cache import ItemCache
from medfl.data.transforms.cases import Case, case_digest, lacks_spacing
from medfl.data.transforms.chain import Chain, Item, one_thread
from medfl.data.transforms.packing import Packed, pack_item, unpack_item
from medfl.errors import DataError
from medfl.types import LoadedBatch, Targets

Collate = Callable[[Sequence[Any]], Any]
"""Function that makes a batch of several cases: MONAI's `list_data_collate` and similar functions."""

TargetCheck = Callable[[torch.Tensor, str, int], None]
"""Function that raises for invalid targets (`Objective.check_targets`).

It receives targets (1, ...), the name of the list and the row.
"""

Sample = dict[str, Any]
"""One sample for the network: maps the keys of the transforms, such as ``image`` and ``label``, to their values."""

GRID_TOLERANCE = 0.5
"""Tolerance in voxels between the grids of an image and its mask: less than half a voxel assigns no voxel wrongly."""


@dataclass
class Visit:
    """Request for one case in a batch.

    Attributes:
        row: Row of the case.
        seed: Seed of all random draws, >= 0.
        begun: Packed result of the deterministic transforms, if the requesting process has it in memory; loader
            processes receive it with the visit.
        key: Cache key of the result of the deterministic transforms; None without a cache.
    """

    row: int
    seed: int
    begun: Packed | None = None
    key: str | None = None


@dataclass
class CaseLoader:
    """Loader of the cases of a split; can be sent to loader processes.

    Attributes:
        cases: List of cases.
        chain: Chain of transforms.
        inputs: Key of the network's input.
        targets: Keys of the targets; one gives a tensor, several a dictionary.
        collate: Function that makes a batch of several cases.
        where: Name of the list, for messages.
        target_type: Data type of the targets; None keeps integers unchanged and converts other numbers to float32.
        check: Function that raises for invalid targets; called once for each case and process.
        cache: Disk cache, which loader processes can access too; None without one.
    """

    cases: Sequence[Case]
    chain: Chain
    inputs: str
    targets: tuple[str, ...]
    collate: Collate
    where: str
    target_type: torch.dtype | None = None
    check: TargetCheck | None = None
    cache: ItemCache | None = None
    _checked: set[int] = field(default_factory=set)

    def key(self, row: int) -> str:
        """Return the cache key of a case: digests of its content and of the transforms before the first random one."""
        return f"{case_digest(self.cases[row])[:32]}{self.chain.beginning_digest[:32]}"

    def begun(self, visit: Visit) -> tuple[Item, Packed | None]:
        """Return the result of the deterministic transforms for a visit: sent with it, from the cache, or computed now.

        Args:
            visit: The requested visit.

        Returns:
            The result, whose tensors are not shared with a cache, and its packed form if the result was computed now
            and the visit has a cache key; otherwise None.
        """
        case, place = self.cases[visit.row], f"row {visit.row} of {self.where}"
        if visit.begun is not None:
            return unpack_item(visit.begun, case, copy=True), None
        if visit.key is None:
            return self._begin(visit.row), None
        cached = None if self.cache is None else self.cache.get(visit.key)
        if cached is not None and self.cache is not None:
            return unpack_item(cached, case, copy=not self.cache.copies), None
        content = pack_item(self._begin(visit.row), case, place)
        if self.cache is not None:
            self.cache.put(visit.key, content)
        return unpack_item(content, case, copy=True), content

    def load(self, visits: Sequence[Visit]) -> tuple[LoadedBatch, dict[str, Packed]]:
        """Load a batch.

        Returns:
            The batch, and the newly computed packed items by their cache keys.

        Raises:
            DataError: If a case can't be loaded. The message names its row.
        """
        if not visits:
            targets = dict.fromkeys(self.targets, torch.empty(0))
            return LoadedBatch(torch.empty(0, dtype=torch.int64), torch.empty(0), plain_targets(targets)), {}
        items, new_items = [], dict[str, Packed]()
        for visit in visits:
            item, content = self.begun(visit)
            if content is not None and visit.key is not None:
                new_items[visit.key] = content
            if visit.row not in self._checked:  # before cropping, since patches of different grids may match in shape
                for sample in samples_of(item):
                    self._check_grids(visit.row, sample)
            items.append(self.chain.finish(item, visit.seed, visit.row, self.where))
        return self._collate([visit.row for visit in visits], items), new_items

    def _begin(self, row: int) -> Item:
        return self.chain.begin(self.cases[row], row, self.where)

    def _collate(self, rows: Sequence[int], items: Sequence[Item]) -> LoadedBatch:
        samples = [samples_of(item) for item in items]
        owners = torch.tensor([row for row, some in zip(rows, samples, strict=True) for _ in some], dtype=torch.int64)
        spacing = [self.check_sample(row, each) for row, some in zip(rows, samples, strict=True) for each in some]
        wanted = [[self._select(each) for each in some] for some in samples]
        lists = [some if isinstance(item, list) else some[0] for item, some in zip(items, wanted, strict=True)]
        try:
            with one_thread():
                batch = self.collate(lists)
        except Exception as error:
            shapes = sorted({tuple(np.shape(each[self.inputs])) for some in wanted for each in some})
            raise DataError(
                "failed_collation",
                f"the cases in rows {', '.join(map(str, rows))} of {self.where} make no batch "
                f"({type(error).__name__}): their inputs have the shapes {', '.join(map(str, shapes))}. Resize or "
                "crop them to one shape in the transforms, pad them (MONAI's pad_list_data_collate), or take batches "
                "of one case.",
                where=self.where,
                rows=list(rows),
                shapes=shapes,
                cause=type(error).__name__,
            ) from None
        inputs = torch.as_tensor(batch[self.inputs]).as_subclass(torch.Tensor).to(torch.float32)
        if len(inputs) != len(owners):
            raise DataError(
                "merged_samples",
                f"expected {len(owners)} samples in a batch of {self.where}, got {len(inputs)} from its collate "
                "function. Use one that keeps samples apart, such as MONAI's list_data_collate.",
                where=self.where,
                expected=len(owners),
                found=len(inputs),
            )
        targets = {key: self.target(batch[key]) for key in self.targets}
        self._check_targets(owners, targets)
        return LoadedBatch(owners, inputs, plain_targets(targets), torch.stack(spacing))

    def _check_targets(self, owners: torch.Tensor, targets: dict[str, torch.Tensor]) -> None:
        """Run the objective's check on the targets of cases that were not checked before."""
        for place, row in enumerate(owners.tolist()):
            if self.check is not None and row not in self._checked:
                for target in targets.values():
                    self.check(target[place : place + 1], self.where, row)
        self._checked.update(owners.tolist())

    def target(self, value: Any) -> torch.Tensor:
        """Convert the targets of a batch to a tensor of the requested data type.

        Raises:
            DataError: If integers are requested and the values are not whole numbers.
        """
        target = torch.as_tensor(value).as_subclass(torch.Tensor)
        kind = self.target_type
        if kind is None:
            return target.to(torch.float32) if target.is_floating_point() else target
        if target.is_floating_point() and not kind.is_floating_point and not bool((target == target.round()).all()):
            raise DataError(
                "interpolated_mask",
                f"expected integers as targets of {self.where}, got other numbers: a mask was interpolated. Give the "
                "mask's key the mode 'nearest' in each transform that resamples.",
                where=self.where,
            )
        return target.to(kind)

    def _select(self, sample: Sample) -> Sample:
        """Return a sample with input and targets only, as plain tensors and numbers without file metadata."""
        plain = {}
        for key in (self.inputs, *self.targets):
            value = sample[key]
            plain[key] = value.as_tensor() if isinstance(value, MetaTensor) else value
        return plain

    def check_sample(self, row: int, sample: Sample) -> torch.Tensor:
        """Check that a sample has input and targets of one shape, and return its spacing.

        Args:
            row: Row of the case.
            sample: The sample.

        Returns:
            Spacing along each spatial axis in millimetres; NaN if unknown.

        Raises:
            DataError: If an entry is missing or not loaded, or a mask has another shape than its image.
        """
        place = f"row {row} of {self.where}"
        for key in (self.inputs, *self.targets):
            if sample.get(key) is None or isinstance(sample[key], str):
                raise DataError(
                    "missing_transform_output",
                    f"expected '{key}' as numbers after the transforms for {place}, there is none. Have a transform "
                    "load it, and none drop it.",
                    where=self.where,
                    row=row,
                    key=key,
                )
        image = sample[self.inputs]
        for key in self.targets:
            _check_shapes(image, sample[key], key, place)
        return _unknown_spacing(image) if lacks_spacing(self.cases[row].get(self.inputs)) else _spacing(image)

    def _check_grids(self, row: int, sample: Sample) -> None:
        for key in self.targets:
            _check_grid(sample.get(self.inputs), sample.get(key), key, f"row {row} of {self.where}")


def plain_targets(targets: dict[str, torch.Tensor]) -> Targets:
    """Return the tensor if there is one target key, or the dictionary unchanged if there are several."""
    return next(iter(targets.values())) if len(targets) == 1 else targets


def samples_of(item: Item) -> list[Sample]:
    """Return the samples in a chain's result for one case as a list: one, or several if the chain crops patches."""
    return item if isinstance(item, list) else [item]


def _check_shapes(image: Any, mask: Any, key: str, place: str) -> None:
    """Raise if a mask has another spatial shape than its image."""
    if _are_spatial(image, mask) and tuple(mask.shape[1:]) != tuple(image.shape[1:]):
        raise DataError(
            "wrong_shape",
            f"expected '{key}' on the grid of its image, {tuple(image.shape[1:])}, got {tuple(mask.shape[1:])} for "
            f"{place}. Give the mask of that image, or bring both to one grid before the first random transform.",
            where=place,
            key=key,
            expected=tuple(image.shape[1:]),
            found=tuple(mask.shape[1:]),
        )


def _are_spatial(image: Any, mask: Any) -> bool:
    return np.ndim(mask) >= 3 and np.ndim(mask) == np.ndim(image)


def _check_grid(image: Any, mask: Any, key: str, place: str) -> None:
    """Raise if a mask's voxels are not at the positions of the image's voxels."""
    _check_shapes(image, mask, key, place)
    if not (_are_spatial(image, mask) and isinstance(image, MetaTensor) and isinstance(mask, MetaTensor)):
        return
    size = torch.tensor([each - 1 for each in image.shape[1:4]], dtype=torch.float64)
    corners = torch.cartesian_prod(*[torch.tensor([0.0, float(edge)], dtype=torch.float64) for edge in size])
    ends = torch.cat([corners.reshape(-1, len(size)), torch.ones(2 ** len(size), 1, dtype=torch.float64)], 1)
    rank = len(size) + 1
    away = (ends @ (_spatial_affine(image.affine, rank) - _spatial_affine(mask.affine, rank)).T).abs().max()
    if away > GRID_TOLERANCE * float(_spacing(image).min()):
        raise DataError(
            "misaligned_mask",
            f"expected '{key}' on the grid of its image, got one whose corners lie {float(away):.3g} mm away for "
            f"{place}. Correct the origin, spacing or orientation in the mask's file, or bring both to one grid before "
            "the first random transform.",
            where=place,
            key=key,
            distance=float(away),
        )


def _spatial_affine(affine: torch.Tensor, rank: int) -> torch.Tensor:
    """Return the affine of the first spatial axes, (rank, rank)."""
    whole = torch.as_tensor(affine).to("cpu", torch.float64)
    keep = [*range(rank - 1), whole.shape[-1] - 1]
    return whole[keep][:, keep]


def _spacing(image: Any) -> torch.Tensor:
    """Return the millimetres between neighbours along each spatial axis, (axes,), float64; NaN if unknown."""
    if not isinstance(image, MetaTensor):
        return _unknown_spacing(image)
    return torch.as_tensor(affine_to_spacing(image.affine, max(1, np.ndim(image) - 1))).to("cpu", torch.float64)


def _unknown_spacing(image: Any) -> torch.Tensor:
    return torch.full((max(1, np.ndim(image) - 1),), torch.nan, dtype=torch.float64)
