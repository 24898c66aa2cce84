"""Compare an epoch of medfl's `TransformDataset` with MONAI's `CacheDataset` and `DataLoader`, on the same transforms.

Both cache the results of the deterministic transforms before the first random transform, then crop and augment patches
and collate batches. No network is trained. The epochs of the two alternate, so the load of the machine affects both
equally. The first epoch of each fills the cache and is reported separately. The volumes belong to the hippocampus task
of the Medical Segmentation Decathlon if the folder in the environment variable MEDFL_DATA contains it; otherwise they
are synthetic. Memory is the increase of the process's resident memory while a cache is filled.

    python benchmarks/transforms.py --cases 40
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import nibabel as nib
import numpy as np
import torch
from monai.data import CacheDataset, DataLoader
from monai.transforms import (
    Compose,
    EnsureChannelFirstd,
    LoadImaged,
    NormalizeIntensityd,
    Orientationd,
    RandCropByPosNegLabeld,
    RandFlipd,
    RandGaussianNoised,
    RandScaleIntensityd,
    Spacingd,
    SpatialPadd,
)

from medfl.data.transforms.dataset import TransformDataset
from medfl.training.batches import load_batches
from medfl.training.loop import row_batches

KEYS = ("image", "label")
"""Keys of a case: the files of its image and its segmentation."""


def real_cases(count: int) -> list[dict[str, str]]:
    """Return up to `count` hippocampus cases of the folder MEDFL_DATA, or an empty list if it contains none."""
    folder = Path(os.environ.get("MEDFL_DATA", "")) / "segmentation" / "hippocampus"
    if not (folder / "dataset.json").is_file():
        return []
    records = json.loads((folder / "dataset.json").read_text())["training"][:count]
    return [{key: str(folder / record[key]) for key in KEYS} for record in records]


def synthetic_cases(folder: Path, count: int) -> list[dict[str, str]]:
    """Write synthetic volumes of about the size of the hippocampus volumes, with two labels, and return the cases."""
    draws, cases = np.random.default_rng(0), []
    for number in range(count):
        mask = np.zeros((36, 50, 36), np.uint8)
        mask[8:24, 10:24, 8:24], mask[8:24, 24:40, 8:24] = 1, 2
        values = {"image": (draws.normal(100, 20, mask.shape) + 40 * mask).astype(np.float32), "label": mask}
        for key, array in values.items():
            nib.save(nib.Nifti1Image(array, np.eye(4)), folder / f"{number}_{key}.nii.gz")
        cases.append({key: str(folder / f"{number}_{key}.nii.gz") for key in KEYS})
    return cases


def make_chain(edge: int) -> Compose:
    """Return the transforms of a 3-D segmentation bundle of the model zoo, with two patches per case."""
    return Compose(
        [
            LoadImaged(KEYS),
            EnsureChannelFirstd(KEYS),
            Orientationd(KEYS, axcodes="RAS", labels=None),
            Spacingd(KEYS, pixdim=(1, 1, 1), mode=("bilinear", "nearest")),
            NormalizeIntensityd("image"),
            SpatialPadd(KEYS, (edge,) * 3),
            RandCropByPosNegLabeld(KEYS, "label", (edge,) * 3, num_samples=2),
            RandFlipd(KEYS, prob=0.5, spatial_axis=0),
            RandScaleIntensityd("image", 0.1, prob=0.5),
            RandGaussianNoised("image", prob=0.5),
        ]
    )


def resident_memory() -> float:
    """Return the resident memory of this process in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


class MonaiLoop:
    """Epochs with MONAI alone. The constructor fills the cache.

    Args:
        cases: Files of each case.
        edge: Edge of a patch in voxels.
        batch: Number of cases in a batch.
        loaders: Number of loader processes.
    """

    def __init__(self, cases: list[dict[str, str]], edge: int, batch: int, loaders: int) -> None:
        data = CacheDataset(cases, make_chain(edge), cache_rate=1.0, num_workers=None, progress=False)
        self._loader = DataLoader(
            data, num_workers=loaders, batch_size=batch, shuffle=True, generator=torch.Generator().manual_seed(0)
        )

    def epoch(self, number: int) -> int:
        """Run one pass and return its number of samples."""
        return sum(len(batch["image"].as_tensor()) + 0 * len(batch["label"]) for batch in self._loader)


class MedflLoop:
    """Epochs with medfl's data set, as local training reads it. The constructor fills the cache.

    Args:
        cases: Files of each case.
        edge: Edge of a patch in voxels.
        batch: Number of cases in a batch.
        loaders: Number of loader processes.
    """

    def __init__(self, cases: list[dict[str, str]], edge: int, batch: int, loaders: int) -> None:
        self._data, self._batch = TransformDataset(cases, make_chain(edge), loaders=loaders), batch
        self.epoch(0)

    def epoch(self, number: int) -> int:
        """Run one pass and return its number of samples."""
        generator = torch.Generator().manual_seed(number)
        batches = row_batches(len(self._data), self._batch, generator, epochs=1)
        return sum(len(loaded.rows) for loaded in load_batches(self._data, batches, generator))


Loop = MonaiLoop | MedflLoop


def fill_cache(make: Callable[[], Loop]) -> tuple[Loop, float, float]:
    """Create a loop, which fills its cache. Return the loop, the seconds, and the added memory in MiB."""
    before, start = resident_memory(), time.perf_counter()
    loop = make()
    return loop, time.perf_counter() - start, resident_memory() - before


def measure(cases: list[dict[str, str]], edge: int, batch: int, loaders: int, repetitions: int) -> dict[str, float]:
    """Measure both loops and return the figures by name: seconds, their ratio, and memory."""
    figures: dict[str, float] = {}
    loops: dict[str, Loop] = {}
    for name, kind in (("plain", MonaiLoop), ("medfl", MedflLoop)):
        loops[name], seconds, memory = fill_cache(lambda kind=kind: kind(cases, edge, batch, loaders))  # type: ignore[misc]
        figures |= {f"{name}: seconds to fill": seconds, f"{name}: MiB added": memory}
    seconds: dict[str, list[float]] = {name: [] for name in loops}
    for number in range(1, repetitions + 1):
        for name in list(loops)[:: 1 if number % 2 else -1]:
            start = time.perf_counter()
            samples = loops[name].epoch(number)
            seconds[name].append(time.perf_counter() - start)
            assert samples == 2 * len(cases)
    figures |= {f"{name}: seconds an epoch": statistics.median(values) for name, values in seconds.items()}
    ratios = [medfl / plain for medfl, plain in zip(seconds["medfl"], seconds["plain"], strict=True)]
    return figures | {"ratio of an epoch (medfl / plain)": statistics.median(ratios)}


def main() -> None:
    """Run the measurements and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=40, help="number of cases")
    parser.add_argument("--edge", type=int, default=32, help="edge of a patch in voxels")
    parser.add_argument("--batch", type=int, default=4, help="number of cases in a batch")
    parser.add_argument("--loaders", type=int, default=0, help="number of loader processes of each loop")
    parser.add_argument("--repetitions", type=int, default=7, help="number of counted epochs")
    parser.add_argument("--synthetic", action="store_true", help="use synthetic volumes, even if MEDFL_DATA is set")
    parser.add_argument("--json", type=Path, help="file for the figures as JSON")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    with tempfile.TemporaryDirectory() as folder:
        cases = [] if options.synthetic else real_cases(options.cases)
        print(f"{options.cases} {'hippocampus' if cases else 'synthetic'} volumes, {options.loaders} loaders")
        cases = cases or synthetic_cases(Path(folder), options.cases)
        figures = measure(cases, options.edge, options.batch, options.loaders, options.repetitions)
    for name, value in figures.items():
        print(f"{name:<36} {value:8.3f}")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
