"""Compare the speed and memory of medfl's DICOM ingestion with a plain pydicom loop: decode, resize, store.

Both read the same synthetic mammograms and resize them to the same size. They run alternately, so the load of the
machine affects both equally. The figures call the plain loop "bare": ``dcmread(path).pixel_array``, Pillow's box
filter, and a row of an array. medfl's figures include every step of `medfl prep cbis_ddsm` for a file: the checks of
the header, the search for identifying elements, the scaling to 16 bits, and the journal with fsync.

- CPU per image: ratio of CPU seconds with one worker, medfl / bare; the median over the repetitions. Target: 1.2.
- Cores used: CPU seconds of all worker processes divided by wall seconds. This figure and the images per second include
  the start of the processes. On a machine with other load, use the ratio of the wall times: the same number of
  processes runs the plain loop immediately before.
- Peak memory: maximum resident set size of a separate process (VmHWM of Linux).

    python benchmarks/ingest.py
    python benchmarks/ingest.py --images 60 --size 512 --bits 12
"""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pydicom
from PIL import Image
from pydicom.dataset import FileMetaDataset
from pydicom.uid import UID, ExplicitVRLittleEndian, JPEG2000Lossless, JPEGLSLossless

from medfl.data.ingest.pipeline import ingest
from medfl.utils.processes import core_count
from medfl_datasets.cbis_ddsm.pixels import CbisFilm, CbisReadOptions, read_image

SYNTAXES = {"none": ExplicitVRLittleEndian, "jpeg2000": JPEG2000Lossless, "jpeg-ls": JPEGLSLossless}
MIB = 2**20
PASSES = 8
"""Number of times that the worker processes read each file. Repetition makes the share of the process start as small as
for a whole data set."""


def write_film(path: Path, number: int, rows: int, columns: int, bits: int, syntax: UID) -> None:
    """Write a synthetic mammogram: a bright half disc with film grain."""
    rng = np.random.default_rng(number)
    y, x = np.ogrid[:rows, :columns]
    breast = np.clip(1 - np.hypot(x / columns, (y - rows / 2) / rows), 0.02, 1)
    grain = rng.integers(0, 64, (rows, columns), dtype=np.uint16)
    dataset = pydicom.Dataset()
    dataset.file_meta = FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    dataset.SOPClassUID, dataset.SOPInstanceUID = UID("1.2.840.10008.5.1.4.1.1.7"), UID(f"1.2.3.{number}")
    dataset.Modality, dataset.PatientID, dataset.SeriesInstanceUID = "MG", "P_00001", "1.2.3"
    dataset.Rows, dataset.Columns, dataset.SamplesPerPixel = rows, columns, 1
    dataset.PhotometricInterpretation, dataset.PixelRepresentation = "MONOCHROME2", 0
    dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit = 16, bits, bits - 1
    dataset.PixelData = ((breast * (2**bits - 65)).astype(np.uint16) + grain).tobytes()
    if syntax.is_compressed:
        dataset.compress(syntax)
    dataset.save_as(path, enforce_file_format=True)


def read_with_pydicom(paths: list[Path], size: int, folder: Path) -> None:
    """Read and resize the images with pydicom and Pillow alone, and write them to a file in `folder`."""
    rows = np.lib.format.open_memmap(folder / "bare.npy", "w+", np.uint16, (len(paths), size, size))
    for row, path in enumerate(paths):
        image = Image.fromarray(pydicom.dcmread(path).pixel_array)
        rows[row] = np.asarray(image.resize((size, size), Image.Resampling.BOX))
    rows.flush()


def read_with_medfl(paths: list[Path], size: int, folder: Path, workers: int = 1) -> None:
    """Read and resize the images as `medfl prep cbis_ddsm` does, and write them to a file in `folder`."""
    films = [CbisFilm((path,), ("1.2.3",), ("P_00001",), "left", crop=False) for path in paths]
    job = functools.partial(read_image, CbisReadOptions((size, size)))
    target, work = folder / "medfl.npy", folder / "work"
    ingest(films, job, lambda film: film.files, target, (size, size), np.uint16, work=work, recipe={}, workers=workers)


def read_with_pydicom_processes(paths: list[Path], size: int, folder: Path, workers: int) -> None:
    """Run `read_with_pydicom` in several processes, each with a share of the files."""
    places = [folder / f"share {number}" for number in range(workers)]
    for place in places:
        place.mkdir(exist_ok=True)
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        shares = [
            pool.submit(read_with_pydicom, paths[number::workers], size, place) for number, place in enumerate(places)
        ]
        for share in shares:
            share.result()


def seconds(action: Callable[[], None]) -> tuple[float, float]:
    """Run the action and return its CPU seconds, including ended child processes, and its wall seconds."""

    def cpu() -> float:
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(usage.ru_utime + usage.ru_stime for usage in used)

    before, start = cpu(), time.perf_counter()
    action()
    return cpu() - before, time.perf_counter() - start


def measure(paths: list[Path], size: int, folder: Path, repetitions: int, workers: int) -> dict[str, float]:
    """Return the times of both loops, by the name of the figure."""
    read_with_pydicom(paths[:2], size, folder)  # a warm-up: libraries load their modules
    read_with_medfl(paths[:2], size, folder)
    alone: dict[str, list[tuple[float, float]]] = {"bare": [], "medfl": []}
    for number in range(repetitions):
        turns = [("bare", read_with_pydicom), ("medfl", read_with_medfl)]
        for name, action in turns[:: -1 if number % 2 else 1]:
            alone[name].append(seconds(lambda action=action: action(paths, size, folder)))
    _, plain_wall = seconds(lambda: read_with_pydicom_processes(paths * PASSES, size, folder, workers))
    cpu, wall = seconds(lambda: read_with_medfl(paths * PASSES, size, folder, workers))
    pairs = list(zip(alone["bare"], alone["medfl"], strict=True))
    return {
        "CPU per image, medfl / bare": statistics.median(mine[0] / plain[0] for plain, mine in pairs),
        "milliseconds of CPU per image, bare": min(used for used, _ in alone["bare"]) / len(paths) * 1e3,
        "milliseconds of CPU per image, medfl": min(used for used, _ in alone["medfl"]) / len(paths) * 1e3,
        "images a second, bare": len(paths) / min(taken for _, taken in alone["bare"]),
        "images a second, medfl, one worker": len(paths) / min(taken for _, taken in alone["medfl"]),
        f"images a second, medfl, {workers} workers": PASSES * len(paths) / wall,
        f"cores used by {workers} workers": cpu / wall,
        f"wall with {workers} processes, medfl / bare": wall / plain_wall,
    }


def peak_of(which: str, folder: Path, size: int) -> float:
    """Return the peak resident memory of a process that reads all files of a folder, in MiB."""
    command = [sys.executable, __file__, "--peak", which, "--folder", str(folder), "--size", str(size)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def main() -> None:
    """Run the measurements and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=20, help="number of files")
    parser.add_argument("--shape", default="4000x2500", help="size of the images in the files, rows x columns")
    parser.add_argument("--bits", type=int, default=16, help="stored bits per pixel, of 16 allocated bits")
    parser.add_argument("--compression", choices=sorted(SYNTAXES), default="none", help="compression of the pixel data")
    parser.add_argument("--size", type=int, default=224, help="edge of the resized images in pixels")
    parser.add_argument("--repetitions", type=int, default=9, help="repetitions with one worker")
    parser.add_argument("--workers", type=int, default=core_count(), help="number of worker processes")
    parser.add_argument("--json", type=Path, help="file for the figures as JSON")
    parser.add_argument("--peak", choices=("bare", "medfl"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peak:
        with tempfile.TemporaryDirectory() as place:
            read = {"bare": read_with_pydicom, "medfl": read_with_medfl}[options.peak]
            read(sorted(options.folder.iterdir()), options.size, Path(place))
        lines = Path("/proc/self/status").read_text().splitlines()
        print(int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024 / MIB)
        return
    rows, columns = map(int, options.shape.split("x"))
    with tempfile.TemporaryDirectory() as place:
        files, folder = Path(place, "files"), Path(place)
        files.mkdir()
        paths = [files / f"{number:04d}.dcm" for number in range(options.images)]
        for number, path in enumerate(paths):
            write_film(path, number, rows, columns, options.bits, SYNTAXES[options.compression])
        figures = measure(paths, options.size, folder, options.repetitions, options.workers)
        for which in ("bare", "medfl"):
            figures[f"MiB at the peak, {which}"] = peak_of(which, files, options.size)
    print(f"{options.images} images of {rows} x {columns}, {options.bits} bits, to {options.size}")
    for name, value in figures.items():
        print(f"{name:<48} {value:8.2f}")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
