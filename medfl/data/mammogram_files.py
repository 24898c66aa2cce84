"""Mammograms to predict, read exactly as ``medfl prep`` read them for training.

How images were read stands in the data list, see `medfl.data.readers.mammogram_image`. Data sets that do not say it,
such as those of MedMNIST, are read by `medfl.data.readers.images`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from medfl.data.datalists import read_datalist
from medfl.data.inference import ImageFiles, SiteImages, load_images
from medfl.data.readers.images import read_image
from medfl.data.readers.mammogram_image import check_reading, read_mammogram
from medfl.data.sites import site_names
from medfl.errors import DataError
from medfl.objectives import Objective


def load_mammograms(
    dataset_dir: str | Path,
    reading: Mapping[str, bool] | None,
    size: int | Sequence[int],
    spatial_dims: int,
    in_channels: int,
    objective: Objective,
    mean: Sequence[float] = (0.5,),
    std: Sequence[float] = (0.5,),
) -> ImageFiles | SiteImages:
    """What a bundle's ``inference.json`` predicts.

    Args:
        dataset_dir: A folder of image files, or the folder of a site, whose test images are then taken.
        reading: How mammograms were read for training, entries of `READING`; None means by `medfl.data.readers.images`.
        size: Spatial size that the network takes; one number stands for all edges.
        spatial_dims: 2 for images, 3 for volumes.
        in_channels: Channels that the network takes.
        objective: What is learned.
        mean: As in training.
        std: As in training.

    Raises:
        DataError: If the folder is not there or holds nothing to predict.
        SettingsError: If there is no such way to read.
    """
    ways: dict[str, Any] = {} if reading is None else dict(check_reading(reading))
    read = read_image if reading is None else partial(read_mammogram, **ways)
    return load_images(dataset_dir, size, spatial_dims, in_channels, objective, mean, std, read=read)


def how_read(dataset_dir: str | Path, otherwise: Mapping[str, bool] | None) -> dict[str, bool] | None:
    """How the mammograms of a partitioned data set were read.

    Args:
        dataset_dir: The folder that holds one folder for each site.
        otherwise: What the configuration has as long as the data can't be read.

    Returns:
        All entries of `READING`; None if the data set does not say it.

    Raises:
        SettingsError: If the data set says something unknown.
    """
    try:
        site = Path(dataset_dir) / site_names(Path(dataset_dir))[0]
        reading = read_datalist(site).extra.get("reading")
    except DataError:
        return None if otherwise is None else check_reading(otherwise)
    return None if reading is None else check_reading(reading)
