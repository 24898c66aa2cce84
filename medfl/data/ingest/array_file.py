"""A new array file that is filled piece by piece, without being held in memory.

Rows are written into the file, not through a map of it: mapped pages count as memory of the process that wrote them,
and a mapped file on a full disk kills it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from medfl.errors import DataError
from medfl.utils.text import Say

MAIN_BYTES, READER_BYTES = 250_000_000, 100_000_000
"""Memory of the process that leads a preparation, and of each further one that reads images of some ten million pixels,
as measured."""


class ArrayFile:
    """A ``.npy`` file that is there, to be written row by row, also by several threads or processes at a time.

    It is open until its ``with`` block ends.

    Args:
        path: The file.

    Attributes:
        shape: Of the array, (rows, ...).
        dtype: Its type.

    Raises:
        ValueError: If it is no such file, or is cut short.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("r+b", buffering=0)
        self.shape, fortran_order, self.dtype = read_head(self._file)
        self._start, self._row_bytes = self._file.tell(), _bytes((1, *self.shape[1:]), self.dtype)
        if fortran_order or os.fstat(self._file.fileno()).st_size != self._start + len(self) * self._row_bytes:
            self._file.close()
            raise ValueError(
                f"expected an array file with rows of {self.shape[1:]}, got one that is cut short or turned"
            )

    def __enter__(self) -> ArrayFile:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def __len__(self) -> int:
        return self.shape[0]

    def write(self, first: int, rows: ArrayLike) -> None:
        """Write one row or several that follow each other.

        Args:
            first: The place of the first one.
            rows: Of the shape of a row, or (n, *row); cast to the array's type.

        Raises:
            DataError: If the disk is full.
        """
        content = np.ascontiguousarray(rows, self.dtype).data.cast("B")
        assert len(content) % self._row_bytes == 0, "whole rows"
        place = self._start + first * self._row_bytes
        with writing():
            while content:
                count = os.pwrite(self._file.fileno(), content, place)
                content, place = content[count:], place + count

    def keep(self, rows: Sequence[int]) -> None:
        """Keep some rows only, in their place: the file must not be used if this is interrupted.

        Args:
            rows: Their places, ascending.

        Raises:
            DataError: If the disk can't be written.
        """
        with writing():
            for place, row in enumerate(rows):
                if place != row:
                    content = os.pread(self._file.fileno(), self._row_bytes, self._start + row * self._row_bytes)
                    self.write(place, np.frombuffer(content, self.dtype))
            self._reshape((len(rows), *self.shape[1:]))
            self._file.truncate(self._start + len(rows) * self._row_bytes)

    def stack(self, count: int) -> None:
        """Make one row of every `count` rows that follow each other: (n, ...) becomes (n / count, ..., count).

        All is done in its place: the file must not be used if this is interrupted.

        Args:
            count: A divisor of the number of rows.

        Raises:
            DataError: If the disk can't be written.
        """
        together = count * self._row_bytes
        with writing():
            for first in range(0, len(self), count):
                content = os.pread(self._file.fileno(), together, self._start + first * self._row_bytes)
                rows = np.frombuffer(content, self.dtype).reshape(count, *self.shape[1:])
                self.write(first, np.moveaxis(rows, 0, -1))
            self._reshape((len(self) // count, *self.shape[1:], count))
            self._row_bytes = together

    def _reshape(self, shape: tuple[int, ...]) -> None:
        """Say in the head that the array has another shape."""
        self.shape = shape
        self._file.seek(0)
        _write_head(self._file, shape, self.dtype)
        assert self._file.tell() == self._start, "numpy leaves room in a head"

    def flush(self) -> None:
        """Bring all that was written, by whatever process, to the disk."""
        with writing():
            os.fsync(self._file.fileno())


def new_array(path: Path, shape: Sequence[int], dtype: DTypeLike) -> ArrayFile:
    """Make an array file of zeros on a disk that has room for it.

    Args:
        path: The ``.npy`` file to write, in a folder that is there.
        shape: Its shape.
        dtype: Its type.

    Returns:
        The file, to be filled; ``flush`` it at the end.

    Raises:
        DataError: If the disk has no room for it.
    """
    kind = np.dtype(dtype)
    _check_room(path, shape, kind)
    with writing(), path.open("wb") as file:
        _write_head(file, shape, kind)
        file.truncate(file.tell() + _bytes(shape, kind))
    return ArrayFile(path)


def tell_need(path: Path, shape: Sequence[int], dtype: DTypeLike, processes: int, say: Say) -> None:
    """Say what disk and memory an array and the processes that read its images need, before the work begins.

    Args:
        path: The array file.
        shape: Its shape.
        dtype: Its type.
        processes: How many read images.
        say: Gets one line.

    Raises:
        DataError: If the disk has no room for it.
    """
    needed, free = _check_room(path, shape, np.dtype(dtype))
    memory = _told(MAIN_BYTES + (processes if processes > 1 else 0) * READER_BYTES)
    say(
        f"note: needs {_told(needed)} on the disk of --out, which has {_told(free)} left, and about {memory} of memory "
        f"for {processes} process{'es' * (processes > 1)}, however many images there are"
    )


def keep_rows(target: Path, rows: Sequence[int]) -> None:
    """Keep some rows of an array file, ascending; see `ArrayFile.keep`."""
    with ArrayFile(target) as array:
        array.keep(rows)
        array.flush()


def stack_rows(target: Path, count: int) -> None:
    """Make one row of every `count` rows of an array file that follow each other; see `ArrayFile.stack`."""
    with ArrayFile(target) as array:
        array.stack(count)
        array.flush()


def read_head(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Shape, whether the first axis runs fastest, and type, from the head of an array file.

    Raises:
        ValueError: If it is none.
    """
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran_order, dtype = read(file)
    return shape, fortran_order, dtype


@contextlib.contextmanager
def writing() -> Iterator[None]:
    """What the system says of a disk that can't be written, for the user."""
    try:
        yield
    except OSError as error:
        raise DataError(
            "unwritable_file",
            f"the array of images can't be written: {error.strerror}. Make room on the disk of --out, and call the "
            "same command again.",
            reason=error.strerror,
        ) from None


def _write_head(file: IO[bytes], shape: Sequence[int], dtype: np.dtype) -> None:
    head = {
        "descr": np.lib.format.dtype_to_descr(dtype),
        "fortran_order": False,
        "shape": tuple(int(length) for length in shape),
    }
    np.lib.format.write_array_header_1_0(file, head)


def _check_room(path: Path, shape: Sequence[int], dtype: np.dtype) -> tuple[int, int]:
    """Bytes that are needed and bytes that are left; what is there of the file already counts as left."""
    there = path.stat().st_blocks * 512 if path.is_file() else 0
    needed, free = _bytes(shape, dtype), _free(path.parent) + there
    if needed > free:
        raise DataError(
            "disk_full",
            f"the array of images needs {_told(needed)}, the disk of --out has {_told(free)} left. Make room, give an "
            "--out on another disk, or choose a smaller size.",
            needed=needed,
            free=free,
        )
    return needed, free


def _told(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def _bytes(shape: Sequence[int], dtype: np.dtype) -> int:
    return int(np.prod([int(length) for length in shape], dtype=object)) * dtype.itemsize


def _free(folder: Path) -> int:
    """Bytes that are left on the disk of a folder."""
    return shutil.disk_usage(folder).free
