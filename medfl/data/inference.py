"""Load images or table rows for inference. Images are read exactly as ``medfl prep`` reads them for training."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from monai.data import MetaTensor

from medfl.data.arrays import ArrayDataset
from medfl.data.datalists import DATALIST_FILE
from medfl.data.features.feature_encoding import encode_rows, read_columns
from medfl.data.readers.dicom_header import unopenable_file_error
from medfl.data.readers.dicom_series import ImageSource, source_files
from medfl.data.readers.image_reading import DEFAULT_READING, SeriesChoice, parse_image_reading
from medfl.data.readers.images import IMAGE_SUFFIXES, file_kind, read_image
from medfl.data.readers.quiet import quiet_decoders
from medfl.data.readers.series_folder import find_series, fits
from medfl.data.sites import load_site
from medfl.data.table import CsvTable, read_table, row_list
from medfl.errors import DataError
from medfl.objectives import Objective
from medfl.records.feature_columns import FeatureColumns

ImageFunction = Callable[[Any, tuple[int, ...], int], np.ndarray]
"""Function of a path or DICOM series, a size and a number of channels that returns the resized pixels of an image."""


@dataclass(frozen=True)
class ImageTable:
    """Table with the columns that a network takes beside an image.

    Attributes:
        path: CSV or TSV file with one row for each image.
        image_column: Column with the path of the image, or of the folder of its DICOM series, relative to the folder of
            images.
        columns: Typed columns of the network's inputs.
    """

    path: Path
    image_column: str
    columns: FeatureColumns

    def features(self, names: Sequence[str], folder: Path) -> np.ndarray:
        """Return the features of images, (n, F), float32, with NaN for missing numbers.

        Args:
            names: Path of each image, relative to the folder.
            folder: Folder of the images, for messages.

        Raises:
            DataError: If an image has no row or several rows, or a cell is not as expected.
        """
        table = read_table(self.path)
        table.require([self.image_column])
        rows: dict[str, list[int]] = {}
        for row, cell in enumerate(table.column(self.image_column)):
            rows.setdefault(Path(cell).as_posix(), []).append(row)
        places = [rows.get(Path(name).as_posix(), []) for name in names]
        if wrong := sum(len(some) != 1 for some in places):
            raise DataError(
                "missing_table_row",
                f"expected one row in {self.path} for each image of {folder}, with its path relative to this folder in "
                f"the column '{self.image_column}'; {wrong} of {len(names)} images have none, or several. Complete the "
                "table.",
                path=self.path,
                column=self.image_column,
                count=wrong,
                total=len(names),
            )
        return encode_rows(table, self.columns)[[some[0] for some in places]]


class ImageFiles:
    """Image files of a folder, in the order of their names, without labels.

    For volumes, the DICOM files of a series are one image, named after their folder. If the folder has several series,
    an image is named after its first file.

    Args:
        folder: Folder with image files, at any depth: PNG, JPEG, DICOM, NIfTI and all other formats of
            `medfl.data.readers.images.read_image`.
        size: Input size of the network: height and width, or depth, height and width.
        channels: Number of input channels of the network.
        mean: Normalisation mean, as in training.
        std: Normalisation standard deviation, as in training.
        read: Function that reads an image.
        choice: Conditions for the DICOM series of volumes; other series are passed over.
        table: Table with the columns that the network takes beside an image; None without such columns.

    Attributes:
        sources: File, or files of a DICOM series, of each image.

    Raises:
        DataError: If the folder has no image, or the table does not have exactly one row for each image.
    """

    def __init__(
        self,
        folder: Path,
        size: Sequence[int],
        channels: int,
        mean: Sequence[float],
        std: Sequence[float],
        read: ImageFunction = read_image,
        choice: SeriesChoice = DEFAULT_READING.series,
        table: ImageTable | None = None,
    ) -> None:
        with quiet_decoders():
            named = _volume_sources(folder, choice) if len(size) == 3 else _image_files(folder)
        self._names, self.sources = list(named), list(named.values())
        if not self.sources:
            raise DataError(
                "no_images",
                f"expected images in {folder}, found none. Give a folder of image files ({', '.join(IMAGE_SUFFIXES)}), "
                "or the folder of a site.",
                path=folder,
            )
        self._folder, self._size, self._channels = folder, tuple(size), channels
        self._mean, self._std, self._read = mean, std, read
        names = [self.name(row) for row in range(len(self))]
        self._features = None if table is None else table.features(names, folder)

    def __len__(self) -> int:
        return len(self.sources)

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        """Return ``{"image": ...}`` with the normalised image (C, *spatial) of one file.

        The image's metadata ``filename_or_obj`` is the path of the file relative to the folder.

        Raises:
            DataError: If the file can't be read.
        """
        images = self.pixels(row)[np.newaxis]
        features = None if self._features is None else self._features[row : row + 1]
        data = ArrayDataset(images, [0], [0], self._mean, self._std, features=features)
        image, _ = data.batch(torch.tensor([0]))
        return {"image": MetaTensor(image[0], meta={"filename_or_obj": self.name(row)})}

    def name(self, row: int) -> str:
        """Return the path of an image's file, or of the folder of its DICOM series, relative to the folder.

        Bytes of a path that are no UTF-8 are escaped, so that the name can be written.
        """
        return os.fsencode(self._names[row]).decode(errors="backslashreplace")

    def pixels(self, row: int) -> np.ndarray:
        """Return the resized pixels of one file, as ``medfl prep`` stores them.

        Raises:
            DataError: If the file can't be read.
        """
        try:
            with quiet_decoders():
                return self._read(self.sources[row], self._size, self._channels)
        except DataError as error:
            where = f"image {row + 1} of {len(self)} in {self._folder}, in the order of the names"
            fields = error.fields | {"path": self._folder, "number": row + 1}
            raise DataError(error.code, f"{where}: {error}", **fields) from None


def _image_files(folder: Path) -> dict[str, ImageSource]:
    """Return the image files in a folder by their relative paths.

    Raises:
        DataError: If files in the folder can't be opened.
    """
    try:
        return {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if _is_image(path)}
    except OSError as error:
        raise unopenable_file_error(error) from None


def _volume_sources(folder: Path, choice: SeriesChoice) -> dict[str, ImageSource]:
    """Return the volume files and the chosen DICOM series in a folder, in the order of their names.

    Raises:
        DataError: If a DICOM file is damaged.
    """
    series = [item for item in find_series(folder) if fits(item, choice)]
    folders = Counter(item.paths[0].parent for item in series)
    named: dict[str, ImageSource] = {
        name: path for name, path in _image_files(folder).items() if file_kind(source_files(path)[0]) != "dicom"
    }
    for item in series:
        first = item.paths[0]
        place = first.parent if len(item.paths) > 1 and folders[first.parent] == 1 and first.parent != folder else first
        named[str(place.relative_to(folder))] = item.source()
    return dict(sorted(named.items()))


def _is_image(path: Path) -> bool:
    """Return True if a file has an image suffix and no leading dot, which marks system files (``._scan.png``)."""
    return path.name.lower().endswith(IMAGE_SUFFIXES) and not path.name.startswith(".") and path.is_file()


class TableRows:
    """Rows of a table of numbers, without targets. A row's name is its row number in the file, as spreadsheets show it.

    Args:
        path: Table as `medfl.data.table.read_table` accepts it.
        features: Names of the columns that the network takes, in input order; other columns are ignored. If empty, all
            columns are used in file order.
        count: Number of inputs of the network.
        mean: Normalisation mean, as in training.
        std: Normalisation standard deviation, as in training.
        columns: Typed columns of the table, which are encoded as in training; None if the columns are the features.

    Raises:
        DataError: If a column is missing, the number of columns differs from `count`, or a cell is not a finite number.
    """

    def __init__(
        self,
        path: Path,
        features: Sequence[str],
        count: int,
        mean: Sequence[float],
        std: Sequence[float],
        columns: FeatureColumns | None = None,
    ) -> None:
        table = read_table(path)
        self._numbers = table.numbers
        places = range(len(table.rows))
        if columns is not None:
            vectors = encode_rows(table, columns)
            self._data = ArrayDataset(vectors, [0] * len(places), places, mean, std, has_missing=True)
            return
        names = list(features) or table.columns
        table.require(names)
        if len(names) != count:
            raise DataError(
                "wrong_column_count",
                f"expected {count} columns of numbers in {path}, got {len(names)}. Leave out all others.",
                path=path,
                expected=count,
                found=len(names),
            )
        self._data = ArrayDataset(_read_vectors(table, names), [0] * len(places), places, mean, std)

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        """Return ``{"image": ...}`` with the normalised vector (F,) of one row.

        The vector's metadata ``filename_or_obj`` is ``row N`` with the row number in the file.
        """
        return {"image": MetaTensor(self._data[row]["image"], meta={"filename_or_obj": f"row {self._numbers[row]}"})}


def _read_vectors(table: CsvTable, columns: Sequence[str]) -> np.ndarray:
    """Return the numbers in the given columns, (N, F), float32.

    Raises:
        DataError: If a cell is not a finite number.
    """
    cells = [[_parse_number(row[column]) for column in columns] for row in table.rows]
    with np.errstate(over="ignore"):  # numbers beyond float32 become infinite, and are refused
        vectors = np.array(cells, dtype=np.float32).reshape(len(cells), len(columns))
    wrong = [table.numbers[place] for place in np.flatnonzero(~np.isfinite(vectors).all(axis=1))]
    if wrong:
        raise DataError(
            "not_finite",
            f"expected finite numbers in {', '.join(columns)} of {table.path}, got other cells in {row_list(wrong)}. "
            "Fill them in as in the training data, or leave these rows out.",
            path=table.path,
            columns=list(columns),
            rows=wrong,
        )
    return vectors


def _parse_number(cell: str) -> float:
    """Return the number that a cell contains, or NaN."""
    try:
        return float("nan" if "_" in cell else cell)  # Python would read 1_2 as 12
    except ValueError:
        return float("nan")


class SiteImages:
    """Test images or table rows of a site's data list. The name of a case is its position in the test split.

    Args:
        folder: Folder of the site.
        objective: Training objective of the task.
        mean: Normalisation mean, as in training.
        std: Normalisation standard deviation, as in training.

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
        """Return ``{"image": ...}`` with one normalised image (C, *spatial) or vector (F,).

        The image's metadata ``filename_or_obj`` is ``row N`` with the position in the test split.
        """
        return {"image": MetaTensor(self._data[row]["image"], meta={"filename_or_obj": f"row {row}"})}


def load_images(
    dataset_dir: str | Path,
    size: int | Sequence[int],
    spatial_dims: int,
    in_channels: int,
    objective: Objective,
    mean: Sequence[float] = (0.5,),
    std: Sequence[float] = (0.5,),
    read: ImageFunction = read_image,
    image_reading: Mapping[str, Any] | None = None,
    columns: Sequence[Mapping[str, Any]] = (),
    table: str | Path | None = None,
    image_column: str = "file",
) -> ImageFiles | SiteImages:
    """Load the images that a bundle's ``inference.json`` predicts.

    Args:
        dataset_dir: Folder of image files, or a site's folder, whose test images are then used.
        size: Spatial input size of the network; one number applies to all edges.
        spatial_dims: 2 for images, 3 for volumes.
        in_channels: Number of input channels of the network.
        objective: Training objective of the task.
        mean: Normalisation mean, as in training.
        std: Normalisation standard deviation, as in training.
        read: Function that reads an image if there is no `image_reading`.
        image_reading: Rule for reading images, from the data list of the training data
            (`medfl.data.readers.image_reading`); None gives the default rule.
        columns: Typed columns of the table that the network takes beside an image, as JSON values; empty without any.
        table: Table with these columns for image files: one row for each image. The data list of a site has them.
        image_column: Column of the table with the path of the image relative to `dataset_dir`.

    Raises:
        DataError: If the folder is missing or contains nothing to predict, or the table is missing or incomplete.
        SettingsError: If the rule is invalid.
    """
    folder = Path(dataset_dir)
    if not folder.is_dir():
        raise DataError(
            "missing_folder",
            f"expected a folder of images at {folder}, there is none. Give another --dataset_dir.",
            path=folder,
        )
    if (folder / DATALIST_FILE).is_file():
        return SiteImages(folder, objective, mean, std)
    edges = [size] * spatial_dims if isinstance(size, int) else list(size)
    rule = parse_image_reading(image_reading)
    if rule != DEFAULT_READING:
        read = partial(read_image, reading=rule)
    rows = _image_table(table, image_column, read_columns(columns)) if columns else None
    return ImageFiles(folder, edges, in_channels, mean, std, read, rule.series, rows)


def _image_table(table: str | Path | None, image_column: str, columns: FeatureColumns) -> ImageTable:
    """Return the table of the columns that a network takes beside an image.

    Raises:
        DataError: If there is no table.
    """
    if table is None:
        raise DataError(
            "missing_table",
            f"expected a table with the columns {', '.join(column.name for column in columns.columns)}, which the "
            "network takes beside the image. Give it with --table, and its column of image paths with --image_column.",
            columns=[column.name for column in columns.columns],
        )
    return ImageTable(Path(table), image_column, columns)


def load_rows(
    dataset_dir: str | Path,
    in_features: int,
    objective: Objective,
    features: Sequence[str] = (),
    mean: Sequence[float] = (0.0,),
    std: Sequence[float] = (1.0,),
    columns: Sequence[Mapping[str, Any]] = (),
) -> TableRows | SiteImages:
    """Load the table rows that the ``inference.json`` of a bundle for tables predicts.

    Args:
        dataset_dir: Table file, or a site's folder, whose test rows are then used.
        in_features: Number of inputs of the network.
        objective: Training objective of the task.
        features: Names of the inputs, if they are known.
        mean: Normalisation mean, as in training.
        std: Normalisation standard deviation, as in training.
        columns: Typed columns of the table as JSON values, if the data were prepared by ``medfl prep table``.

    Raises:
        DataError: If `dataset_dir` is neither a file nor a site's folder, or contains nothing to predict.
    """
    place = Path(dataset_dir)
    if place.is_file():
        return TableRows(place, features, in_features, mean, std, read_columns(columns) if columns else None)
    if (place / DATALIST_FILE).is_file():
        return SiteImages(place, objective, mean, std)
    raise DataError(
        "missing_file",
        f"expected a table (CSV) or the folder of a site at {place}, got neither. Give --dataset_dir.",
        path=place,
    )
