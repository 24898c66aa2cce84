"""Many images in one array file, addressed by row, at the speed of an array.

A federation of twenty sites shares one file of images; a site is a list of rows. Opening ten thousand small image
files, or building a dictionary for each image, costs more than training a small network on them. So each split's rows
are gathered once into one block of memory, and a batch is one indexing operation and one scaling.
"""

from __future__ import annotations

import functools
import stat
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from medfl.data.pooled import labels_in
from medfl.errors import DataError
from medfl.utils.files import sha256_of

FEATURE_MEAN, FEATURE_STD = "feature_mean", "feature_std"
"""Keys of a data list of vectors: mean and standard deviation of each number, over the training rows of all sites."""

FEATURES = "features"
"""Key of a data list whose array holds vectors: the name of each of their numbers, in order."""

RESIDENT_BYTES = 2 << 30
"""A split above this size stays in its file and is read batch by batch."""

CHUNK_BYTES = 16 << 20
"""Pixels that are looked at at a time."""

_CHANNELS = (1, 3)
_DTYPES = (np.uint8, np.uint16, np.float16, np.float32, np.float64)


def open_array(path: Path) -> np.ndarray:
    """Open an array file without reading it; the same file always gives the same object.

    Args:
        path: A ``.npy`` file.

    Returns:
        The memory-mapped array, read-only.

    Raises:
        DataError: If the file is missing, is no array file, is cut short, holds python objects, or has a shape that no
            images have.
    """
    return _open(*_identity(path))


def array_digest(path: Path) -> str:
    """The SHA-256 of an array file, read once per process however many sites share it.

    Raises:
        DataError: If the file is missing.
    """
    return _digest(*_identity(path))


def channels_of(shape: Sequence[int]) -> int | None:
    """The number of channels if the last axis holds them, otherwise None.

    A shape (N, H, W, C) with C of 1 or 3 holds 2-D images with channels; (N, H, W) and (N, D, H, W) hold images and
    volumes of one channel; (N, D, H, W, C) holds volumes with channels; (N, F) holds vectors, which have none.

    Raises:
        DataError: If the shape is none of these.
    """
    if len(shape) == 5 or (len(shape) == 4 and shape[-1] in _CHANNELS):
        return int(shape[-1])
    if len(shape) in (2, 3, 4):
        return None
    raise DataError(
        "wrong_shape",
        "expected an array of shape (N, F), (N, H, W), (N, H, W, C), (N, D, H, W) or (N, D, H, W, C), got "
        f"{tuple(shape)}. Write the images again, one image per row.",
        found=tuple(shape),
    )


class ArrayRows:
    """Some rows of a shared array: gathered once into one block of memory, or left in the file where they are large.

    Args:
        source: The array, (N, ...).
        index: The rows, each in it, shape (n,).
    """

    def __init__(self, source: np.ndarray, index: np.ndarray) -> None:
        self._source, self._index = source, index
        nbytes = len(index) * int(np.prod(source.shape[1:])) * source.dtype.itemsize
        self._block = torch.from_numpy(source[index]) if nbytes <= RESIDENT_BYTES else None

    def __len__(self) -> int:
        return len(self._index)

    def gather(self, rows: torch.Tensor) -> torch.Tensor:
        """A new tensor (B, ...) of rows in [0, n), shape (B,)."""
        if self._block is not None:
            return self._block.index_select(0, rows)
        return torch.from_numpy(np.ascontiguousarray(self._source[self._index[rows.numpy()]]))


class ArrayMasks(ArrayRows):
    """Masks of some rows, each in the shape that an objective wants.

    Args:
        source: The array, (N, ...), uint8.
        index: As in `ArrayRows`.
        shape: Of a mask.
    """

    def __init__(self, source: np.ndarray, index: np.ndarray, shape: Sequence[int]) -> None:
        super().__init__(source, index)
        self._shape = tuple(shape)

    def gather(self, rows: torch.Tensor) -> torch.Tensor:
        """A new tensor (B, *shape) of rows in [0, n), shape (B,)."""
        return super().gather(rows).reshape(len(rows), *self._shape)


class ArrayDataset:
    """Images and targets of one split of one site; it fulfils `medfl.types.Dataset`.

    A batch is ``(x / top - mean) / std`` for integers, where top is 255 for uint8 and 65535 for uint16, and
    ``(x - mean) / std`` for floating ones. Images with
    channels come out as a permuted view, in channels-last layout, which is also what convolutions like best.

    Args:
        images: The shared array; see `channels_of` for its shapes. uint8, uint16 or floating.
        targets: The target of each row of the split, shape (n, ...); integers of shape (n,) are class labels. Masks
            may stay in a file of their own.
        rows: The split's rows in `images`, shape (n,).
        mean: One number, or one for each channel.
        std: One number, or one for each channel, > 0.
        target_type: Of a batch of targets.
        patients: For each row a number that images of one patient share; None if no two images are of one patient.

    Raises:
        DataError: If the shapes, the type of the images, or mean and std do not fit together, a row is outside, or a
            pixel is not finite.
    """

    def __init__(
        self,
        images: np.ndarray,
        targets: torch.Tensor | np.ndarray | Sequence[int] | ArrayMasks,
        rows: np.ndarray | Sequence[int],
        mean: Sequence[float] = (0.5,),
        std: Sequence[float] = (0.5,),
        patients: Sequence[int] | None = None,
        target_type: torch.dtype = torch.int64,
    ) -> None:
        index = np.asarray(rows, dtype=np.int64).reshape(-1)
        self._target_type = target_type
        self._targets: torch.Tensor | ArrayMasks
        if isinstance(targets, ArrayMasks):
            self._targets, self.class_labels = targets, None
        else:
            held = targets.clone() if isinstance(targets, torch.Tensor) else torch.as_tensor(np.array(targets))
            self._targets = held.to(target_type)
            self.class_labels = labels_in(self._targets)
        self.patients = None if patients is None else torch.tensor(patients, dtype=torch.int64)
        _check(images, index, len(self._targets))
        self._channels = channels_of(images.shape)
        check_finite(images, index)
        self._scale, self._shift = _affine(images, self._channels, mean, std)
        self._pixels = int(np.prod(images.shape[1:]))
        self._images = ArrayRows(images, index)

    def __len__(self) -> int:
        return len(self._targets)

    def batch(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Images (B, C, *spatial) or vectors (B, F), float32, and targets (B, ...).

        Args:
            rows: Positions within this split, each in [0, len(self)), shape (B,), int64.
        """
        raw = self._images.gather(rows)
        flat = raw.view(len(raw), self._pixels).to(torch.float32, copy=True)
        images = flat.mul_(self._scale).add_(self._shift).view(raw.shape)
        if images.dim() == 2:
            return images, self.targets(rows)
        images = images.unsqueeze(1) if self._channels is None else images.movedim(-1, 1)
        return images, self.targets(rows)

    def targets(self, rows: torch.Tensor) -> torch.Tensor:
        """The targets (B, ...) of rows as in `batch`; no image is read."""
        held = self._targets
        chosen = held.gather(rows) if isinstance(held, ArrayMasks) else held[rows]
        return chosen.to(self._target_type)

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        """One image (C, *spatial) and its target, as MONAI's loaders want them."""
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} is outside this split of {len(self)} images")
        images, targets = self.batch(torch.tensor([row % len(self)]))
        return {"image": images[0], "label": targets[0]}


def check_finite(images: np.ndarray, rows: np.ndarray) -> None:
    """Refuse images with a pixel that is no finite number, as float32, in which networks get them.

    Integers are always finite, so that only arrays of floating numbers are read.

    Args:
        images: The shared array.
        rows: The rows to look at, each in it, shape (n,).

    Raises:
        DataError: Naming the first row.
    """
    if images.dtype.kind != "f":
        return
    step = max(1, CHUNK_BYTES // max(1, images[:1].nbytes))
    for start in range(0, len(rows), step):
        some = rows[start : start + step]
        with np.errstate(over="ignore"):
            finite = np.isfinite(images[some].astype(np.float32, copy=False)).reshape(len(some), -1).all(axis=1)
        if not finite.all():
            raise DataError(
                "not_finite",
                f"expected finite pixels, row {some[~finite][0]} of the image array has NaN or infinite ones. Prepare "
                "that image again, or leave it out of the list.",
                row=int(some[~finite][0]),
            )


def _check(images: np.ndarray, rows: np.ndarray, targets: int) -> None:
    if images.dtype not in _DTYPES:
        raise DataError(
            "wrong_type",
            f"expected images of type uint8, uint16, float16, float32 or float64, got {images.dtype}. Convert the "
            "array.",
            found=str(images.dtype),
        )
    if len(rows) != targets:
        raise DataError(
            "wrong_target_count",
            f"expected one target for each row, got {targets} targets for {len(rows)} rows",
            expected=len(rows),
            found=targets,
        )
    outside = (rows < 0) | (rows >= len(images))
    if outside.any():
        raise DataError(
            "row_outside_array",
            f"expected rows in 0..{len(images) - 1}, got row {int(rows[outside][0])} "
            f"({int(outside.sum())} rows are outside the array). The list and the array do not belong together.",
            row=int(rows[outside][0]),
            count=int(outside.sum()),
            maximum=len(images) - 1,
        )


def _affine(
    images: np.ndarray, channels: int | None, mean: Sequence[float], std: Sequence[float]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Scale and shift such that ``x * scale + shift`` is the normalised image, flattened to one image's length."""
    count, kind = (images.shape[1], "columns") if images.ndim == 2 else (channels or 1, "channels")
    for name, values in (("mean", mean), ("std", std)):
        if len(values) not in (1, count):
            raise DataError(
                "wrong_normalization_length",
                f"expected 1 or {count} numbers in {name} for {count} {kind}, got {len(values)}. "
                f"Give --{name}, or choose a bundle for such images.",
                name=name,
                expected=count,
                found=len(values),
            )
    if not (np.isfinite(mean).all() and np.isfinite(std).all() and min(std) > 0):
        raise DataError(
            "invalid_normalization",
            f"expected finite numbers in mean, and every std > 0, got mean {list(mean)}, std {list(std)}",
            mean=list(mean),
            std=list(std),
        )
    unit = float(np.iinfo(images.dtype).max) if images.dtype.kind == "u" else 1.0
    spread = np.asarray(std, dtype=np.float64)
    scale, shift = 1.0 / (unit * spread), -np.asarray(mean, dtype=np.float64) / spread
    return _pattern(scale, images, count), _pattern(shift, images, count)


def _pattern(values: np.ndarray, images: np.ndarray, count: int) -> torch.Tensor:
    """A single number, or one for each pixel: a vector of 3 channels would be broadcast slowly."""
    if len(values) == 1:
        return torch.tensor(values, dtype=torch.float32)
    pixels = int(np.prod(images.shape[1:])) // count
    return torch.tensor(np.tile(values, pixels), dtype=torch.float32)


def _identity(path: Path) -> tuple[Path, int, int]:
    try:
        facts = path.stat()
    except OSError:
        raise DataError(
            "missing_file",
            f"the image array {path} is missing. It stays where `medfl prep` wrote it: put it back, "
            "or partition the data set again from its new place.",
            path=path,
        ) from None
    if not stat.S_ISREG(facts.st_mode):  # reading a pipe would wait for ever
        raise DataError(
            "not_a_file",
            f"the image array {path} is no file, but a folder, a pipe or a device. Put the file there.",
            path=path,
        )
    return path.resolve(), facts.st_mtime_ns, facts.st_size


@functools.lru_cache(maxsize=32)
def _open(path: Path, mtime: int, size: int) -> np.ndarray:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        why = "it is damaged, cut short, or no array of numbers"
        raise DataError(
            "damaged_file", f"the image array {path} can't be read: {why}. Prepare the data set again.", path=path
        ) from error
    if not isinstance(array, np.ndarray):
        raise DataError(
            "unsupported_file",
            f"expected one array in {path}, got an archive of several. Save it as a .npy file.",
            path=path,
        )
    channels_of(array.shape)
    return np.asarray(array)  # a plain view: the memmap class slows every index down


@functools.lru_cache(maxsize=32)
def _digest(path: Path, mtime: int, size: int) -> str:
    return sha256_of(path)
