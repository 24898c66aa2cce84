"""Split a chain of MONAI transforms into a deterministic beginning, whose results can be cached, and a random end."""

from __future__ import annotations

import contextlib
import copy
import re
import traceback
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from monai.data import MetaTensor, get_track_meta
from monai.transforms import (
    ClassesToIndicesd,
    Compose,
    FgBgToIndicesd,
    LoadImaged,
    RandCropByLabelClassesd,
    RandCropByPosNegLabeld,
    Transform,
)
from monai.transforms.traits import RandomizableTrait

from medfl.data.transforms.cases import Case
from medfl.errors import DataError
from medfl.utils.configuration import OpaqueError, configuration_digest
from medfl.utils.rng import seeded_generators

Item = dict[str, Any] | list[dict[str, Any]]
"""Result of a chain for one case: a dictionary, or several dictionaries if the chain crops patches."""

KEPT_META = ("affine", "original_affine", "spatial_shape", "space", "original_channel_dim")
"""Keys of the metadata of an image that a chain keeps. They describe the grid; file names and headers are removed."""

INDICES_SUFFIX = "_medfl_indices"
"""Suffix of the keys under which the voxel indices of a mask's classes are cached."""

_FAILED_TRANSFORM = re.compile(r"applying transform <([\w.]+)")
"""Pattern of MONAI's message about a failed transform; the transform's own error is the cause of that exception."""

_SEED_LIMIT = 2**32 - 1
"""Upper bound of the seeds of NumPy's generators, and therefore of MONAI's."""


class Chain:
    """Chain of transforms, split before its first random transform, as in MONAI's cached data sets.

    The beginning also ends before a transform that is no `monai.transforms.Transform` or that can't be described. If
    the first random transform crops patches around labels (`RandCropByPosNegLabeld`, `RandCropByLabelClassesd`), it
    receives exactly the result of the beginning. The voxel indices of the labels are then computed in the beginning
    too.

    Args:
        transform: A `Compose`, or the argument for one.

    Attributes:
        transform: The whole chain, with the computation of indices inserted.
        end: Number of transforms in the beginning, which is the index of the first random transform.
        digest: SHA-256 over everything that decides the chain's results (`medfl.utils.configuration`).
        beginning_digest: SHA-256 over everything that decides the results of the beginning.
    """

    def __init__(self, transform: Callable[..., Any] | Sequence[Callable[..., Any]]) -> None:
        chain = transform if isinstance(transform, Compose) else Compose(transform)
        described = [_transform_digest(each) for each in chain.transforms]
        stops = [_is_random(each) or text is None for each, text in zip(chain.transforms, described, strict=True)]
        self.end = stops.index(True) if True in stops else len(stops)
        self.transform = _add_cached_indices(chain, self.end)
        if len(self.transform.transforms) > len(chain.transforms):
            described.insert(self.end, _transform_digest(self.transform.transforms[self.end]))
            self.end += 1
        frame = [chain.map_items, chain.unpack_items, chain.lazy, repr(chain.overrides), get_track_meta()]
        self.beginning_digest = configuration_digest([frame, *described[: self.end]])
        names = [type(each).__qualname__ for each in self.transform.transforms]
        self.digest = configuration_digest([frame, *described, names])

    @property
    def loaded(self) -> set[str]:
        """Keys whose files the chain reads."""
        loaders = [each for each in self.transform.flatten().transforms if isinstance(each, LoadImaged)]
        return {str(key) for each in loaders if not each.allow_missing_keys for key in each.keys}

    def touches(self, key: str) -> bool:
        """Return True if a transform may change the entry of a key."""
        return any(key in getattr(each, "keys", (key,)) for each in self.transform.flatten().transforms)

    def begin(self, case: Case, row: int, where: str) -> Item:
        """Run the beginning on a case; of the images' metadata only `KEPT_META` are kept.

        Args:
            case: The case.
            row: Row of the case, for messages.
            where: Name of the list, for messages.

        Raises:
            DataError: If a transform fails or returns no dictionary. The message names the row.
        """
        with _row_in_errors(row, where), seeded_generators("transforms", "beginning", gpu=False), one_thread():
            item = self.transform(copy.deepcopy(dict(case)), end=self.end)
        return _strip_metadata(_check_item(item, row, where))

    def finish(self, item: Item, seed: int, row: int, where: str) -> Item:
        """Run the random end on the result of `begin`, which may be changed in place.

        Args:
            item: Result of `begin`.
            seed: Seed of all random draws, >= 0.
            row: Row of the case, for messages.
            where: Name of the list, for messages.

        Raises:
            DataError: As in `begin`.
        """
        if self.end == len(self.transform.transforms):
            return item
        with _row_in_errors(row, where), seeded_generators("transforms", seed, gpu=False), one_thread():
            self.transform.set_random_state(seed=seed % _SEED_LIMIT)
            ready = self.transform(item, start=self.end)
        return _check_item(ready, row, where)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Run torch in one thread in this block, because floating-point sums depend on the number of threads."""
    threads = torch.get_num_threads()
    if threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class LabelIndices(Transform):
    """Transform that computes the voxel indices of a mask's classes for a patch cropper.

    The indices are stored as int32 if possible, which halves their size.

    Args:
        finder: MONAI's transform that finds the indices, with `INDICES_SUFFIX` in its postfixes.
    """

    def __init__(self, finder: FgBgToIndicesd | ClassesToIndicesd) -> None:
        self.finder = finder

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        """Return the item with its indices."""
        item: dict[Hashable, Any] = self.finder(data)
        return {key: _to_int32(value) if INDICES_SUFFIX in str(key) else value for key, value in item.items()}


def _to_int32(indices: Any) -> Any:
    if isinstance(indices, list):
        return [_to_int32(each) for each in indices]
    plain = torch.as_tensor(indices).as_subclass(torch.Tensor)
    return plain.to(torch.int32) if not len(plain) or int(plain[-1]) < 2**31 else plain


def _add_cached_indices(chain: Compose, end: int) -> Compose:
    """Return the chain with the label indices computed in its beginning, if its first random transform needs them."""
    cutter = chain.transforms[end] if end < len(chain.transforms) else None
    if chain.lazy is not False or getattr(cutter, "lazy", False):
        return chain
    finder: FgBgToIndicesd | ClassesToIndicesd
    if type(cutter) is RandCropByPosNegLabeld and cutter.fg_indices_key is None:
        key, cutter = cutter.label_key, copy.deepcopy(cutter)
        cutter.fg_indices_key, cutter.bg_indices_key = f"{key}{INDICES_SUFFIX}_fg", f"{key}{INDICES_SUFFIX}_bg"
        threshold = cutter.cropper.image_threshold
        finder = FgBgToIndicesd(key, f"{INDICES_SUFFIX}_fg", f"{INDICES_SUFFIX}_bg", cutter.image_key, threshold)
    elif type(cutter) is RandCropByLabelClassesd and cutter.indices_key is None:
        key, cutter = cutter.label_key, copy.deepcopy(cutter)
        cutter.indices_key, cropper = f"{key}{INDICES_SUFFIX}", cutter.cropper
        finder = ClassesToIndicesd(
            key,
            INDICES_SUFFIX,
            cropper.num_classes,
            cutter.image_key,
            cropper.image_threshold,
            max_samples_per_class=cropper.max_samples_per_class,
        )
    else:
        return chain
    transforms = [*chain.transforms[:end], LabelIndices(finder), cutter, *chain.transforms[end + 1 :]]
    return Compose(transforms, chain.map_items, chain.unpack_items, chain.log_stats, chain.lazy, chain.overrides)


def _is_random(transform: Any) -> bool:
    """Return True if a transform ends the cached part by MONAI's rule; nested chains are searched."""
    if type(transform) is Compose:
        return any(map(_is_random, transform.transforms))
    return isinstance(transform, RandomizableTrait) or not isinstance(transform, Transform)


def _transform_digest(transform: Any) -> str | None:
    """Return the digest of a transform's configuration, or None if it can't be described."""
    try:
        return configuration_digest(transform)
    except OpaqueError:
        return None


def _strip_metadata(item: Any) -> Any:
    """Return an item without image metadata other than `KEPT_META`, and without the trace of applied transforms."""
    if isinstance(item, MetaTensor):
        return MetaTensor(item.as_tensor(), meta={name: item.meta[name] for name in KEPT_META if name in item.meta})
    if isinstance(item, list | tuple):
        return [_strip_metadata(each) for each in item]
    if isinstance(item, dict):
        plain = {key: _strip_metadata(value) for key, value in item.items() if not str(key).endswith("_transforms")}
        headers = [key for key in plain if str(key).endswith("_meta_dict")]
        return plain | {key: {name: plain[key][name] for name in KEPT_META if name in plain[key]} for key in headers}
    return item


def _check_item(item: Any, row: int, where: str) -> Item:
    """Return the item if it is a dictionary or a non-empty list of dictionaries; otherwise raise."""
    if isinstance(item, dict) or (isinstance(item, list) and item and all(isinstance(each, dict) for each in item)):
        return item
    got = "nothing" if item is None or item == [] else type(item).__name__
    raise DataError(
        "wrong_transform_output",
        f"expected a dictionary, or a list of some, from the transforms for row {row} of {where}, got {got}. Each "
        "transform must return its result.",
        where=where,
        row=row,
        found=got,
    )


@contextlib.contextmanager
def _row_in_errors(row: int, where: str) -> Iterator[None]:
    """Convert errors of the block into DataErrors that name the row and the transform.

    The text of the original error is not repeated, because it may contain the name of a file or a person.
    """
    try:
        yield
    except MemoryError:
        raise DataError(
            "memory_exhausted",
            f"out of memory for row {row} of {where}. Crop or resample the images.",
            where=where,
            row=row,
        ) from None
    except Exception as error:  # a reader or a transform may raise anything
        transform, cause = "", error
        while (match := _FAILED_TRANSFORM.match(str(cause))) and isinstance(cause.__cause__, Exception):
            transform, cause = match[1].split(".")[-1], cause.__cause__
        name = f"the transform {transform}" if transform else "a transform"
        place = traceback.extract_tb(cause.__traceback__)[-1]
        raise DataError(
            "failed_transform",
            f"{name} fails for row {row} of {where}: {type(cause).__name__} in {Path(place.filename).name}, line "
            f"{place.lineno}. Look at that case's files, or leave it out of the list.",
            where=where,
            row=row,
            transform=transform or None,
            cause=type(cause).__name__,
        ) from None
