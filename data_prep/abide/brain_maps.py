"""Load brain maps for inference, read exactly as ``medfl prep abide`` reads them for training.

A brain map is a volume with one number for each voxel, computed from a functional MRI scan. A derivative is the name of
the quantity that a map contains, such as ``reho``. The maps of one subject are the channels of one image, all resampled
to one common grid, a cube in MNI152 space.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from monai.data import MetaTensor

from medfl.data.arrays import ArrayDataset
from medfl.data.datalists import DATALIST_FILE, read_datalist
from medfl.data.inference import SiteImages
from medfl.data.readers.volumes import common_grid
from medfl.data.sites import site_names
from medfl.errors import DataError
from medfl.objectives import Objective
from medfl_datasets.abide.map_files import SUFFIXES, read_map


class BrainMaps:
    """Brain maps of the subjects in a folder, in the order of their file names, without labels.

    Args:
        folder: Folder with files ``<subject>_<derivative>.nii.gz`` (or ``.nii``), at any depth, named as in the
            Preprocessed Connectomes Project (PCP).
        derivatives: Derivative of each input channel of the network, in channel order.
        size: Voxels along each edge of the common grid, as in training.
        mean: Normalisation mean, as in training.
        std: Normalisation standard deviation, as in training.

    Attributes:
        subjects: One dictionary for each subject, with the path of the map file by derivative.

    Raises:
        DataError: If there is no map, or a subject lacks a derivative.
    """

    def __init__(
        self, folder: Path, derivatives: Sequence[str], size: int, mean: Sequence[float], std: Sequence[float]
    ) -> None:
        self._folder, self._derivatives, self._grid = folder, tuple(derivatives), common_grid(size)
        self._mean, self._std = mean, std
        subjects = _files_by_subject(folder, self._derivatives)
        self.subjects = [subjects[name] for name in sorted(subjects)]
        self._names = sorted(subjects)
        if not subjects:
            raise DataError(
                "no_images",
                f"expected maps such as <subject>_{derivatives[0]}{SUFFIXES[0]} in {folder}, found none. Give a folder "
                "of maps, or the folder of a site.",
                path=folder,
            )
        incomplete = [number for number, files in enumerate(self.subjects, 1) if len(files) < len(self._derivatives)]
        if incomplete:
            raise DataError(
                "missing_map",
                f"expected {', '.join(self._derivatives)} of each subject in {folder}; {len(incomplete)} of "
                f"{len(subjects)} subjects lack some, the first is number {incomplete[0]} in the order of the names. "
                "Add or remove them.",
                path=folder,
                derivatives=list(derivatives),
                count=len(incomplete),
                total=len(subjects),
                number=incomplete[0],
            )

    def __len__(self) -> int:
        return len(self.subjects)

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        """Return ``{"image": ...}`` with the normalised image (channels, X, Y, Z) of one subject.

        The image's metadata ``filename_or_obj`` is the prefix that the subject's file names share.
        """
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


def _files_by_subject(folder: Path, derivatives: Sequence[str]) -> dict[str, dict[str, Path]]:
    """Return a mapping from each subject (the file name prefix) to a mapping from derivative to file."""
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
    """Load the maps that a bundle's ``inference.json`` predicts.

    Args:
        dataset_dir: Folder of maps, or a site's folder, whose test images are then used.
        derivatives: Derivative of each input channel of the network, in channel order.
        size: Voxels along each edge; all edges are equal.
        objective: Training objective of the task.
        mean: Normalisation mean, as in training.
        std: Normalisation standard deviation, as in training.

    Raises:
        DataError: If the folder is missing or contains nothing to predict.
    """
    folder = Path(dataset_dir)
    if not folder.is_dir():
        raise DataError(
            "missing_folder",
            f"expected a folder of maps at {folder}, there is none. Give another --dataset_dir.",
            path=folder,
        )
    if (folder / DATALIST_FILE).is_file():
        return SiteImages(folder, objective, mean, std)
    return BrainMaps(folder, derivatives, size if isinstance(size, int) else size[0], mean, std)


def map_names(dataset_dir: str | Path, otherwise: Sequence[str]) -> list[str]:
    """Return the derivative that each image channel of a partitioned data set contains, in channel order.

    Args:
        dataset_dir: Partitioned data set: contains one folder for each site.
        otherwise: Derivatives to return if the data list has no channel names or can't be read.
    """
    try:
        site = Path(dataset_dir) / site_names(Path(dataset_dir))[0]
        return [str(name) for name in read_datalist(site).extra.get("channels", otherwise)]
    except DataError:
        return list(otherwise)
