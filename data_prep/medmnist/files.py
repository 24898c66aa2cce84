"""Read a ``.npz`` file in the layout of MedMNIST: labels at once, images in blocks.

The array of images may be larger than the memory. Images are therefore copied from the compressed file to the output
array in blocks of some megabytes.
"""

from __future__ import annotations

import contextlib
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from medfl.data.ingest.array_file import new_array, read_head
from medfl.errors import DataError

NPZ_SPLITS = (("train", "training"), ("val", "validation"), ("test", "test"))
"""Pairs of a split's prefix in the file and its name in a data list, in the order in which the images are written."""

BLOCK_BYTES = 1 << 24
"""Size of a block of images in bytes: the amount that is in memory at once."""

_KINDS = ("images", "labels")
"""Suffixes of the two arrays of each split."""


@dataclass(frozen=True)
class NpzContent:
    """Labels and image shapes of a MedMNIST file; the images themselves are not loaded.

    Attributes:
        path: The file.
        counts: Number of images of each split, in the order of `NPZ_SPLITS`.
        shape: Shape of one image: (H, W), (H, W, 3) or (D, H, W).
        labels: Labels of each split, int64: shape (n,) for n images, or (n, L) if an image has L labels.
    """

    path: Path
    counts: tuple[int, ...]
    shape: tuple[int, ...]
    labels: list[np.ndarray]


def read_npz(path: Path) -> NpzContent:
    """Read the labels of a MedMNIST file, and check the shapes and types of its images.

    Args:
        path: A ``.npz`` file with images (N, H, W), (N, H, W, 3) or (N, D, H, W), uint8, and integer labels (N,), (N,
            1) or (N, L), for ``train``, ``val`` and ``test``.

    Raises:
        DataError: If the file can't be read, an array is missing, or a shape or type is wrong.
    """
    labels, heads = [], []
    with _reading_errors(path), zipfile.ZipFile(path) as archive:
        _check_names(archive, path)
        for part, _ in NPZ_SPLITS:
            with archive.open(f"{part}_images.npy") as file:
                heads.append(read_head(file))
            with archive.open(f"{part}_labels.npy") as file:
                labels.append(np.lib.format.read_array(file, allow_pickle=False))
    shape, width = heads[0][0][1:], labels[0].shape[1:]
    for (part, _), head, split in zip(NPZ_SPLITS, heads, labels, strict=True):
        _check_images(*head, shape, f"{part}_images of {path}")
        _check_labels(split, head[0][0], width, f"{part}_labels of {path}")
    counts = tuple(head[0][0] for head in heads)
    if not sum(counts):
        raise DataError(
            "no_images", f"expected images in {path}, all three splits are empty. Download the file again.", path=path
        )
    flat = [split[:, 0] if split.shape[1:] == (1,) else split for split in labels]
    return NpzContent(path, counts, shape, [split.astype(np.int64) for split in flat])


def copy_images(content: NpzContent, target: Path, show: Callable[[int], None] = lambda _: None) -> None:
    """Write the images of all splits, in the order of `NPZ_SPLITS`, into one array file.

    Args:
        content: Content of the file, from `read_npz`.
        target: The ``.npy`` file to write.
        show: Receives the number of images written so far.

    Raises:
        DataError: If the file is damaged, or the disk is full.
    """
    length = int(np.prod(content.shape))
    done = 0
    with (
        new_array(target, (sum(content.counts), *content.shape), np.uint8) as out,
        _reading_errors(content.path),
        zipfile.ZipFile(content.path) as archive,
    ):
        for (part, _), count in zip(NPZ_SPLITS, content.counts, strict=True):
            with archive.open(f"{part}_images.npy") as file:
                read_head(file)
                for piece in _read_blocks(file, count, length):
                    out.write(done, piece)
                    done += len(piece)
                    show(done)
                file.read()  # zipfile verifies its checksum at the end of the file
        out.flush()


def _read_blocks(file: IO[bytes], count: int, length: int) -> Iterator[np.ndarray]:
    """Yield the images in blocks of some megabytes, shape (n, length), uint8.

    Args:
        file: Array file, positioned at the first image.
        count: Number of images.
        length: Bytes of one image.
    """
    at_once = max(1, BLOCK_BYTES // length)
    for start in range(0, count, at_once):
        rows = min(at_once, count - start)
        content = file.read(rows * length)
        if len(content) != rows * length:
            raise EOFError(f"the array ends after {start + len(content) // length} of {count} images")
        yield np.frombuffer(content, dtype=np.uint8).reshape(rows, length)


@contextlib.contextmanager
def _reading_errors(path: Path) -> Iterator[None]:
    """Translate errors of numpy and zipfile in the block into DataError."""
    try:
        yield
    except (ValueError, OSError, EOFError, TypeError, NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(
            "unreadable_file",
            f"{path} can't be read as a .npz file: {error}. Download it again.",
            path=path,
            reason=str(error),
        ) from None


def _check_names(archive: zipfile.ZipFile, path: Path) -> None:
    """Raise DataError if an array is missing."""
    names = [name.removesuffix(".npy") for name in archive.namelist()]
    missing = [f"{part}_{kind}" for part, _ in NPZ_SPLITS for kind in _KINDS if f"{part}_{kind}" not in names]
    if missing:
        raise DataError(
            "missing_array",
            f"expected the arrays of a MedMNIST file in {path}, missing: {', '.join(missing)}. "
            f"It holds: {', '.join(names) or 'nothing'}. Download the file again.",
            path=path,
            arrays=missing,
        )


def _check_images(
    shape: tuple[int, ...], fortran_order: bool, dtype: np.dtype, of_train: tuple[int, ...], where: str
) -> None:
    """Raise DataError if an array of images has an unsupported type, shape or memory order."""
    if dtype != np.uint8 or len(shape) not in (3, 4) or shape[1:] != of_train or 0 in shape[1:]:
        raise DataError(
            "wrong_shape",
            f"expected uint8 images (N, H, W), (N, H, W, 3) or (N, D, H, W), of one shape in all splits, in {where}; "
            f"got {dtype} of shape {shape} (train has {of_train}). Download the file again.",
            where=where,
            type=str(dtype),
            found=shape,
            expected=of_train,
        )
    if fortran_order:
        raise DataError(
            "wrong_memory_order",
            f"expected an array whose last axis runs fastest in {where}, got Fortran order. Save it again as "
            "np.ascontiguousarray(images), or download the official file.",
            where=where,
        )


def _check_labels(labels: np.ndarray, count: int, of_train: tuple[int, ...], where: str) -> None:
    """Raise DataError if an array of labels has a wrong type, shape or value."""
    fits = labels.ndim in (1, 2) and len(labels) == count and labels.shape[1:] == of_train and 0 not in of_train
    if not np.issubdtype(labels.dtype, np.integer) or not fits:
        raise DataError(
            "wrong_shape",
            f"expected integer labels of shape ({count},) or ({count}, 1) in {where}, as many for an image as in "
            f"train; got {labels.dtype} of shape {labels.shape}. Download the file again.",
            where=where,
            type=str(labels.dtype),
            found=labels.shape,
            expected=(count, *of_train),
        )
    if count and labels.min() < 0:
        raise DataError(
            "wrong_label",
            f"expected labels >= 0 in {where}, got {int(labels.min())}. Download the file again.",
            where=where,
            minimum=0,
            found=int(labels.min()),
        )
