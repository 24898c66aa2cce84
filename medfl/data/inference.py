"""Images, or rows of a table, to predict; images are read exactly as ``medfl prep`` reads them for training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from monai.data import MetaTensor

from medfl.data.arrays import ArrayDataset
from medfl.data.datalists import FILE
from medfl.data.readers.images import IMAGE_SUFFIXES, read_image
from medfl.data.readers.quiet import quiet_decoders
from medfl.data.sites import load_site
from medfl.data.table import Table, read_table, row_list
from medfl.errors import DataError
from medfl.objectives import Objective

Read = Callable[[Path, tuple[int, ...], int], np.ndarray]
"""Reads an image file at a size and with a number of channels, as `medfl.data.readers.images.read_image` does."""


class ImageFiles:
    """The images of a folder, in the order of their names; labels are not known.

    Args:
        folder: With image files: PNG, JPEG, DICOM, NIfTI and what else `medfl.data.readers.images.read_image` reads.
        size: Height and width, or depth, height and width, that the network takes.
        channels: Channels that the network takes.
        mean: As in training.
        std: As in training.
        read: Reads a file.

    Raises:
        DataError: If there is no image.
    """

    def __init__(
        self,
        folder: Path,
        size: Sequence[int],
        channels: int,
        mean: Sequence[float],
        std: Sequence[float],
        read: Read = read_image,
    ) -> None:
        self.files = sorted(path for path in folder.rglob("*") if _is_image(path))
        if not self.files:
            raise DataError(
                "no_images",
                f"expected images in {folder}, found none. Give a folder of image files ({', '.join(IMAGE_SUFFIXES)}), "
                "or the folder of a site.",
                path=folder,
            )
        self._folder, self._size, self._channels = folder, tuple(size), channels
        self._mean, self._std, self._read = mean, std, read

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        """An image (C, *spatial), normalised, that knows the name of its file."""
        path = self.files[row]
        try:
            with quiet_decoders():
                images = self._read(path, self._size, self._channels)[np.newaxis]
        except DataError as error:
            where = f"image {row + 1} of {len(self)} in {self._folder}, in the order of the names"
            fields = error.fields | {"path": self._folder, "number": row + 1}
            raise DataError(error.code, f"{where}: {error}", **fields) from None
        image, _ = ArrayDataset(images, [0], [0], self._mean, self._std).batch(torch.tensor([0]))
        return {"image": MetaTensor(image[0], meta={"filename_or_obj": str(path.relative_to(self._folder))})}


def _is_image(path: Path) -> bool:
    """Whether a file counts; names that begin with a dot are those of the system (macOS writes ``._scan.png``)."""
    return path.name.lower().endswith(IMAGE_SUFFIXES) and not path.name.startswith(".") and path.is_file()


class TableRows:
    """The rows of a table; targets are not known, and a row is called by its number in the file, where names are row 1.

    Args:
        path: A table as `medfl.data.table.read_table` takes it.
        features: Names of the columns that the network takes, in their order; others are passed over. Empty takes all
            columns as they come.
        count: How many the network takes.
        mean: As in training.
        std: As in training.

    Raises:
        DataError: If a column is missing, there are more or fewer, or a cell holds no finite number.
    """

    def __init__(
        self, path: Path, features: Sequence[str], count: int, mean: Sequence[float], std: Sequence[float]
    ) -> None:
        table = read_table(path)
        columns = list(features) or table.columns
        table.require(columns)
        if len(columns) != count:
            raise DataError(
                "wrong_column_count",
                f"expected {count} columns of numbers in {path}, got {len(columns)}. Leave out all others.",
                path=path,
                expected=count,
                found=len(columns),
            )
        self._numbers = table.numbers
        self._data = ArrayDataset(_cells(table, columns), [0] * len(table.rows), range(len(table.rows)), mean, std)

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        """A vector (F,), normalised, that knows its row."""
        return {"image": MetaTensor(self._data[row]["image"], meta={"filename_or_obj": f"row {self._numbers[row]}"})}


def _cells(table: Table, columns: Sequence[str]) -> np.ndarray:
    """The numbers of some columns, (N, F), float32."""
    cells = [[_number(row[column]) for column in columns] for row in table.rows]
    vectors = np.array(cells, dtype=np.float32).reshape(len(cells), len(columns))
    wrong = [table.numbers[place] for place in np.flatnonzero(~np.isfinite(vectors).all(axis=1))]
    if wrong:
        raise DataError(
            "not_finite",
            f"expected finite numbers in {', '.join(columns)} of {table.path}, not so in {row_list(wrong)}. Fill them "
            "in as in the data of the training, or leave these rows out.",
            path=table.path,
            columns=list(columns),
            rows=wrong,
        )
    return vectors


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return float("nan")


class SiteImages:
    """The test images, or vectors, of a site's data list; they are called by their rows.

    Args:
        folder: The site's folder.
        objective: What is learned.
        mean: As in training.
        std: As in training.

    Raises:
        DataError: If there is no test image, or as in `medfl.data.sites.load_site`.
    """

    def __init__(self, folder: Path, objective: Objective, mean: Sequence[float], std: Sequence[float]) -> None:
        data = load_site(folder, objective, mean, std).test
        assert isinstance(data, ArrayDataset)
        self._data = data
        if not len(self._data):
            raise DataError(
                "no_images",
                f"expected test images in the data list of {folder}, there are none.",
                path=folder,
                split="test",
            )

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        """An image (C, *spatial), normalised, that knows its row."""
        return {"image": MetaTensor(self._data[row]["image"], meta={"filename_or_obj": f"row {row}"})}


def load_images(
    dataset_dir: str | Path,
    size: int | Sequence[int],
    spatial_dims: int,
    in_channels: int,
    objective: Objective,
    mean: Sequence[float] = (0.5,),
    std: Sequence[float] = (0.5,),
    read: Read = read_image,
) -> ImageFiles | SiteImages:
    """What a bundle's ``inference.json`` predicts.

    Args:
        dataset_dir: A folder of image files, or the folder of a site, whose test images are then taken.
        size: Spatial size that the network takes; one number stands for all edges.
        spatial_dims: 2 for images, 3 for volumes.
        in_channels: Channels that the network takes.
        objective: What is learned.
        mean: As in training.
        std: As in training.
        read: Reads an image file.

    Raises:
        DataError: If the folder is not there or holds nothing to predict.
    """
    folder = Path(dataset_dir)
    if not folder.is_dir():
        raise DataError(
            "missing_folder",
            f"expected a folder of images at {folder}, there is none. Give another --dataset_dir.",
            path=folder,
        )
    if (folder / FILE).is_file():
        return SiteImages(folder, objective, mean, std)
    edges = [size] * spatial_dims if isinstance(size, int) else list(size)
    return ImageFiles(folder, edges, in_channels, mean, std, read)


def load_rows(
    dataset_dir: str | Path,
    in_features: int,
    objective: Objective,
    features: Sequence[str] = (),
    mean: Sequence[float] = (0.0,),
    std: Sequence[float] = (1.0,),
) -> TableRows | SiteImages:
    """What the ``inference.json`` of a bundle for tables predicts.

    Args:
        dataset_dir: A table, or the folder of a site, whose test rows are then taken.
        in_features: Numbers that the network takes.
        objective: What is learned.
        features: Their names, where they are known.
        mean: As in training.
        std: As in training.

    Raises:
        DataError: If there is neither, or nothing to predict.
    """
    place = Path(dataset_dir)
    if place.is_file():
        return TableRows(place, features, in_features, mean, std)
    if (place / FILE).is_file():
        return SiteImages(place, objective, mean, std)
    raise DataError(
        "missing_file",
        f"expected a table (CSV) or the folder of a site at {place}, got neither. Give --dataset_dir.",
        path=place,
    )
