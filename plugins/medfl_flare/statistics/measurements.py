"""Exact measurements of a site's training images: tables of counts, and numbers of each image.

Validation and test images are not read, so no choice can depend on them. The measurements stay at the site; only
`medfl_flare.statistics.disclosure` decides which of them leave.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from medfl.data.arrays import CHUNK_BYTES, FEATURES, channels_of, open_array
from medfl.data.datalists import DATALIST_FILE, Datalist, parse_datalist, read_datalist_bytes, subjects_of
from medfl.data.features.feature_encoding import typed_columns
from medfl.data.features.record_features import count_image_features, image_features
from medfl.data.sites import SiteData, image_shape, output_names, site_data
from medfl.data.targets import read_integers
from medfl.objectives import Objective, Survival
from medfl.types import Dataset
from medfl.utils.text import inert_name

MAX_PIXELS = 1 << 14
"""Maximum number of pixels of an image and channel that enter a quantile; larger images are subsampled with a regular
stride."""

QUANTILE_LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Levels of the quantiles within an image, and of the quantiles over images."""

COLOURS = ("red", "green", "blue")
"""Names of the channels of a colour image, for titles."""


@dataclass(frozen=True)
class CountTable:
    """Counts of images by a categorical value; each image has one value.

    Attributes:
        title: Name of the counted property.
        names: Names of the possible values.
        value_index: Position of each image's value in `names`, shape (n,) for n images, int64.
        public: Whether the set of values is known beforehand, and not derived from the data.
    """

    title: str
    names: tuple[str, ...]
    value_index: np.ndarray
    public: bool = True

    @property
    def counts(self) -> list[int]:
        """Number of images with each value."""
        return [int(count) for count in np.bincount(self.value_index, minlength=len(self.names))]


@dataclass(frozen=True, eq=False)
class ImageMeasurement:
    """One measured number of each image, for example a quantile of its brightness or its regression target.

    Attributes:
        title: Name of the number.
        kind: ``intensities`` or ``targets``, the kind of disclosure in a site's own file.
        values: Number of each image, shape (n,) for n images, float64; NaN for an image without a number.
        span: Smallest and largest possible number, known beforehand; None if only the data determine them.
        is_scaled: Whether the number is a feature of table rows that a run standardises.
    """

    title: str
    kind: Literal["intensities", "targets"]
    values: np.ndarray
    span: tuple[float, float] | None = None
    is_scaled: bool = False


@dataclass(frozen=True)
class SiteMeasurements:
    """Exact measurements of a site's training images.

    Attributes:
        data: The site's data without its test images.
        objective: Learning objective.
        images: Number of images.
        patients: Number of patients; None if the data list does not contain them.
        spacing: Pixel spacing in millimetres; None if unknown.
        tables: Tables of counts.
        measurements: Numbers of each image.
    """

    data: SiteData
    objective: Objective
    images: int
    patients: int | None
    spacing: tuple[float, ...] | None
    tables: tuple[CountTable, ...]
    measurements: tuple[ImageMeasurement, ...]


def measure_site(folder: Path) -> SiteMeasurements:
    """Measure the training images of a site.

    Args:
        folder: Folder of the site with its data list.

    Raises:
        DataError: If the list or an array is missing or invalid.
    """
    content = read_datalist_bytes(folder)
    datalist = parse_datalist(content, folder / DATALIST_FILE).without_test()
    objective = datalist.goal
    array = open_array(folder / datalist.image_array)
    count = count_image_features(typed_columns(datalist.extra), array.shape)
    channels = image_shape(array.shape)[0] + count if count else 1
    data = site_data(folder, content, datalist, objective, [0.0] * channels, [1.0] * channels)
    records = datalist.splits.get("training", [])
    rows = read_integers(records, "image", f"site '{folder.name}', split 'training'")
    subjects = subjects_of(records)
    patients = None if None in subjects else len(set(subjects))
    tables, targets = measure_targets(data, datalist, objective)
    columns, intensities = _measure_images(array, rows, datalist)
    facts = objective.facts.get("spacing")
    spacing = tuple(map(float, facts)) if isinstance(facts, list) else None
    return SiteMeasurements(data, objective, len(rows), patients, spacing, tables + columns, targets + intensities)


def measure_targets(
    data: SiteData, datalist: Datalist, objective: Objective
) -> tuple[tuple[CountTable, ...], tuple[ImageMeasurement, ...]]:
    """Measure the training targets: tables for labels, numbers for regression and survival, both for masks.

    Args:
        data: Data of the site.
        datalist: Data list of the site, for the names of the outputs.
        objective: Learning objective.

    Returns:
        Tables of counts; numbers of each image.
    """
    if objective.has_spatial_targets:
        return _measure_masks(data, datalist, objective)
    if not len(data.train):
        return (), ()
    targets = data.train.targets(torch.arange(len(data.train)))
    labels = objective.class_labels(targets)
    if labels is not None:
        return (CountTable("class", data.classes, labels.numpy()),), ()
    numbers = targets.numpy().astype(np.float64)
    if isinstance(objective, Survival):
        events = CountTable("event", objective.stratum_names, (numbers[:, 1] > 0).astype(np.int64))
        return (events,), (ImageMeasurement("time under observation", "targets", numbers[:, 0]),)
    names = output_names(datalist, objective) or tuple(map(str, range(numbers.shape[1])))
    if objective.label_sets(targets) is not None:
        places = np.where(np.isnan(numbers), 2, numbers).astype(np.int64)
        findings = zip(names, places.T, strict=True)
        return tuple(CountTable(name, ("no", "yes", "not known"), column) for name, column in findings), ()
    return (), tuple(ImageMeasurement(name, "targets", column) for name, column in zip(names, numbers.T, strict=True))


def _measure_masks(
    data: SiteData, datalist: Datalist, objective: Objective
) -> tuple[tuple[CountTable, ...], tuple[ImageMeasurement, ...]]:
    """Count the images that contain each structure, and measure the structure's share of these images."""
    overlapping = bool(objective.facts["overlapping"])
    first, shape = 0 if overlapping else 1, objective.target_shape(data.shape)
    names = output_names(datalist, objective) or tuple(map(str, range(objective.outputs)))
    parts = [
        (batch == 1) if overlapping else torch.stack([batch[:, 0] == label for label in range(1, objective.outputs)], 1)
        for batch in _target_batches(data.train, int(np.prod(shape)) * 8)
    ]
    counts = [part.flatten(2).double().mean(dim=2) for part in parts]
    shares = torch.cat(counts).numpy() if counts else np.zeros((0, objective.outputs - first))
    tables, measurements = [], []
    for name, column in zip(names[first:], shares.T, strict=True):
        tables.append(CountTable(name, ("not in the image", "in the image"), (column > 0).astype(np.int64)))
        values = np.where(column > 0, column, np.nan)
        measurements.append(ImageMeasurement(f"share of an image that is {name}", "targets", values, (0.0, 1.0)))
    return tuple(tables), tuple(measurements)


def _target_batches(data: Dataset, case_bytes: int) -> Iterator[torch.Tensor]:
    """Yield the targets in batches of limited memory."""
    for rows in torch.arange(len(data)).split(max(1, CHUNK_BYTES // case_bytes)) if len(data) else ():
        yield data.targets(rows)


def _measure_images(
    images: np.ndarray, rows: np.ndarray, datalist: Datalist
) -> tuple[tuple[CountTable, ...], tuple[ImageMeasurement, ...]]:
    """Measure the quantiles of each image and channel, and the columns of a table."""
    if images.ndim == 2:
        return _measure_columns(images[rows].astype(np.float64), datalist)
    channels = channels_of(images.shape)
    span = (0.0, float(np.iinfo(images.dtype).max)) if images.dtype.kind == "u" else None
    quantiles = _image_quantiles(images, rows, channels or 1)
    measurements = []
    for channel in range(channels or 1):
        whose = "" if not channels or channels == 1 else f", {COLOURS[channel] if channels == 3 else channel}"
        for value_index, share in enumerate(QUANTILE_LEVELS):
            title = f"brightness at {share:.0%}{whose}"
            measurements.append(ImageMeasurement(title, "intensities", quantiles[:, value_index, channel], span))
    records, place = datalist.splits.get("training", []), "the split 'training'"
    features = image_features(typed_columns(datalist.extra), images.shape, records, place)
    if features is None:
        return (), tuple(measurements)
    tables, columns = _measure_columns(features.astype(np.float64), datalist)
    return tables, (*measurements, *columns)


def _image_quantiles(images: np.ndarray, rows: np.ndarray, channels: int) -> np.ndarray:
    """Return the quantiles of each image, shape (n, levels, channels), in the units of the array."""
    pixels = int(np.prod(images.shape[1:])) // channels
    stride = -(-pixels // MAX_PIXELS)
    some = max(1, CHUNK_BYTES // max(1, images[:1].nbytes))
    parts = [np.zeros((0, len(QUANTILE_LEVELS), channels))]
    for start in range(0, len(rows), some):
        chosen = images[rows[start : start + some]]
        thinned = chosen.reshape(len(chosen), pixels, channels)[:, ::stride].astype(np.float32)
        parts.append(np.moveaxis(np.quantile(thinned, QUANTILE_LEVELS, axis=1), 0, 1))
    return np.concatenate(parts)


def _measure_columns(
    values: np.ndarray, datalist: Datalist
) -> tuple[tuple[CountTable, ...], tuple[ImageMeasurement, ...]]:
    """Measure each column of a table; count the values of a column with the values 0 and 1."""
    names = datalist.extra.get(FEATURES) or [str(number) for number in range(values.shape[1])]
    columns = typed_columns(datalist.extra)
    is_scaled = [False] * len(names) if columns is None else columns.is_scaled
    tables, measurements = [], []
    for number, column in enumerate(values.T):
        name = inert_name(str(names[number]) if number < len(names) else str(number), str(number))
        if set(column.tolist()) == {0.0, 1.0}:
            tables.append(CountTable(name, ("0", "1"), column.astype(np.int64), public=False))
        scaled = number < len(is_scaled) and is_scaled[number]
        measurements.append(ImageMeasurement(name, "intensities", column, is_scaled=scaled))
    return tuple(tables), tuple(measurements)
