"""What the cases of a split are, before a run: their pixels, so that no case is on both sides, and their masks."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from medfl.data.leaks import Holding
from medfl.data.transforms.dataset import TransformDataset


@dataclass(frozen=True)
class Survey:
    """What a look at all cases of a split gives; it fills the cache on its way.

    Attributes:
        pixels: For each case 16 bytes, equal for equal inputs before the first random transform.
        shapes: Spatial shape of each case there.
        empty: For each key of targets that are masks, how many cases have an empty one: that is allowed.
    """

    pixels: tuple[bytes, ...]
    shapes: tuple[tuple[int, ...], ...]
    empty: Mapping[str, int]


def survey(data: TransformDataset) -> Survey:
    """Look at all cases, after the transforms before the first random one.

    Raises:
        DataError: If a case can't be made, naming its row.
    """
    pixels, shapes, empty = [], [], dict[str, int]()
    for samples in data.beginnings():
        content = hashlib.blake2b(digest_size=16)
        for sample in samples:
            image = np.ascontiguousarray(sample[data.inputs])
            content.update(f"{image.dtype} {image.shape}".encode() + image.tobytes())
        pixels.append(content.digest())
        shapes.append(tuple(np.shape(samples[0][data.inputs])[1:]))
        for key in data.target_keys:
            masks = [sample[key] for sample in samples if np.ndim(sample[key]) > 2]
            empty[key] = empty.get(key, 0) + (len(masks) > 0 and not any(bool((mask > 0).any()) for mask in masks))
    return Survey(tuple(pixels), tuple(shapes), empty)


def holding(data: TransformDataset, subjects: Iterable[Hashable] = ()) -> Holding:
    """What a split holds, for `medfl.data.leaks.leaks_between`.

    Args:
        data: The split.
        subjects: Of its cases, as far as they are known.
    """
    return Holding(set(subjects), set(survey(data).pixels))
