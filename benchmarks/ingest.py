"""Speed and memory of DICOM ingestion against bare pydicom: decode, resize, store.

Both read the same made-up mammograms to the same size, in turns, so that they meet the same machine. "Bare" is the loop
that one would write: ``dcmread(path).pixel_array``, Pillow's mean over areas, a row of an array. medfl's figures hold
everything that `medfl prep cbis_ddsm` does for a file: checks of the header, its search for elements that identify, the
own range as 16 bits, the journal with fsync.

- Time per core: CPU seconds with one worker, medfl / bare; the median over the repetitions. Aim: 1.2.
- Cores used: CPU seconds of all worker processes divided by wall seconds, and images a second, process start included.
  On a machine with other work to do compare with as many processes of the bare loop, run just before.
- Memory: the peak of the resident set of a process that did nothing else (VmHWM of Linux).

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

from medfl.data.ingest.pipeline import core_count, ingest
from medfl_datasets.cbis_ddsm.pixels import CbisFilm, CbisReadOptions, read_image

SYNTAXES = {"none": ExplicitVRLittleEndian, "jpeg2000": JPEG2000Lossless, "jpeg-ls": JPEGLSLossless}
MIB = 2**20
PASSES = 8
"""How often the worker processes read each file, so that their start counts as little as in a whole data set."""


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


def bare(paths: list[Path], size: int, folder: Path) -> None:
    """Read the images as a script without medfl would."""
    rows = np.lib.format.open_memmap(folder / "bare.npy", "w+", np.uint16, (len(paths), size, size))
    for row, path in enumerate(paths):
        image = Image.fromarray(pydicom.dcmread(path).pixel_array)
        rows[row] = np.asarray(image.resize((size, size), Image.Resampling.BOX))
    rows.flush()


def medfl(paths: list[Path], size: int, folder: Path, workers: int = 1) -> None:
    """Read the images as `medfl prep cbis_ddsm` does."""
    films = [CbisFilm((path,), ("1.2.3",), ("P_00001",), "left", crop=False) for path in paths]
    job = functools.partial(read_image, CbisReadOptions((size, size)))
    target, work = folder / "medfl.npy", folder / "work"
    ingest(films, job, lambda film: film.files, target, (size, size), np.uint16, work=work, recipe={}, workers=workers)


def bare_in_processes(paths: list[Path], size: int, folder: Path, workers: int) -> None:
    """Run `bare` in several processes, each with a share of the files."""
    places = [folder / f"share {number}" for number in range(workers)]
    for place in places:
        place.mkdir(exist_ok=True)
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        shares = [pool.submit(bare, paths[number::workers], size, place) for number, place in enumerate(places)]
        for share in shares:
            share.result()


def seconds(action: Callable[[], None]) -> tuple[float, float]:
    """CPU seconds, of processes that ended too, and wall seconds."""

    def cpu() -> float:
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(usage.ru_utime + usage.ru_stime for usage in used)

    before, begun = cpu(), time.perf_counter()
    action()
    return cpu() - before, time.perf_counter() - begun


def measure(paths: list[Path], size: int, folder: Path, repetitions: int, workers: int) -> dict[str, float]:
    """All times."""
    bare(paths[:2], size, folder)  # libraries load what they need
    medfl(paths[:2], size, folder)
    alone: dict[str, list[tuple[float, float]]] = {"bare": [], "medfl": []}
    for number in range(repetitions):
        turns = [("bare", bare), ("medfl", medfl)]
        for name, action in turns[:: -1 if number % 2 else 1]:
            alone[name].append(seconds(lambda action=action: action(paths, size, folder)))
    _, plain_wall = seconds(lambda: bare_in_processes(paths * PASSES, size, folder, workers))
    cpu, wall = seconds(lambda: medfl(paths * PASSES, size, folder, workers))
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
    """Read the options, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=20)
    parser.add_argument("--shape", default="4000x2500", help="of the files, rows x columns")
    parser.add_argument("--bits", type=int, default=16, help="in use, of 16")
    parser.add_argument("--compression", choices=sorted(SYNTAXES), default="none")
    parser.add_argument("--size", type=int, default=224, help="of the rows")
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--workers", type=int, default=core_count())
    parser.add_argument("--json", type=Path, help="write the figures here too")
    parser.add_argument("--peak", choices=("bare", "medfl"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peak:
        with tempfile.TemporaryDirectory() as place:
            {"bare": bare, "medfl": medfl}[options.peak](sorted(options.folder.iterdir()), options.size, Path(place))
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
