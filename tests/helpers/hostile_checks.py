"""Check one hostile or odd input: it is refused with its code or read, in time and memory, and nothing is disclosed.

An input goes the two ways of a user's file: through ``medfl prep folder``, next to three good images, and through the
inference of an exported bundle. Names and identifiers in the inputs are "Secret Sally", in file names and in headers.
"""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import signal
import stat
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import nibabel
import numpy as np
from own_cohort import SOME, prepare
from refusals import refused

from medfl.data.inference import load_images
from medfl.data.ingest.folder_synthetic import write_table
from medfl.errors import DataError, MedflError
from medfl.objectives import Multiclass

MAX_SECONDS = 8
"""Seconds after which a case counts as hanging; a case takes well under a second on an idle machine."""

MAX_NEW_BYTES = 1 << 30
"""Address space that a case may take beyond what the process has."""

SECRETS = ("sally", "secret", "سارة")
"""Words of file names and headers that no message may contain, in lower case."""

HEAD = ("file", "diagnosis")
"""Columns of the tables."""


COLUMN_OPTIONS = ("--image-column", "file", "--target", "class:diagnosis")
"""Options of ``medfl prep folder`` that name the columns; in Python `own_cohort.SOME` does."""


@dataclass(frozen=True)
class Hostile:
    """One input and what must happen to it.

    Attributes:
        make: Function that writes the input into a folder, and returns the path that the table names.
        code: Code of the error with which the input is refused; empty if it is read.
        fields: Fields of the error, with their values.
        size: Size to which it is resized; three numbers ask for a volume.
        values: Expected pixels, after preparation; None if only the absence of an error counts.
    """

    make: Callable[[Path], Path]
    code: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)
    size: tuple[int, ...] = (4, 4)
    values: np.ndarray | None = None


@contextlib.contextmanager
def bounded(folder: Path, most_bytes: int = MAX_NEW_BYTES) -> Iterator[None]:
    """Limit time and memory of the block.

    Args:
        folder: Folder whose named pipes are opened at the time limit, so that a thread that waits for one ends.
        most_bytes: Address space that the block may take beyond what the process has.
    """

    is_over = False

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal is_over
        for path in folder.rglob("*"):
            if stat.S_ISFIFO(path.lstat().st_mode):
                os.close(os.open(path, os.O_RDWR))
        if not is_over:
            is_over = True
            raise AssertionError(f"takes more than {MAX_SECONDS} seconds")

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, MAX_SECONDS, 0.2)  # again, since a reader may open a pipe several times
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + most_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class _Records(logging.Handler):
    """List of the messages of all loggers."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """Check that no library warns, because its warnings may repeat a header."""
    records = _Records()
    logging.getLogger().addHandler(records)
    try:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            yield
    finally:
        logging.getLogger().removeHandler(records)
    assert not [str(warning.message) for warning in seen] + records.messages


def check_discreet(error: MedflError, folder: Path) -> None:
    """Check that an error names no patient and repeats no decoder's message, and that the memory sufficed."""
    disclosed = f"{error}{error.fields}".replace(str(folder), "").lower()
    assert not [word for word in SECRETS if word in disclosed], disclosed
    assert error.code != "out_of_memory"
    assert "memoryerror" not in disclosed
    assert error.__suppress_context__ or error.__context__ is None


def check_image(tmp_path: Path, case: Hostile) -> None:
    """Check an input as image 1 of 4 of ``medfl prep folder``, and in inference."""
    images, out = tmp_path / "images", tmp_path / "P"
    images.mkdir()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of writing the input
        path = case.make(images)
    with silent(), bounded(tmp_path):
        _check_inference(images, case)
        rows = [(str(path.relative_to(images)), "a"), *_good_images(images, len(case.size))]
        table = write_table(tmp_path / "t.csv", rows, HEAD)
        before = sorted(os.listdir(tmp_path))
        if not case.code:
            datalist = prepare(images, table, SOME, case.size, out)
            place = next(record["image"] for record in datalist.splits["training"] if record["label"] == 0)
            pixels = np.load(out / "images.npy")[place]
            if case.values is not None:
                np.testing.assert_allclose(pixels.astype(float), case.values, atol=1e-5)
            return
        with refused(DataError, "unreadable_image", count=1, total=4) as error:
            prepare(images, table, SOME, case.size, out)
        assert "table row 2" in str(error.value)
        check_discreet(error.value, tmp_path)
        assert sorted(os.listdir(tmp_path)) == before, "nothing is left behind"


def _check_inference(images: Path, case: Hostile) -> None:
    def read() -> None:
        files = load_images(images, case.size, len(case.size), 1, Multiclass(2))
        assert len(files) == 1
        assert files[0]["image"].isfinite().all()

    if not case.code:
        return read()
    with refused(DataError, case.code, **case.fields) as error:
        read()
    return check_discreet(error.value, images)


def _good_images(images: Path, dims: int) -> list[tuple[str, str]]:
    """Write three good images, and return their table rows."""
    rows = [(f"good-{number}.{'pgm' if dims == 2 else 'nii'}", "bab"[number]) for number in range(3)]
    for name, _ in rows:
        if dims == 2:
            (images / name).write_bytes(b"P5 4 4 255\n" + bytes(range(16)))
        else:
            voxels = np.arange(64, dtype=np.int16).reshape(4, 4, 4)
            nibabel.save(nibabel.Nifti1Image(voxels, np.eye(4)), images / name)
    return rows
