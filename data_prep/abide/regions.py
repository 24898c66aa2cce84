"""Load the atlas of a prepared data set for methods, with its regions numbered from 1."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from medfl.data.arrays import open_array
from medfl.data.datalists import DATALIST_FILE, read_datalist
from medfl.data.sites import image_shape, site_names
from medfl.errors import DataError
from medfl_datasets.abide.atlas import PREPARED_ATLAS, read_labels, region_codes


def load_regions(dataset_dir: str | Path) -> torch.Tensor | None:
    """Load the atlas that `medfl prep` wrote beside the images of a partitioned data set.

    Args:
        dataset_dir: The folder that contains one folder for each site, or the folder of a site.

    Returns:
        Labels (*spatial), int64, on the grid of the images: 0 outside of all regions, otherwise 1 to the number of
        regions, in the order of the atlas's own codes. None if the data set has no atlas.

    Raises:
        DataError: If the atlas can't be read, or is on another grid than the images.
    """
    folder = Path(dataset_dir)
    site = folder if (folder / DATALIST_FILE).is_file() else folder / site_names(folder)[0]
    images = site / read_datalist(site).image_array
    path = images.parent / PREPARED_ATLAS
    if not path.is_file():
        return None
    labels = read_labels(path).values
    spatial = image_shape(open_array(images).shape)[1:]
    if labels.shape != spatial:
        raise DataError(
            "wrong_shape",
            f"the atlas {path} has {labels.shape} voxels, the images beside it have {spatial}: they don't belong "
            "together. Prepare the data set again with --atlas.",
            path=path,
            expected=spatial,
            found=labels.shape,
        )
    codes = region_codes(labels)
    return torch.from_numpy(np.searchsorted([0, *codes], labels).astype(np.int64))
