"""Data sets whose images are rows of one array file.

All sites of a partition share one array file; a site is a list of rows. This is much faster than one small file or one
dictionary for each image, which can cost more time than training a small network. The rows of a split are gathered once
into one block of memory. A batch is then one indexing operation and one scaling.
"""

from __future__ import annotations

import functools
import math
import stat
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from medfl.data.pooled import as_class_labels
from medfl.errors import DataError
from medfl.utils.files import sha256_of

FEATURE_MEAN, FEATURE_STD = "feature_mean", "feature_std"
"""Keys of a data list of vectors (rows of a table), for statistics of each feature over the training rows of all sites.
`FEATURE_MEAN`: the mean; `FEATURE_STD`: the standard deviation."""

FEATURES = "features"
"""Key of a data list of vectors: names of the features, in column order."""

MAX_RESIDENT_BYTES = 2 << 30
"""Largest size, in bytes, of a split that is kept in memory. A larger split stays in its file and is read batch by
batch."""

CHUNK_BYTES = 16 << 20
"""Size, in bytes, of the pixel chunks in which large arrays are checked."""

_CHANNEL_COUNTS = (1, 3)
_DTYPES = (np.uint8, np.uint16, np.float16, np.float32, np.float64)


def open_array(path: Path) -> np.ndarray:
    """Memory-map an array file, read-only. Repeated calls for an unchanged file return the same object.

    Args:
        path: A ``.npy`` file.

    Returns:
        The memory-mapped array.

    Raises:
        DataError: If the file is missing, is no array file, is cut short, contains Python objects, or has a shape that
            `channels_of` refuses.
    """
    return _open_cached(*_file_identity(path))


def array_digest(path: Path) -> str:
    """Return the SHA-256 digest of an array file. The file is read once per process while it is unchanged.

    Raises:
        DataError: If the file is missing.
    """
    return _digest_cached(*_file_identity(path))


def channels_of(shape: Sequence[int]) -> int | None:
    """Return the number of channels if the last axis is the channel axis, otherwise None.

    A shape (N, H, W, C) with C of 1 or 3 means 2-D images with channels. (N, H, W) and (N, D, H, W) mean images and
    volumes of one channel. (N, D, H, W, C) means volumes with channels. (N, F) means vectors, which have no channels. N
    is the number of cases, C of channels, F of features; D, H and W are depth, height and width.

    Args:
        shape: Shape of the whole array, (N, ...).

    Raises:
        DataError: If the shape has another form.
    """
    if len(shape) == 5 or (len(shape) == 4 and shape[-1] in _CHANNEL_COUNTS):
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
    """Selected rows of a shared array, copied into memory once if they are small enough, otherwise read from the file.

    Args:
        source: Shared array, (N, ...).
        index: Row numbers in `source`, shape (n,).
    """

    __slots__ = ("_rows", "_source")

    def __init__(self, source: np.ndarray, index: np.ndarray) -> None:
        nbytes = len(index) * math.prod(source.shape[1:]) * source.dtype.itemsize
        is_resident = nbytes <= MAX_RESIDENT_BYTES
        # Many small sites: the row numbers are not kept besides the rows, and a tensor would take about 500 bytes more.
        self._rows = source[index] if is_resident else index
        self._source = None if is_resident else source

    def __len__(self) -> int:
        return len(self._rows)

    def gather(self, rows: torch.Tensor) -> torch.Tensor:
        """Return a new tensor (B, ...) with the B rows at the given positions.

        Args:
            rows: Positions in `index`, each in [0, n), shape (B,).
        """
        if self._source is None:
            return torch.from_numpy(self._rows).index_select(0, rows)
        return torch.from_numpy(np.ascontiguousarray(self._source[self._rows[rows.numpy()]]))


class ArrayMasks(ArrayRows):
    """Masks of selected rows, reshaped to the target shape of an objective.

    Args:
        source: Shared mask array, (N, ...), uint8.
        index: Row numbers in `source`, shape (n,).
        shape: Target shape of one mask.
    """

    __slots__ = ("_shape",)

    def __init__(self, source: np.ndarray, index: np.ndarray, shape: Sequence[int]) -> None:
        super().__init__(source, index)
        self._shape = tuple(shape)

    def gather(self, rows: torch.Tensor) -> torch.Tensor:
        """Return a new tensor (B, *shape) with the masks at the given positions.

        Args:
            rows: Positions in `index`, each in [0, n), shape (B,).
        """
        return super().gather(rows).reshape(len(rows), *self._shape)


class ArrayDataset:
    """Images and targets of one split of one site; implements `medfl.types.Dataset`.

    A batch contains ``(x / top - mean) / std`` for integer images, where ``top`` is 255 for uint8 and 65535 for uint16,
    and ``(x - mean) / std`` for floating-point images. Images with channels are returned as a permuted view in
    channels-last memory layout, which convolutions process fastest. Features of table columns are appended to images as
    further channels, each with one value everywhere, so that an image and its table row are one tensor.

    Args:
        images: Shared array; see `channels_of` for its shapes. uint8, uint16 or floating point.
        targets: Target of each row of the split, shape (n, ...); integers of shape (n,) are class labels. `ArrayMasks`
            may leave masks in their own file.
        rows: Row numbers of the split in `images`, shape (n,).
        mean: Mean to subtract; one number, or one for each channel. With `features`, one for each channel and feature.
        std: Standard deviation to divide by, > 0; as many numbers as `mean`.
        patients: Patient number of each row, shared by images of one patient; None if no two images share a patient.
        target_type: Data type of the targets in a batch.
        has_missing: Whether a NaN in vectors is a missing value, which becomes 0 in a batch: the mean of the training
            rows if the features are standardised. Otherwise NaN is refused.
        features: Features of table columns of each image of the split, (n, F); NaN is a missing value. None without a
            table.

    Attributes:
        patients: Patient number of each row, shape (n,), int64; None if no two images share a patient.

    Raises:
        DataError: If shapes, image type, or mean and std do not fit together, a row is outside the array, or a pixel is
            not finite.
    """

    __slots__ = (
        "_channels",
        "_features",
        "_has_missing",
        "_images",
        "_pixels",
        "_scale",
        "_shift",
        "_target_type",
        "_targets",
        "patients",
    )

    def __init__(
        self,
        images: np.ndarray,
        targets: torch.Tensor | np.ndarray | Sequence[int] | ArrayMasks,
        rows: np.ndarray | Sequence[int],
        mean: Sequence[float] = (0.5,),
        std: Sequence[float] = (0.5,),
        patients: Sequence[int] | None = None,
        target_type: torch.dtype = torch.int64,
        has_missing: bool = False,
        features: np.ndarray | None = None,
    ) -> None:
        index = np.asarray(rows, dtype=np.int64).reshape(-1)
        self._target_type = target_type
        self._targets: np.ndarray | ArrayMasks
        if isinstance(targets, ArrayMasks):
            self._targets = targets
        else:
            values = targets if isinstance(targets, torch.Tensor) else torch.as_tensor(np.array(targets))
            self._targets = values.to(target_type).numpy().copy()
        self.patients = None if patients is None else torch.tensor(patients, dtype=torch.int64)
        _check_inputs(images, index, len(self._targets))
        self._channels = channels_of(images.shape)
        self._has_missing = has_missing and images.ndim == 2
        check_finite(images, index, self._has_missing)
        count = (self._channels or 1) if features is not None else len(mean)
        self._features = None if features is None else _standardise(features, mean[count:], std[count:])
        self._scale, self._shift = _scale_and_shift(
            images.shape[1:], images.dtype, self._channels, tuple(mean[:count]), tuple(std[:count])
        )
        self._pixels = math.prod(images.shape[1:])
        self._images = ArrayRows(images, index)

    def __len__(self) -> int:
        return len(self._targets)

    def batch(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the normalised images (B, C, *spatial) or vectors (B, F), float32, and the targets (B, ...).

        Images with table features have C + F channels.

        Args:
            rows: Positions within this split, each in [0, len(self)), shape (B,), int64.
        """
        raw = self._images.gather(rows)
        flat = raw.view(len(raw), self._pixels).to(torch.float32, copy=True)
        images = flat.mul_(self._scale).add_(self._shift).view(raw.shape)
        if self._has_missing:
            images = images.nan_to_num_(nan=0.0)
        if images.dim() == 2:
            return images, self.targets(rows)
        images = images.unsqueeze(1) if self._channels is None else images.movedim(-1, 1)
        if self._features is not None:
            images = append_features(images, self._features[rows])
        return images, self.targets(rows)

    @property
    def class_labels(self) -> torch.Tensor | None:
        """Class label of each row of the split, shape (n,); None if the targets are no class labels."""
        return None if isinstance(self._targets, ArrayMasks) else as_class_labels(torch.from_numpy(self._targets))

    def targets(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the targets (B, ...) of the given positions without reading any image."""
        targets = self._targets
        chosen = targets.gather(rows) if isinstance(targets, ArrayMasks) else torch.from_numpy(targets)[rows]
        return chosen.to(self._target_type)

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        """Return ``{"image": (C, *spatial), "label": target}`` of one position, for MONAI's data loaders."""
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} is outside this split of {len(self)} images")
        images, targets = self.batch(torch.tensor([row % len(self)]))
        return {"image": images[0], "label": targets[0]}


def append_features(images: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
    """Append features (B, F) to images (B, C, *spatial) as F channels with one value each: (B, C + F, *spatial)."""
    planes = features.view(*features.shape, *[1] * (images.dim() - 2)).expand(-1, -1, *images.shape[2:])
    return torch.cat([images, planes], dim=1)


def check_finite(images: np.ndarray, rows: np.ndarray, allow_nan: bool = False) -> None:
    """Raise if an image has a pixel that is not finite after conversion to float32, the type that networks receive.

    Only floating-point arrays are read, because integers are always finite.

    Args:
        images: Shared array.
        rows: Row numbers to check, shape (n,), each inside the array.
        allow_nan: Whether NaN is allowed, as the mark of a missing value.

    Raises:
        DataError: If a pixel is not finite. The message names the first such row.
    """
    if images.dtype.kind != "f":
        return
    step = max(1, CHUNK_BYTES // max(1, images[:1].nbytes))
    for start in range(0, len(rows), step):
        some = rows[start : start + step]
        with np.errstate(over="ignore"):
            pixels = images[some].astype(np.float32, copy=False).reshape(len(some), -1)
            finite = (np.isfinite(pixels) | (np.isnan(pixels) & allow_nan)).all(axis=1)
        if not finite.all():
            raise DataError(
                "not_finite",
                f"expected finite pixels, row {some[~finite][0]} of the image array has NaN or infinite ones. Prepare "
                "that image again, or leave it out of the list.",
                row=int(some[~finite][0]),
            )


def _standardise(features: np.ndarray, mean: Sequence[float], std: Sequence[float]) -> torch.Tensor:
    """Return standardised features (n, F), float32, with 0 for missing values.

    Raises:
        DataError: If `mean` or `std` do not have F numbers, or a number is not finite or not allowed.
    """
    _check_normalization(mean, std, features.shape[1], "features of the table")
    scaled = (features.astype(np.float64) - np.asarray(mean)) / np.asarray(std)
    return torch.from_numpy(np.nan_to_num(scaled, nan=0.0).astype(np.float32))


def _check_inputs(images: np.ndarray, rows: np.ndarray, targets: int) -> None:
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


@functools.lru_cache(maxsize=64)
def _scale_and_shift(
    shape: tuple[int, ...], dtype: np.dtype, channels: int | None, mean: tuple[float, ...], std: tuple[float, ...]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return scale and shift such that ``x * scale + shift`` is the normalised image.

    Each is a tensor of one number, or of one number for each pixel of a flattened image. Splits with the same
    normalisation share the tensors.

    Args:
        shape: Shape of one case in the array.
        dtype: Data type of the array.
        channels: Number of channels, or None if the array has no channel axis.
        mean: Mean to subtract; one number, or one for each channel or column.
        std: Standard deviation to divide by; one number, or one for each channel or column.
    """
    count, kind = (shape[0], "columns") if len(shape) == 1 else (channels or 1, "channels")
    _check_normalization(mean, std, count, kind, allows_one=True)
    unit = float(np.iinfo(dtype).max) if dtype.kind == "u" else 1.0
    spread = np.asarray(std, dtype=np.float64)
    scale, shift = 1.0 / (unit * spread), -np.asarray(mean, dtype=np.float64) / spread
    pixels = math.prod(shape) // count
    return _repeat_over_pixels(tuple(scale.tolist()), pixels), _repeat_over_pixels(tuple(shift.tolist()), pixels)


def _check_normalization(
    mean: Sequence[float], std: Sequence[float], count: int, kind: str, allows_one: bool = False
) -> None:
    """Raise if a mean and a standard deviation do not have `count` finite numbers, or a deviation is not above 0.

    Args:
        mean: Means.
        std: Standard deviations.
        count: Number of values that are normalised.
        kind: Name of these values, in the plural, for messages.
        allows_one: Whether one number for all values is allowed, too.
    """
    for name, values in (("mean", mean), ("std", std)):
        if len(values) != count and not (allows_one and len(values) == 1):
            raise DataError(
                "wrong_normalization_length",
                f"expected {'1 or ' * allows_one}{count} numbers in {name} for {count} {kind}, got {len(values)}. "
                f"Give --{name}, or choose a bundle for such images.",
                name=name,
                expected=count,
                found=len(values),
            )
    if not (np.isfinite(mean).all() and np.isfinite(std).all() and min(std, default=1) > 0):
        raise DataError(
            "invalid_normalization",
            f"expected finite numbers in mean, and every std > 0, got mean {list(mean)}, std {list(std)}",
            mean=list(mean),
            std=list(std),
        )


@functools.lru_cache(maxsize=64)
def _repeat_over_pixels(values: tuple[float, ...], pixels: int) -> torch.Tensor:
    """Return one number as it is, or repeat one number per channel for all pixels.

    Broadcasting a vector of 3 channels over the pixels would be slow.
    """
    return torch.tensor(values * (1 if len(values) == 1 else pixels), dtype=torch.float32)


def _file_identity(path: Path) -> tuple[Path, int, int]:
    try:
        status = path.stat()
    except OSError:
        raise DataError(
            "missing_file",
            f"the image array {path} is missing. It stays where `medfl prep` wrote it: put it back, "
            "or partition the data set again from its new place.",
            path=path,
        ) from None
    if not stat.S_ISREG(status.st_mode):  # reading a pipe would block forever
        raise DataError(
            "not_a_file",
            f"the image array {path} is no file, but a folder, a pipe or a device. Put the file there.",
            path=path,
        )
    return path.resolve(), status.st_mtime_ns, status.st_size


@functools.lru_cache(maxsize=32)
def _open_cached(path: Path, mtime: int, size: int) -> np.ndarray:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        reason = "it is damaged, cut short, or not an array of numbers"
        raise DataError(
            "damaged_file", f"the image array {path} can't be read: {reason}. Prepare the data set again.", path=path
        ) from error
    if not isinstance(array, np.ndarray):
        raise DataError(
            "unsupported_file",
            f"expected one array in {path}, got an archive of several. Save it as a .npy file.",
            path=path,
        )
    channels_of(array.shape)
    return np.asarray(array)  # a plain view, because indexing a memmap object is slow


@functools.lru_cache(maxsize=32)
def _digest_cached(path: Path, mtime: int, size: int) -> str:
    return sha256_of(path)
