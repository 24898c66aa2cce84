"""Harmonise a prepared data set: match each image to a template of quantiles, and record the template.

The data list stores the template in its rule for reading images, so an exported bundle applies it to new images, and
sites with different templates are refused (`medfl.data.sites`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from medfl.data.arrays import CHUNK_BYTES, channels_of, open_array
from medfl.data.datalists import SPLITS, Datalist, entry_text, read_datalist, write_datalist
from medfl.data.folders import atomic_folder, check_output_folder
from medfl.data.harmonisation.histogram_matching import (
    LEVELS,
    Template,
    image_quantiles,
    match_histogram,
    template_problem,
)
from medfl.data.readers.image_reading import IMAGE_READING_KEY, parse_image_reading
from medfl.data.targets import read_integers
from medfl.errors import DataError
from medfl.records.datalist import make_record

MAMMOGRAM_KEY = "reading"
"""Key of the reading options of mammograms in a data list (`medfl.data.readers.mammogram_image`)."""

COLOURS = {1: ("",), 3: (", red", ", green", ", blue")}
"""Suffixes of the titles of brightness in federated statistics, by the number of channels."""

IMAGES_FILE, MASKS_FILE = "images.npy", "masks.npy"
"""Names of the array files in the harmonised data set."""


def compute_template(folder: Path) -> Template:
    """Return the template of a prepared data set: the mean over its sites of each site's typical quantiles.

    The typical quantiles of a site are the medians over its training images of each image's quantiles, as federated
    statistics disclose them. Every site has the same weight. The sites are the values of ``site`` in the records; an
    image without an entry belongs to a site of its own name "".

    Args:
        folder: Folder with a data list.

    Raises:
        DataError: If the list or the array is missing or wrong, or there are no training images.
    """
    datalist = read_datalist(folder)
    images, channels = _open_images(folder, datalist)
    records = datalist.splits.get(SPLITS[0], [])
    rows = _listed_rows(folder, datalist, SPLITS[0], images)
    if not len(rows):
        raise DataError("no_images", f"expected training images in {folder}, there are none.", path=folder)
    step = max(1, CHUNK_BYTES // max(1, images[:1].nbytes))
    quantiles = np.concatenate(
        [image_quantiles(images[rows[n : n + step]], channels) for n in range(0, len(rows), step)]
    )
    sites = np.array([entry_text(record, "site") or "" for record in records], dtype=object)
    typical = [np.median(quantiles[sites == site], axis=0) for site in sorted(set(sites))]
    return _as_template(np.mean(typical, axis=0), folder)


def read_template(path: Path, channels: int) -> Template:
    """Return the template in a report of federated statistics, or in the data list of a harmonised data set.

    Args:
        path: ``statistics.json`` of ``medfl federate statistics``, or ``datalist.json``.
        channels: Number of channels of the images, 1 or 3.

    Raises:
        DataError: If the file has neither, a site suppressed a median of its brightness, or the channels differ.
    """
    try:
        content = json.loads(path.read_bytes())
        if IMAGE_READING_KEY in content:
            template = parse_image_reading(content[IMAGE_READING_KEY]).template
            values = np.array(template)
        else:
            sites = [_site_quantiles(site, each, channels) for site, each in content["sites"].items()]
            values = np.stack(sites).mean(axis=0)  # a ValueError without sites
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError):
        raise DataError(
            "wrong_template_file",
            f"expected statistics.json of medfl federate statistics, or datalist.json of a harmonised data set, at "
            f"{path}. Give another --template.",
            path=path,
        ) from None
    if values.shape != (channels, len(LEVELS)):
        raise DataError(
            "wrong_template_channels",
            f"expected a template of {channels} channels in {path}, got {len(values)}. Give the statistics of these "
            "images.",
            path=path,
            expected=channels,
            found=len(values),
        )
    return _as_template(values, path)


def _site_quantiles(site: str, statistics: dict[str, Any], channels: int) -> np.ndarray:
    """Return the disclosed typical quantiles of a site, (channels, levels), in [0, 1]."""
    numbers = {each["title"]: each for each in statistics["numbers"]}
    values = np.empty((channels, len(LEVELS)))
    for channel, suffix in enumerate(COLOURS[channels]):
        for place, level in enumerate(LEVELS):
            number = numbers.get(f"brightness at {level:.0%}{suffix}")
            median = None if number is None else number["quantiles"][2]
            if number is None or median is None:
                raise DataError(
                    "suppressed_template",
                    f"expected the median of the brightness at {level:.0%}{suffix} of site '{site}', it was not "
                    "disclosed. The site needs `intensities` in its own file, and at least twice its min_count images.",
                    site=site,
                    level=level,
                )
            values[channel, place] = median / (number["span"][1] if number["span"] else 1.0)
    return values


def harmonise(folder: Path, out: Path, template: Template, *, force: bool = False) -> int:
    """Write a copy of a prepared data set whose images are matched to a template; images without a record are left out.

    Args:
        folder: Folder with a data list: of a prepared data set, or of one site.
        out: Folder to write.
        template: The template.
        force: Whether to replace a data set of medfl in `out`.

    Returns:
        Number of images.

    Raises:
        DataError: If the images can't be harmonised, were harmonised before, or `out` can't be written.
    """
    datalist = read_datalist(folder)
    images, channels = _open_images(folder, datalist)
    masks = folder / datalist.mask_array if datalist.mask_array else None
    check_output_folder(out, force, [folder, folder / datalist.image_array, *([masks] if masks else [])])
    reading = parse_image_reading(datalist.extra.get(IMAGE_READING_KEY))
    rule = parse_image_reading(reading.to_json() | {"template": template})
    before = datalist.extra.get("intensities") or reading.describe()
    entries = rule.entries() | {"intensities": f"{before}; {rule.describe_template()}"}
    rows = np.unique([row for split in SPLITS for row in _listed_rows(folder, datalist, split, images).tolist()])
    numbers = {int(row): number for number, row in enumerate(rows)}
    splits = {
        split: [make_record({**record, "image": numbers[record["image"]]}) for record in records]
        for split, records in datalist.splits.items()
    }
    with atomic_folder(out, force) as place:
        _write_matched(place / IMAGES_FILE, images, rows, template)
        if masks is not None:
            _write_rows(place / MASKS_FILE, open_array(masks), rows)
        changed = replace(
            datalist,
            image_array=IMAGES_FILE,
            mask_array=MASKS_FILE if masks is not None else "",
            splits=splits,
            extra=datalist.extra | entries,
        )
        write_datalist(place, changed)
    return len(rows)


def _write_matched(path: Path, images: np.ndarray, rows: np.ndarray, template: Template) -> None:
    """Write the rows of an array of images as an array file, each image matched to the template."""
    shape = (len(rows), *images.shape[1:])
    written = np.lib.format.open_memmap(path, mode="w+", dtype=images.dtype, shape=shape)
    for number, row in enumerate(rows.tolist()):
        _check_range(images[row], row)
        written[number] = match_histogram(images[row], template)
    written.flush()


def _write_rows(path: Path, array: np.ndarray, rows: np.ndarray) -> None:
    """Write the rows of an array as an array file."""
    written = np.lib.format.open_memmap(path, mode="w+", dtype=array.dtype, shape=(len(rows), *array.shape[1:]))
    for number, row in enumerate(rows.tolist()):
        written[number] = array[row]
    written.flush()


def channel_count(folder: Path) -> int:
    """Return the number of channels of the images of a data list; errors as in `harmonise`."""
    return _open_images(folder, read_datalist(folder))[1]


def _open_images(folder: Path, datalist: Datalist) -> tuple[np.ndarray, int]:
    """Return the image array and its number of channels.

    Raises:
        DataError: If the list describes tables or mammograms with reading options, or images that were harmonised.
    """
    images = open_array(folder / datalist.image_array)
    if images.ndim == 2 or datalist.extra.get(MAMMOGRAM_KEY):
        what = "a table" if images.ndim == 2 else "mammograms with reading options"
        raise DataError(
            "harmonisation_not_supported",
            f"expected images that `medfl.data.readers.images` reads in {folder}, got {what}. Train on them unchanged.",
            path=folder,
            found=what,
        )
    if parse_image_reading(datalist.extra.get(IMAGE_READING_KEY)).template:
        raise DataError(
            "already_harmonised",
            f"expected images that were not harmonised in {folder}, but the data list has a template. Give the data "
            "set before its harmonisation.",
            path=folder,
        )
    channels = channels_of(images.shape) or 1
    if channels not in COLOURS:
        raise DataError(
            "harmonisation_not_supported",
            f"expected images of 1 or 3 channels in {folder}, got {channels}. Train on them unchanged.",
            path=folder,
            found=channels,
        )
    return images, channels


def _listed_rows(folder: Path, datalist: Datalist, split: str, images: np.ndarray) -> np.ndarray:
    """Return the array rows of a split, (n,), int64.

    Raises:
        DataError: If a record has no row, or a row is outside the array.
    """
    rows = read_integers(datalist.splits.get(split, []), "image", f"'{folder.name}', split '{split}'")
    outside = (rows < 0) | (rows >= len(images))
    if outside.any():
        raise DataError(
            "row_outside_array",
            f"expected rows in 0..{len(images) - 1} in {folder}, got row {int(rows[outside][0])}. The list and the "
            "array do not belong together.",
            path=folder,
            row=int(rows[outside][0]),
            maximum=len(images) - 1,
        )
    return rows


def _check_range(image: np.ndarray, row: int) -> None:
    """Raise if a floating-point image, in a row of the array, has values outside [0, 1] or NaN."""
    if image.dtype.kind != "u" and not bool(((image >= 0) & (image <= 1)).all()):
        raise DataError(
            "values_outside_range",
            f"expected values in [0, 1], row {row} of the image array has others, or values that are not numbers. "
            "Prepare the images with a window or a scale; volumes of mean 0 and SD 1 have no common scale to match.",
            row=row,
        )


def _as_template(values: np.ndarray, path: Path) -> Template:
    """Return quantiles (channels, levels) as a template, rounded to six digits."""
    template = tuple(tuple(round(float(value), 6) for value in channel) for channel in values)
    problem = template_problem(template)
    if problem is not None:
        raise DataError("invalid_template", f"the quantiles of {path} are no template: {problem}.", path=path)
    return template


def template_lines(template: Sequence[Sequence[float]]) -> list[str]:
    """Return a template as text, a line for each channel."""
    names = COLOURS[len(template)]
    levels = ", ".join(f"{level:.0%}" for level in LEVELS)
    return [
        f"template{name}: {', '.join(f'{value:.3f}' for value in channel)} at {levels}"
        for name, channel in zip(names, template, strict=True)
    ]
