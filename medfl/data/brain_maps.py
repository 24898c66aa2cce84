"""Maps of a brain to predict, read exactly as ``medfl prep abide`` reads them for training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from monai.data import MetaTensor

from medfl.data.arrays import ArrayDataset
from medfl.data.datalists import FILE, read_datalist
from medfl.data.inference import SiteImages
from medfl.data.readers.map_files import SUFFIXES, read_map
from medfl.data.readers.volumes import common_grid
from medfl.data.sites import site_names
from medfl.errors import DataError
from medfl.objectives import Objective


class BrainMaps:
    """The subjects of a folder, in the order of their files' names; labels are not known.

    Args:
        folder: With files ``<subject>_<derivative>.nii.gz`` (or ``.nii``), in it or below, as PCP names them.
        derivatives: One for each channel of the network, in its order.
        size: Voxels along each edge, as in training.
        mean: As in training.
        std: As in training.

    Raises:
        DataError: If there is no map, or a subject lacks one.
    """

    def __init__(
        self, folder: Path, derivatives: Sequence[str], size: int, mean: Sequence[float], std: Sequence[float]
    ) -> None:
        self._folder, self._derivatives, self._grid = folder, tuple(derivatives), common_grid(size)
        self._mean, self._std = mean, std
        subjects = _subjects(folder, self._derivatives)
        self.subjects = [subjects[name] for name in sorted(subjects)]
        self._names = sorted(subjects)
        if not subjects:
            raise DataError(
                "no_images",
                f"expected maps such as <subject>_{derivatives[0]}{SUFFIXES[0]} in {folder}, found none. Give a folder "
                "of maps, or the folder of a site.",
                path=folder,
            )
        lacking = [number for number, files in enumerate(self.subjects, 1) if len(files) < len(self._derivatives)]
        if lacking:
            raise DataError(
                "missing_map",
                f"expected {', '.join(self._derivatives)} of each subject in {folder}; {len(lacking)} of "
                f"{len(subjects)} subjects lack some, the first is number {lacking[0]} in the order of the names. "
                "Add or remove them.",
                path=folder,
                derivatives=list(derivatives),
                count=len(lacking),
                total=len(subjects),
                number=lacking[0],
            )

    def __len__(self) -> int:
        return len(self.subjects)

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        """An image (channels, X, Y, Z), normalised, that knows the beginning of its files' names."""
        maps = []
        for derivative in self._derivatives:
            try:
                maps.append(read_map(self.subjects[row][derivative], self._grid))
            except DataError as error:
                where = f"subject {row + 1} of {len(self)} in {self._folder}, in the order of the names, {derivative}"
                fields = error.fields | {"path": self._folder, "number": row + 1, "derivative": derivative}
                raise DataError(error.code, f"{where}: {error}", **fields) from None
        images = np.stack(maps, axis=-1)[np.newaxis]
        image, _ = ArrayDataset(images, [0], [0], self._mean, self._std).batch(torch.tensor([0]))
        return {"image": MetaTensor(image[0], meta={"filename_or_obj": self._names[row]})}


def _subjects(folder: Path, derivatives: Sequence[str]) -> dict[str, dict[str, Path]]:
    """Beginning of the files' names to derivative to file."""
    subjects: dict[str, dict[str, Path]] = {}
    for derivative in derivatives:
        for suffix in SUFFIXES:
            end = f"_{derivative}{suffix}"
            for path in sorted(folder.rglob(f"*{end}")):
                if not path.name.startswith(".") and path.is_file():
                    subjects.setdefault(path.name.removesuffix(end), {}).setdefault(derivative, path)
    return subjects


def load_maps(
    dataset_dir: str | Path,
    derivatives: Sequence[str],
    size: int | Sequence[int],
    objective: Objective,
    mean: Sequence[float] = (0.0,),
    std: Sequence[float] = (1.0,),
) -> BrainMaps | SiteImages:
    """What a bundle's ``inference.json`` predicts.

    Args:
        dataset_dir: A folder of maps, or the folder of a site, whose test images are then taken.
        derivatives: One for each channel of the network, in its order.
        size: Voxels along each edge, all the same.
        objective: What is learned.
        mean: As in training.
        std: As in training.

    Raises:
        DataError: If the folder is not there or holds nothing to predict.
    """
    folder = Path(dataset_dir)
    if not folder.is_dir():
        raise DataError(
            "missing_folder",
            f"expected a folder of maps at {folder}, there is none. Give another --dataset_dir.",
            path=folder,
        )
    if (folder / FILE).is_file():
        return SiteImages(folder, objective, mean, std)
    return BrainMaps(folder, derivatives, size if isinstance(size, int) else size[0], mean, std)


def map_names(dataset_dir: str | Path, otherwise: Sequence[str]) -> list[str]:
    """Which map each channel of a partitioned data set is.

    Args:
        dataset_dir: The folder that holds one folder for each site.
        otherwise: What the configuration has as long as the data don't say it, or can't be read.
    """
    try:
        site = Path(dataset_dir) / site_names(Path(dataset_dir))[0]
        return [str(name) for name in read_datalist(site).extra.get("channels", otherwise)]
    except DataError:
        return list(otherwise)
