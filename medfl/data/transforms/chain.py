"""A chain of MONAI's transforms in two parts: a beginning that always does the same, and an end that is random."""

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
from medfl.utils.rng import pinned

Item = dict[str, Any] | list[dict[str, Any]]
"""What a chain makes of a case: a dictionary, or several where it cuts patches."""

KEPT_META = ("affine", "original_affine", "spatial_shape", "space", "original_channel_dim")
"""What is kept of the facts that a reader gives beside an image; file names and headers are not."""

INDICES = "_medfl_indices"
"""The end of a key under which the places of a mask's classes are cached."""

_APPLYING = re.compile(r"applying transform <([\w.]+)")
"""What MONAI says of a transform that fails, with the error of the transform as its cause."""

_SEEDS = 2**32 - 1
"""NumPy's generators, and so MONAI's, take seeds below this."""


class Chain:
    """A chain that is cut before its first random transform, as MONAI's cached data sets do.

    A transform that is no `monai.transforms.Transform`, or that can't be described, ends the beginning as well. Where
    the first random one cuts patches around labels (`RandCropByPosNegLabeld`, `RandCropByLabelClassesd`), it sees
    exactly what the beginning made, so the places of the labels belong to the beginning, too.

    Args:
        transform: A `Compose`, or what makes one.

    Attributes:
        digest: SHA-256 over all that decides what the chain does (`medfl.utils.configuration`).
        beginning_digest: The same of the beginning alone.
    """

    def __init__(self, transform: Callable[..., Any] | Sequence[Callable[..., Any]]) -> None:
        chain = transform if isinstance(transform, Compose) else Compose(transform)
        described = [_digest_of(each) for each in chain.transforms]
        stops = [_is_random(each) or text is None for each, text in zip(chain.transforms, described, strict=True)]
        self.end = stops.index(True) if True in stops else len(stops)
        self.transform = _with_cached_indices(chain, self.end)
        if len(self.transform.transforms) > len(chain.transforms):
            described.insert(self.end, _digest_of(self.transform.transforms[self.end]))
            self.end += 1
        frame = [chain.map_items, chain.unpack_items, chain.lazy, repr(chain.overrides), get_track_meta()]
        self.beginning_digest = configuration_digest([frame, *described[: self.end]])
        names = [type(each).__qualname__ for each in self.transform.transforms]
        self.digest = configuration_digest([frame, *described, names])

    @property
    def loaded(self) -> set[str]:
        """The keys that the chain reads from files."""
        loaders = [each for each in self.transform.flatten().transforms if isinstance(each, LoadImaged)]
        return {str(key) for each in loaders if not each.allow_missing_keys for key in each.keys}

    def touches(self, key: str) -> bool:
        """Whether a transform may change the entry of a key."""
        return any(key in getattr(each, "keys", (key,)) for each in self.transform.flatten().transforms)

    def begin(self, case: Case, row: int, where: str) -> Item:
        """What the beginning makes of a case; of facts beside images only `KEPT_META` are left.

        Raises:
            DataError: If it fails, or makes nothing, naming the row.
        """
        with _row_in_errors(row, where), pinned("transforms", "beginning", gpu=False), one_thread():
            item = self.transform(copy.deepcopy(dict(case)), end=self.end)
        return _stripped(_checked(item, row, where))

    def finish(self, item: Item, seed: int, row: int, where: str) -> Item:
        """What the random end makes of `begin`'s item, which may be changed in place.

        Args:
            item: Of `begin`.
            seed: Decides all that is random, >= 0.
            row: The case's row, for messages.
            where: As for `begin`.

        Raises:
            DataError: As `begin`.
        """
        if self.end == len(self.transform.transforms):
            return item
        with _row_in_errors(row, where), pinned("transforms", seed, gpu=False), one_thread():
            self.transform.set_random_state(seed=seed % _SEEDS)
            ready = self.transform(item, start=self.end)
        return _checked(ready, row, where)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Within the block torch computes in one thread: sums would depend on the number of threads."""
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
    """The places of a mask's classes, as a cutter of patches looks for them, in half the bytes.

    Args:
        finder: MONAI's own transform that finds them, with `INDICES` in its postfixes.
    """

    def __init__(self, finder: FgBgToIndicesd | ClassesToIndicesd) -> None:
        self.finder = finder

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        """The item with its indices, int32 where that is enough."""
        item: dict[Hashable, Any] = self.finder(data)
        return {key: _short(value) if INDICES in str(key) else value for key, value in item.items()}


def _short(indices: Any) -> Any:
    if isinstance(indices, list):
        return [_short(each) for each in indices]
    plain = torch.as_tensor(indices).as_subclass(torch.Tensor)
    return plain.to(torch.int32) if not len(plain) or int(plain[-1]) < 2**31 else plain


def _with_cached_indices(chain: Compose, end: int) -> Compose:
    """The chain with the places of labels in its beginning, where the first random transform looks for them."""
    cutter = chain.transforms[end] if end < len(chain.transforms) else None
    if chain.lazy is not False or getattr(cutter, "lazy", False):
        return chain
    finder: FgBgToIndicesd | ClassesToIndicesd
    if type(cutter) is RandCropByPosNegLabeld and cutter.fg_indices_key is None:
        key, cutter = cutter.label_key, copy.deepcopy(cutter)
        cutter.fg_indices_key, cutter.bg_indices_key = f"{key}{INDICES}_fg", f"{key}{INDICES}_bg"
        threshold = cutter.cropper.image_threshold
        finder = FgBgToIndicesd(key, f"{INDICES}_fg", f"{INDICES}_bg", cutter.image_key, threshold)
    elif type(cutter) is RandCropByLabelClassesd and cutter.indices_key is None:
        key, cutter = cutter.label_key, copy.deepcopy(cutter)
        cutter.indices_key, cropper = f"{key}{INDICES}", cutter.cropper
        finder = ClassesToIndicesd(
            key,
            INDICES,
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
    """MONAI's rule for the end of what is cached, which looks into a chain in the chain."""
    if type(transform) is Compose:
        return any(map(_is_random, transform.transforms))
    return isinstance(transform, RandomizableTrait) or not isinstance(transform, Transform)


def _digest_of(transform: Any) -> str | None:
    """What decides the work of a transform; None where that can't be said."""
    try:
        return configuration_digest(transform)
    except OpaqueError:
        return None


def _stripped(item: Any) -> Any:
    """An item without the facts beside its images, but `KEPT_META`, and without the trace of what was done."""
    if isinstance(item, MetaTensor):
        return MetaTensor(item.as_tensor(), meta={name: item.meta[name] for name in KEPT_META if name in item.meta})
    if isinstance(item, list | tuple):
        return [_stripped(each) for each in item]
    if isinstance(item, dict):
        plain = {key: _stripped(value) for key, value in item.items() if not str(key).endswith("_transforms")}
        headers = [key for key in plain if str(key).endswith("_meta_dict")]
        return plain | {key: {name: plain[key][name] for name in KEPT_META if name in plain[key]} for key in headers}
    return item


def _checked(item: Any, row: int, where: str) -> Item:
    """A dictionary, or a list of at least one."""
    if isinstance(item, dict) or (isinstance(item, list) and item and all(isinstance(each, dict) for each in item)):
        return item
    got = "nothing" if item is None or item == [] else type(item).__name__
    raise DataError(
        "wrong_transform_output",
        f"expected a dictionary, or a list of some, from the transforms for row {row} of {where}, got {got}. Have each "
        "transform return what goes on.",
        where=where,
        row=row,
        found=got,
    )


@contextlib.contextmanager
def _row_in_errors(row: int, where: str) -> Iterator[None]:
    """Errors name the row and the transform, and not what they quote, which may be the name of a file or a person."""
    try:
        yield
    except MemoryError:
        raise DataError(
            "memory_exhausted",
            f"the memory is too small for row {row} of {where}. Crop or resample the images.",
            where=where,
            row=row,
        ) from None
    except Exception as error:  # whatever a reader or a transform raises
        transform, cause = "", error
        while (match := _APPLYING.match(str(cause))) and isinstance(cause.__cause__, Exception):
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
