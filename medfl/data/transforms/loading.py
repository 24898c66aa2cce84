"""From rows to a batch: what a loader process does, or this process where there is none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from monai.data import MetaTensor
from monai.data.utils import affine_to_spacing

from medfl.data.transforms.cache import Cache
from medfl.data.transforms.cases import Case, case_digest, is_picture
from medfl.data.transforms.chain import Chain, Item, one_thread
from medfl.data.transforms.packing import Packed, packed, unpacked
from medfl.errors import DataError
from medfl.types import Loaded, Targets

Collate = Callable[[Sequence[Any]], Any]
"""What makes a batch of what the chain made of several cases: MONAI's `list_data_collate` and its like."""

Check = Callable[[torch.Tensor, str, int], None]
"""Refuses targets (1, ...) that can't be: of which list they are, and in which row (`Objective.check_targets`)."""

Sample = dict[str, Any]

HALF = 0.5
"""Voxels by which two grids may differ: less than that moves no voxel of a mask to another one of the image."""


@dataclass
class Visit:
    """One case of a batch.

    Attributes:
        row: Of the case.
        seed: Of what is random, >= 0.
        begun: Its beginning, where whoever asks has it; a loader process is handed it that way.
        key: The key of its beginning; None where nothing is cached.
    """

    row: int
    seed: int
    begun: Packed | None = None
    key: str | None = None


@dataclass
class Loading:
    """How the cases of a split become batches.

    Attributes:
        cases: The list.
        chain: The transforms.
        inputs: Key of what the network takes.
        targets: Keys of what is to be learned; one of them gives a tensor, several a dictionary.
        collate: Makes a batch of what the chain made of several cases.
        where: What the list belongs to, for messages.
        target_type: Of whole-number targets; None leaves them as they come.
        check: Refuses targets that can't be; called once for each case and process.
        cache: Where beginnings are kept that a loader process can reach, which is a folder.
    """

    cases: Sequence[Case]
    chain: Chain
    inputs: str
    targets: tuple[str, ...]
    collate: Collate
    where: str
    target_type: torch.dtype | None = None
    check: Check | None = None
    cache: Cache | None = None
    _checked: set[int] = field(default_factory=set)

    def key(self, row: int) -> str:
        """What the beginning of a case is known by: its content and the transforms before the first random one."""
        return f"{case_digest(self.cases[row])[:32]}{self.chain.beginning_digest[:32]}"

    def begun(self, visit: Visit) -> tuple[Item, Packed | None]:
        """The beginning of a case, in memory of its own, and in the form to keep if it was made just now."""
        case, place = self.cases[visit.row], f"row {visit.row} of {self.where}"
        if visit.begun is not None:
            return unpacked(visit.begun, case, copy=True), None
        if visit.key is None:
            return self._fresh(visit.row), None
        kept = None if self.cache is None else self.cache.get(visit.key)
        if kept is not None and self.cache is not None:
            return unpacked(kept, case, copy=not self.cache.copies), None
        content = packed(self._fresh(visit.row), case, place)
        if self.cache is not None:
            self.cache.put(visit.key, content)
        return unpacked(content, case, copy=True), content

    def load(self, visits: Sequence[Visit]) -> tuple[Loaded, dict[str, Packed]]:
        """A batch, and the beginnings that were made for it, by their keys.

        Raises:
            DataError: If a case can't be made, naming its row.
        """
        if not visits:
            targets = dict.fromkeys(self.targets, torch.empty(0))
            return Loaded(torch.empty(0, dtype=torch.int64), torch.empty(0), plain_targets(targets)), {}
        items, made = [], dict[str, Packed]()
        for visit in visits:
            item, content = self.begun(visit)
            if content is not None and visit.key is not None:
                made[visit.key] = content
            if visit.row not in self._checked:  # patches of unlike grids may well have one shape
                for sample in samples_of(item):
                    self._check_grids(visit.row, sample)
            items.append(self.chain.finish(item, visit.seed, visit.row, self.where))
        return self._batch([visit.row for visit in visits], items), made

    def _fresh(self, row: int) -> Item:
        return self.chain.begin(self.cases[row], row, self.where)

    def _batch(self, rows: Sequence[int], items: Sequence[Item]) -> Loaded:
        samples = [samples_of(item) for item in items]
        owners = torch.tensor([row for row, some in zip(rows, samples, strict=True) for _ in some], dtype=torch.int64)
        spacing = [self.check_sample(row, each) for row, some in zip(rows, samples, strict=True) for each in some]
        wanted = [[self._wanted(each) for each in some] for some in samples]
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
        return Loaded(owners, inputs, plain_targets(targets), torch.stack(spacing))

    def _check_targets(self, owners: torch.Tensor, targets: dict[str, torch.Tensor]) -> None:
        """What the objective says of the targets of cases that come for the first time."""
        for place, row in enumerate(owners.tolist()):
            if self.check is not None and row not in self._checked:
                for target in targets.values():
                    self.check(target[place : place + 1], self.where, row)
        self._checked.update(owners.tolist())

    def target(self, value: Any) -> torch.Tensor:
        """A batch of targets of the type that is wanted.

        Raises:
            DataError: If whole numbers are wanted, and these are not.
        """
        target = torch.as_tensor(value).as_subclass(torch.Tensor)
        kind = self.target_type
        if kind is None:
            return target.to(torch.float32) if target.is_floating_point() else target
        if target.is_floating_point() and not kind.is_floating_point and not bool((target == target.round()).all()):
            raise DataError(
                "interpolated_mask",
                f"expected whole numbers as targets of {self.where}, got others: a mask was interpolated. Give the "
                "mask's key the mode 'nearest' in each transform that resamples.",
                where=self.where,
            )
        return target.to(kind)

    def _wanted(self, sample: Sample) -> Sample:
        """A sample with what goes on only: plain tensors and numbers, without facts of a file."""
        plain = {}
        for key in (self.inputs, *self.targets):
            value = sample[key]
            plain[key] = value.as_tensor() if isinstance(value, MetaTensor) else value
        return plain

    def check_sample(self, row: int, sample: Sample) -> torch.Tensor:
        """The spacing of a sample, after a check that what the network needs is there and lies on one grid."""
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
        return _unknown(image) if is_picture(self.cases[row].get(self.inputs)) else _spacing(image)

    def _check_grids(self, row: int, sample: Sample) -> None:
        for key in self.targets:
            _check_grid(sample.get(self.inputs), sample.get(key), key, f"row {row} of {self.where}")


def plain_targets(targets: dict[str, torch.Tensor]) -> Targets:
    """The only target, or all by their keys."""
    return next(iter(targets.values())) if len(targets) == 1 else targets


def samples_of(item: Item) -> list[Sample]:
    """The samples that a chain made of a case."""
    return item if isinstance(item, list) else [item]


def _check_shapes(image: Any, mask: Any, key: str, place: str) -> None:
    """Refuse a mask of another spatial shape than its image has."""
    if _in_space(image, mask) and tuple(mask.shape[1:]) != tuple(image.shape[1:]):
        raise DataError(
            "wrong_shape",
            f"expected '{key}' on the grid of its image, {tuple(image.shape[1:])}, got {tuple(mask.shape[1:])} for "
            f"{place}. Give the mask of that image, or bring both to one grid before the first random transform.",
            where=place,
            key=key,
            expected=tuple(image.shape[1:]),
            found=tuple(mask.shape[1:]),
        )


def _in_space(image: Any, mask: Any) -> bool:
    return np.ndim(mask) >= 3 and np.ndim(mask) == np.ndim(image)


def _check_grid(image: Any, mask: Any, key: str, place: str) -> None:
    """Refuse a mask whose voxels are not those of its image."""
    _check_shapes(image, mask, key, place)
    if not (_in_space(image, mask) and isinstance(image, MetaTensor) and isinstance(mask, MetaTensor)):
        return
    size = torch.tensor([each - 1 for each in image.shape[1:4]], dtype=torch.float64)
    corners = torch.cartesian_prod(*[torch.tensor([0.0, float(edge)], dtype=torch.float64) for edge in size])
    ends = torch.cat([corners.reshape(-1, len(size)), torch.ones(2 ** len(size), 1, dtype=torch.float64)], 1)
    rank = len(size) + 1
    away = (ends @ (_square(image.affine, rank) - _square(mask.affine, rank)).T).abs().max()
    if away > HALF * float(_spacing(image).min()):
        raise DataError(
            "misaligned_mask",
            f"expected '{key}' on the grid of its image, got one whose corners lie {float(away):.3g} mm away for "
            f"{place}. Correct the origin, spacing or orientation in the mask's file, or bring both to one grid before "
            "the first random transform.",
            where=place,
            key=key,
            distance=float(away),
        )


def _square(affine: torch.Tensor, rank: int) -> torch.Tensor:
    """An affine of the first spatial axes, (rank, rank)."""
    whole = torch.as_tensor(affine).to("cpu", torch.float64)
    keep = [*range(rank - 1), whole.shape[-1] - 1]
    return whole[keep][:, keep]


def _spacing(image: Any) -> torch.Tensor:
    """Millimetres between neighbours along each spatial axis, (axes,), float64; NaN where nothing is known."""
    if not isinstance(image, MetaTensor):
        return _unknown(image)
    return torch.as_tensor(affine_to_spacing(image.affine, max(1, np.ndim(image) - 1))).to("cpu", torch.float64)


def _unknown(image: Any) -> torch.Tensor:
    return torch.full((max(1, np.ndim(image) - 1),), torch.nan, dtype=torch.float64)
