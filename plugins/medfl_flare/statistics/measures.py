"""What is measured of a site's training images: tables of counts, and numbers of each image.

Validation and test images stay closed, so that nothing can be chosen by them. All of it is the site's own; nothing here
leaves before `medfl_flare.statistics.telling` has looked at it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from medfl.data.arrays import CHUNK_BYTES, FEATURES, channels_of, open_array
from medfl.data.datalists import FILE, Datalist, parse_datalist, read_bytes, subjects_of
from medfl.data.sites import SiteData, output_names, site_data
from medfl.data.targets import integers
from medfl.objectives import Objective, Survival
from medfl.types import Dataset
from medfl.utils.text import inert_name

PIXELS = 1 << 14
"""Pixels of an image and channel of which quantiles are made, at most; of larger images every so-manieth counts."""

SHARES = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Levels of an image's own quantiles, and of the quantiles over images."""

COLOURS = ("red", "green", "blue")


@dataclass(frozen=True)
class Table:
    """How many images have each of several values; each image has one of them.

    Attributes:
        title: What is counted.
        names: Of the values.
        place: The number of each image's value, (n,), int64.
        public: Whether the values are known to all beforehand, and not read off the data.
    """

    title: str
    names: tuple[str, ...]
    place: np.ndarray
    public: bool = True

    @property
    def counts(self) -> list[int]:
        """How many images have each value."""
        return [int(count) for count in np.bincount(self.place, minlength=len(self.names))]


@dataclass(frozen=True, eq=False)
class Measure:
    """A number of each image.

    Attributes:
        title: What it is.
        kind: ``intensities`` or ``targets``: the word in a site's file that lets it be told.
        values: (n,), float64; NaN for an image that has none.
        span: The least and the largest number that it can be, as all know; None where only the data tell.
    """

    title: str
    kind: Literal["intensities", "targets"]
    values: np.ndarray
    span: tuple[float, float] | None = None


@dataclass(frozen=True)
class Measured:
    """What is known at a site of its training images.

    Attributes:
        data: The site's data, its test images closed.
        objective: What is learned.
        images: How many there are.
        patients: Of how many patients they are; None where the list does not say.
        spacing: Of pixels, in millimetres; None where nobody knows.
        tables: Counts.
        measures: Numbers.
    """

    data: SiteData
    objective: Objective
    images: int
    patients: int | None
    spacing: tuple[float, ...] | None
    tables: tuple[Table, ...]
    measures: tuple[Measure, ...]


def measure_site(folder: Path) -> Measured:
    """Measure the training images of a site.

    Args:
        folder: With its data list.

    Raises:
        DataError: If the list or an array is missing or wrong.
    """
    content = read_bytes(folder)
    datalist = parse_datalist(content, folder / FILE).without_test()
    objective = datalist.goal
    data = site_data(folder, content, datalist, objective, (0.0,), (1.0,))
    records = datalist.splits.get("training", [])
    rows = integers(records, "image", f"site '{folder.name}', split 'training'")
    subjects = subjects_of(records)
    patients = None if None in subjects else len(set(subjects))
    tables, targets = _of_targets(data, datalist, objective)
    columns, intensities = _of_images(open_array(folder / datalist.image_array), rows, datalist)
    facts = objective.facts.get("spacing")
    spacing = tuple(map(float, facts)) if isinstance(facts, list) else None
    return Measured(data, objective, len(rows), patients, spacing, tables + columns, targets + intensities)


def _of_targets(
    data: SiteData, datalist: Datalist, objective: Objective
) -> tuple[tuple[Table, ...], tuple[Measure, ...]]:
    """What is known of the targets, whatever they are."""
    if objective.in_space:
        return _of_masks(data, datalist, objective)
    if not len(data.train):
        return (), ()
    targets = data.train.targets(torch.arange(len(data.train)))
    labels = objective.class_labels(targets)
    if labels is not None:
        return (Table("class", data.classes, labels.numpy()),), ()
    numbers = targets.numpy().astype(np.float64)
    if isinstance(objective, Survival):
        events = Table("event", objective.stratum_names, (numbers[:, 1] > 0).astype(np.int64))
        return (events,), (Measure("time under observation", "targets", numbers[:, 0]),)
    names = output_names(datalist, objective) or tuple(map(str, range(numbers.shape[1])))
    if objective.label_sets(targets) is not None:
        places = np.where(np.isnan(numbers), 2, numbers).astype(np.int64)
        findings = zip(names, places.T, strict=True)
        return tuple(Table(name, ("no", "yes", "not known"), column) for name, column in findings), ()
    return (), tuple(Measure(name, "targets", column) for name, column in zip(names, numbers.T, strict=True))


def _of_masks(
    data: SiteData, datalist: Datalist, objective: Objective
) -> tuple[tuple[Table, ...], tuple[Measure, ...]]:
    """Which structures an image holds, and of those that it holds their share of the image."""
    overlapping = bool(objective.facts["overlapping"])
    first, shape = 0 if overlapping else 1, objective.target_shape(data.shape)
    names = output_names(datalist, objective) or tuple(map(str, range(objective.outputs)))
    parts = [
        (batch == 1) if overlapping else torch.stack([batch[:, 0] == label for label in range(1, objective.outputs)], 1)
        for batch in _target_batches(data.train, int(np.prod(shape)) * 8)
    ]
    counts = [part.flatten(2).double().mean(dim=2) for part in parts]
    shares = torch.cat(counts).numpy() if counts else np.zeros((0, objective.outputs - first))
    tables, measures = [], []
    for name, column in zip(names[first:], shares.T, strict=True):
        tables.append(Table(name, ("not in the image", "in the image"), (column > 0).astype(np.int64)))
        values = np.where(column > 0, column, np.nan)
        measures.append(Measure(f"share of an image that is {name}", "targets", values, (0.0, 1.0)))
    return tuple(tables), tuple(measures)


def _target_batches(data: Dataset, case_bytes: int) -> Iterator[torch.Tensor]:
    for rows in torch.arange(len(data)).split(max(1, CHUNK_BYTES // case_bytes)) if len(data) else ():
        yield data.targets(rows)


def _of_images(
    images: np.ndarray, rows: np.ndarray, datalist: Datalist
) -> tuple[tuple[Table, ...], tuple[Measure, ...]]:
    """Of images the quantiles of each one, channel by channel; of the rows of a table its columns."""
    if images.ndim == 2:
        return _of_columns(images[rows].astype(np.float64), datalist)
    channels = channels_of(images.shape)
    span = (0.0, float(np.iinfo(images.dtype).max)) if images.dtype.kind == "u" else None
    quantiles = _image_quantiles(images, rows, channels or 1)
    measures = []
    for channel in range(channels or 1):
        whose = "" if not channels or channels == 1 else f", {COLOURS[channel] if channels == 3 else channel}"
        for place, share in enumerate(SHARES):
            title = f"brightness at {share:.0%}{whose}"
            measures.append(Measure(title, "intensities", quantiles[:, place, channel], span))
    return (), tuple(measures)


def _image_quantiles(images: np.ndarray, rows: np.ndarray, channels: int) -> np.ndarray:
    """(n, levels, channels), in the units of the array."""
    pixels = int(np.prod(images.shape[1:])) // channels
    stride = -(-pixels // PIXELS)
    some = max(1, CHUNK_BYTES // max(1, images[:1].nbytes))
    parts = [np.zeros((0, len(SHARES), channels))]
    for start in range(0, len(rows), some):
        chosen = images[rows[start : start + some]]
        thinned = chosen.reshape(len(chosen), pixels, channels)[:, ::stride].astype(np.float32)
        parts.append(np.moveaxis(np.quantile(thinned, SHARES, axis=1), 0, 1))
    return np.concatenate(parts)


def _of_columns(values: np.ndarray, datalist: Datalist) -> tuple[tuple[Table, ...], tuple[Measure, ...]]:
    """Of each column the quantiles are made, and one of noughts and ones is counted as well."""
    names = datalist.extra.get(FEATURES) or [str(number) for number in range(values.shape[1])]
    tables, measures = [], []
    for number, column in enumerate(values.T):
        name = inert_name(str(names[number]) if number < len(names) else str(number), str(number))
        if set(column.tolist()) == {0.0, 1.0}:
            tables.append(Table(name, ("0", "1"), column.astype(np.int64), public=False))
        measures.append(Measure(name, "intensities", column))
    return tuple(tables), tuple(measures)
