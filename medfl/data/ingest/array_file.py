"""Create an array file and fill it row by row without holding the array in memory.

Rows are written with file operations, not through a memory map. Mapped pages would count as memory of the writing
process, and a full disk would kill a process that writes to a map.
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
from medfl.utils.formats import size
from medfl.utils.text import Say

MAIN_PROCESS_BYTES, READER_PROCESS_BYTES = 250_000_000, 100_000_000
"""Memory in bytes, measured while images of about ten million pixels were prepared.

`MAIN_PROCESS_BYTES`: memory of the main process. `READER_PROCESS_BYTES`: memory of each further process, which reads
images.
"""


class ArrayFile:
    """Existing ``.npy`` file that several threads or processes may fill row by row at the same time.

    Use it as a context manager; the file is closed when the ``with`` block ends.

    Args:
        path: Path of the file.

    Attributes:
        shape: Shape of the array, (rows, ...).
        dtype: Data type of the array.

    Raises:
        ValueError: If the file is no array file, is cut short, or is in Fortran order.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("r+b", buffering=0)
        self.shape, fortran_order, self.dtype = read_head(self._file)
        self._start, self._row_bytes = self._file.tell(), _byte_count((1, *self.shape[1:]), self.dtype)
        if fortran_order or os.fstat(self._file.fileno()).st_size != self._start + len(self) * self._row_bytes:
            self._file.close()
            raise ValueError(
                f"expected an array file with rows of {self.shape[1:]}, got one that is cut short or in Fortran order"
            )

    def __enter__(self) -> ArrayFile:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def __len__(self) -> int:
        return self.shape[0]

    def write(self, first: int, rows: ArrayLike) -> None:
        """Write one row, or several consecutive rows.

        Args:
            first: Number of the first row to write.
            rows: One row, or consecutive rows of shape (n, *row); cast to the array's type.

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
        """Delete all rows except the given ones, in place. An interrupted call leaves the file unusable.

        Args:
            rows: Row numbers to keep, ascending.

        Raises:
            DataError: If the disk can't be written.
        """
        with writing():
            for place, row in enumerate(rows):
                if place != row:
                    content = os.pread(self._file.fileno(), self._row_bytes, self._start + row * self._row_bytes)
                    self.write(place, np.frombuffer(content, self.dtype))
            self._write_shape((len(rows), *self.shape[1:]))
            self._file.truncate(self._start + len(rows) * self._row_bytes)

    def stack(self, count: int) -> None:
        """Combine every `count` consecutive rows into one, in place: (n, ...) becomes (n / count, ..., count).

        An interrupted call leaves the file unusable.

        Args:
            count: Divisor of the number of rows.

        Raises:
            DataError: If the disk can't be written.
        """
        stacked_bytes = count * self._row_bytes
        with writing():
            for first in range(0, len(self), count):
                content = os.pread(self._file.fileno(), stacked_bytes, self._start + first * self._row_bytes)
                rows = np.frombuffer(content, self.dtype).reshape(count, *self.shape[1:])
                self.write(first, np.moveaxis(rows, 0, -1))
            self._write_shape((len(self) // count, *self.shape[1:], count))
            self._row_bytes = stacked_bytes

    def _write_shape(self, shape: tuple[int, ...]) -> None:
        """Write another shape into the file's header."""
        self.shape = shape
        self._file.seek(0)
        _write_header(self._file, shape, self.dtype)
        assert self._file.tell() == self._start, "numpy reserves space in the header"

    def flush(self) -> None:
        """Force all written data, of any process, to the disk."""
        with writing():
            os.fsync(self._file.fileno())


def new_array(path: Path, shape: Sequence[int], dtype: DTypeLike) -> ArrayFile:
    """Create an array file of zeros, after checking that the disk has room for it.

    Args:
        path: The ``.npy`` file to create, in an existing folder.
        shape: Shape of the array.
        dtype: Data type of the array.

    Returns:
        The open file. Call ``flush`` when it is filled.

    Raises:
        DataError: If the disk has no room for it.
    """
    kind = np.dtype(dtype)
    _check_free_space(path, shape, kind)
    with writing(), path.open("wb") as file:
        _write_header(file, shape, kind)
        file.truncate(file.tell() + _byte_count(shape, kind))
    return ArrayFile(path)


def report_space_needed(path: Path, shape: Sequence[int], dtype: DTypeLike, processes: int, say: Say) -> None:
    """Report the disk space and memory that a preparation needs, before the work begins.

    Args:
        path: Path of the array file.
        shape: Shape of the array.
        dtype: Data type of the array.
        processes: Number of processes that read images.
        say: Receives one line of text.

    Raises:
        DataError: If the disk has no room for the array.
    """
    needed, free = _check_free_space(path, shape, np.dtype(dtype))
    memory = size(MAIN_PROCESS_BYTES + (processes if processes > 1 else 0) * READER_PROCESS_BYTES)
    say(
        f"note: needs {size(needed)} on the disk of --out, which has {size(free)} left, and about {memory} of memory "
        f"for {processes} process{'es' * (processes > 1)}, for any number of images"
    )


def keep_rows(target: Path, rows: Sequence[int]) -> None:
    """Delete all rows of an array file except the given ones, in place; see `ArrayFile.keep`."""
    with ArrayFile(target) as array:
        array.keep(rows)
        array.flush()


def stack_rows(target: Path, count: int) -> None:
    """Combine every `count` consecutive rows of an array file into one, in place; see `ArrayFile.stack`."""
    with ArrayFile(target) as array:
        array.stack(count)
        array.flush()


def read_head(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Read the header of a ``.npy`` file and return shape, whether the array is in Fortran order, and data type.

    Raises:
        ValueError: If the file is no array file.
    """
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran_order, dtype = read(file)
    return shape, fortran_order, dtype


@contextlib.contextmanager
def writing() -> Iterator[None]:
    """Convert OSErrors of the block into a DataError with advice for the user."""
    try:
        yield
    except OSError as error:
        raise DataError(
            "unwritable_file",
            f"the image array can't be written: {error.strerror}. Make room on the disk of --out, and run the "
            "same command again.",
            reason=error.strerror,
        ) from None


def _write_header(file: IO[bytes], shape: Sequence[int], dtype: np.dtype) -> None:
    head = {
        "descr": np.lib.format.dtype_to_descr(dtype),
        "fortran_order": False,
        "shape": tuple(int(length) for length in shape),
    }
    np.lib.format.write_array_header_1_0(file, head)


def _check_free_space(path: Path, shape: Sequence[int], dtype: np.dtype) -> tuple[int, int]:
    """Return the bytes needed and the bytes free; raise if too few are free.

    Space that `path` already uses counts as free.
    """
    existing = path.stat().st_blocks * 512 if path.is_file() else 0
    needed, free = _byte_count(shape, dtype), _free_bytes(path.parent) + existing
    if needed > free:
        raise DataError(
            "disk_full",
            f"the image array needs {size(needed)}, the disk of --out has {size(free)} left. Make room, give an --out "
            "on another disk, or choose a smaller size.",
            needed=needed,
            free=free,
        )
    return needed, free


def _byte_count(shape: Sequence[int], dtype: np.dtype) -> int:
    return int(np.prod([int(length) for length in shape], dtype=object)) * dtype.itemsize


def _free_bytes(folder: Path) -> int:
    """Return the free bytes on the disk of a folder."""
    return shutil.disk_usage(folder).free
