"""Load mammograms for inference, read exactly as ``medfl prep`` read them for training.

The data list stores the reading options: ``crop_breast``, ``align`` and ``voi`` (see
`medfl.data.readers.mammogram_image`). Data sets without these options,
for example MedMNIST, are read by `medfl.data.readers.images`.
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
    """Load the mammograms that a bundle's ``inference.json`` predicts.

    Args:
        dataset_dir: Folder of image files, or a site's folder, whose test images are then used.
        reading: Reading options used for training, with the keys ``crop_breast``, ``align`` and ``voi``. None reads the
            files as ordinary images.
        size: Spatial input size of the network; one number applies to all edges.
        spatial_dims: 2 for images, 3 for volumes.
        in_channels: Number of input channels of the network.
        objective: Training objective of the task.
        mean: Normalisation mean, as in training.
        std: Normalisation standard deviation, as in training.

    Raises:
        DataError: If the folder is missing or contains nothing to predict.
        SettingsError: If a reading option is unknown.
    """
    options: dict[str, Any] = {} if reading is None else dict(check_reading(reading))
    read = read_image if reading is None else partial(read_mammogram, **options)
    return load_images(dataset_dir, size, spatial_dims, in_channels, objective, mean, std, read=read)


def reading_options(dataset_dir: str | Path, otherwise: Mapping[str, bool] | None) -> dict[str, bool] | None:
    """Return the reading options with which the mammograms of a partitioned data set were prepared.

    Args:
        dataset_dir: Partitioned data set: contains one folder for each site.
        otherwise: Options to return if the data can't be read.

    Returns:
        True or False for each of ``crop_breast``, ``align`` and ``voi``; None if the data list has no reading options.

    Raises:
        SettingsError: If an option in the data list is unknown.
    """
    try:
        site = Path(dataset_dir) / site_names(Path(dataset_dir))[0]
        reading = read_datalist(site).extra.get("reading")
    except DataError:
        return None if otherwise is None else check_reading(otherwise)
    return None if reading is None else check_reading(reading)
