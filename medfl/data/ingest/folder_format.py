"""Common format of the user's own images: one size, one number of channels, one data type."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from medfl.data.ingest.workers import LoadedItem
from medfl.data.readers.dicom_series import ImageSource
from medfl.data.readers.image_reading import DEFAULT_READING, ImageReading
from medfl.data.readers.images import ImageKind, inspect_image, read_image
from medfl.data.readers.mammogram_image import read_mammogram
from medfl.data.readers.quiet import quiet_decoders
from medfl.data.readers.volumes import check_memory, resampled_shape, resized_spacing
from medfl.data.table import row_list
from medfl.errors import DataError, SettingsError
from medfl.utils.processes import core_count
from medfl.utils.progress import progress
from medfl.utils.text import Say

SPACING_TOLERANCE = 0.01
"""Largest relative difference between the voxel spacings of volumes that count as equal."""


@dataclass(frozen=True)
class RowFormat:
    """Format of every image in the array.

    Attributes:
        size: Height and width (H, W) of images, or depth, height and width (D, H, W) of volumes.
        channels: Number of channels, 1 or 3.
        dtype: Data type of the array: uint8, float32 with values in [0, 1], or uint16 for mammograms.
        reading: Reading options of mammograms, with the keys ``crop_breast``, ``align`` and ``voi``; None if the images
            are not read as mammograms.
        image_reading: Rule for the scale of the grey values of other images.
    """

    size: tuple[int, ...]
    channels: int
    dtype: np.dtype
    reading: Mapping[str, bool] | None = None
    image_reading: ImageReading = DEFAULT_READING

    def shape(self) -> tuple[int, ...]:
        """Return the shape of one row of the array: the size, followed by the channels if there are several."""
        return (*self.size, self.channels) if self.channels > 1 else self.size


def read_row(source: ImageSource, form: RowFormat) -> LoadedItem:
    """Read an image as a row of the array, in the given format.

    Args:
        source: Path of the file, or the files of a DICOM series.
        form: Format of the row.

    Raises:
        DataError: If the file can't be read.
    """
    if form.reading is not None:
        assert isinstance(source, Path)  # `choose_format` refuses volumes as mammograms
        return LoadedItem(read_mammogram(source, form.size, form.channels, **form.reading))
    pixels = read_image(source, form.size, form.channels, form.image_reading)
    if pixels.dtype != form.dtype and form.dtype == np.uint8:
        raise DataError(
            "changed_file",
            "the image file has more than 8 bits, it had 8 when the files were inspected: it has changed. Run the "
            "same command again when no program writes into the folder.",
        )
    return LoadedItem(pixels if pixels.dtype == form.dtype else pixels / np.float32(255))


def inspect_images(
    sources: Sequence[ImageSource | DataError], check: str, say: Say, reading: ImageReading = DEFAULT_READING
) -> tuple[dict[int, ImageKind], dict[int, str]]:
    """Inspect the headers of images, in several threads because most of the time is disk access.

    Args:
        sources: Files of the images, or the reason why an image has none.
        check: Treatment of DICOM files that may identify the patient: ``strip`` accepts them, ``refuse`` counts them as
            unreadable.
        say: Function that receives lines about the progress.
        reading: Rule by which the images will be read.

    Returns:
        Two dictionaries by the position in `sources`, ascending: the kind of each readable image, and the reason for
        each unreadable image.
    """

    def inspect(source: ImageSource | DataError) -> ImageKind | DataError:
        if isinstance(source, DataError):
            return source
        try:
            return inspect_image(source, check, reading)
        except DataError as error:
            return error

    kinds: dict[int, ImageKind] = {}
    failed: dict[int, str] = {}
    threads = ThreadPoolExecutor(core_count())
    try:
        with quiet_decoders(), progress("inspecting", len(sources), "images", say) as show:
            for place, kind in enumerate(threads.map(inspect, sources)):
                if isinstance(kind, DataError):
                    failed[place] = str(kind)
                else:
                    kinds[place] = kind
                show(place + 1)
    finally:
        threads.shutdown(cancel_futures=True)
    return kinds, failed


def common_spacing(kinds: Iterable[ImageKind], size: Sequence[int] | None = None) -> tuple[float, float, float] | None:
    """Return the voxel spacing (D, H, W), in millimetres, that all volumes have in the array.

    Args:
        kinds: Kinds of the files.
        size: Size to which volumes are resized, (D, H, W); None if they keep their spacing.

    Returns:
        The spacing, or None if the volumes differ in it by more than `SPACING_TOLERANCE`, or the images are 2-D.
    """
    grids = [kind.grid for kind in kinds if kind.grid is not None]
    if not grids:
        return None
    edges = np.array([resized_spacing(grid, grid.shape if size is None else size) for grid in grids])
    if (np.ptp(edges, axis=0) > SPACING_TOLERANCE * edges.max(axis=0)).any():
        return None
    d, h, w = (round(float(edge), 4) for edge in np.median(edges, axis=0))
    return d, h, w


def choose_format(
    kinds: Mapping[int, ImageKind],
    size: Sequence[int],
    channels: int | None,
    reading: Mapping[str, bool] | None,
    image_reading: ImageReading = DEFAULT_READING,
) -> RowFormat:
    """Choose the common format of all images.

    Args:
        kinds: Maps each table row to the kind of its file.
        size: (H, W), (D, H, W), or one number for all edges, each >= 1.
        channels: 1 or 3; None chooses 3 if any image is in colour, otherwise 1.
        reading: Reading options of mammograms, with the keys ``crop_breast``, ``align`` and ``voi``; None reads the
            files as ordinary images.
        image_reading: Rule for the scale of the grey values of ordinary images.

    Raises:
        DataError: If there are both 2-D images and volumes.
        SettingsError: If the size, the channels or the reading options do not fit the images.
    """
    volumes = [row for row, kind in kinds.items() if kind.dims == 3]
    if volumes and len(volumes) < len(kinds):
        raise DataError(
            "mixed_dimensions",
            f"expected 2-D images or volumes, got both: {len(kinds) - len(volumes)} images and {len(volumes)} volumes "
            f"({row_list(volumes)}). Prepare them as two data sets.",
            images=len(kinds) - len(volumes),
            volumes=len(volumes),
            rows=volumes,
        )
    if volumes and reading is not None:
        raise SettingsError(
            "data_not_supported",
            "mammograms are 2-D images, got volumes. Leave out --crop-breast, --align and --voi.",
            feature="mammograms",
            found="volumes",
        )
    dims = 3 if volumes else 2
    whole = tuple(size) * dims if len(size) == 1 else tuple(size)
    if len(whole) != dims or min(whole) < 1:
        raise SettingsError(
            "setting_out_of_range",
            f"expected one size or {dims} sizes >= 1 for {'volumes' if volumes else '2-D images'}, got {list(size)}",
            setting="size",
            dimensions=dims,
            found=size,
        )
    if volumes and whole[-1] in (1, 3):
        raise SettingsError(
            "ambiguous_size",
            f"a last edge of {whole[-1]} would be mistaken for a channel axis. Choose another size.",
            setting="size",
            found=whole[-1],
        )
    depth = channels or (3 if any(kind.colour for kind in kinds.values()) and reading is None else 1)
    if depth not in (1, 3) or (volumes and depth != 1):
        raise SettingsError(
            "setting_out_of_range",
            f"expected {'1 channel for volumes' if volumes else '1 or 3 channels'}, got {channels}",
            setting="channels",
            expected=(1,) if volumes else (1, 3),
            found=channels,
        )
    if reading is not None:
        return RowFormat(whole, depth, np.dtype(np.uint16), reading)
    deep = any(kind.deep for kind in kinds.values())
    return RowFormat(whole, depth, np.dtype(np.float32 if deep else np.uint8), image_reading=image_reading)


def check_resampled(kinds: Iterable[ImageKind], size: Sequence[int], spacing: Sequence[float], say: Say) -> None:
    """Check that images can be resampled, and say how many will be cropped.

    Args:
        kinds: Kinds of the images.
        size: Size of the images in the array.
        spacing: Voxel spacing to which they are resampled, in millimetres.
        say: Receives a note if volumes will be cropped.

    Raises:
        SettingsError: If the images are 2-D.
        DataError: If the memory does not suffice.
    """
    shapes = [resampled_shape(kind.grid.shape, kind.grid.affine, spacing) for kind in kinds if kind.grid is not None]
    if not shapes:
        raise SettingsError(
            "data_not_supported",
            "--spacing resamples volumes, got 2-D images. Leave it out.",
            feature="spacing",
            found="2-D images",
        )
    check_memory(max(map(math.prod, shapes)))
    if cropped := sum(any(edge > limit for edge, limit in zip(shape, size, strict=True)) for shape in shapes):
        largest = "x".join(str(max(edges)) for edges in zip(*shapes, strict=True))
        say(f"note: {cropped} volumes are larger than --size and are cropped at their edges; --size {largest} fits all")
