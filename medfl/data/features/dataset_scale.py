"""Scale of the inputs of a partitioned data set, for a bundle's configuration."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from medfl.data.arrays import FEATURE_MEAN, FEATURE_STD, open_array
from medfl.data.datalists import DATALIST_FILE, Datalist, parse_datalist, read_datalist_bytes
from medfl.data.features.feature_encoding import typed_columns
from medfl.data.features.feature_scale import FeatureScale, FeatureSums, scale_features, sum_features
from medfl.data.features.record_features import feature_rows
from medfl.data.sites import image_shape, site_names
from medfl.errors import DataError

UNSCALED = FeatureScale([0.0], [1.0])
"""Scale that keeps numbers as they are."""


def dataset_scale(dataset_dir: str | Path) -> FeatureScale:
    """Return the mean and standard deviation of the features over the training rows of all sites.

    They are those of the data lists if all sites have the same, as after ``medfl partition`` of a pooled table. If the
    sites were prepared apart, with typed columns, the scale follows from sums of each site.

    Args:
        dataset_dir: Partitioned data set: contains one folder for each site.

    Returns:
        The scale; `UNSCALED` if the data can't be read or have no features. If the data can't be read, the run itself
        reports the reason later.

    Raises:
        DataError: If sites were prepared apart and have no typed columns or different ones, or no site has enough known
            values.
    """
    top = Path(dataset_dir)
    try:
        lists = {name: _read(top / name) for name in site_names(top)}
        channels = _image_channels(top, lists)
    except DataError:
        return UNSCALED
    scales = [(datalist.extra.get(FEATURE_MEAN), datalist.extra.get(FEATURE_STD)) for datalist in lists.values()]
    is_same, (mean, std) = scales.count(scales[0]) == len(scales), scales[0]
    if is_same and mean is not None and std is not None:
        return _after_images(FeatureScale(list(mean), list(std)), channels)
    columns = typed_columns(next(iter(lists.values())).extra)
    if columns is None and is_same:
        return UNSCALED
    if columns is None:
        raise DataError(
            "different_scales",
            f"expected the same mean and deviation of the features at all sites of {top}, they differ. Partition the "
            "pooled table with `medfl partition`, or give --mean and --std.",
            path=top,
        )
    for name, datalist in lists.items():
        if typed_columns(datalist.extra) != columns:
            raise DataError(
                "different_features",
                f"expected the same typed columns at all sites of {top}, those of '{name}' differ from those of "
                f"'{next(iter(lists))}'. Prepare all tables with the same columns.json (medfl prep table --columns).",
                path=top,
                site=name,
            )
    sums = [site_sums(top / name, datalist) for name, datalist in lists.items()]
    return _after_images(scale_features(sums, columns), channels)


def _image_channels(top: Path, lists: Mapping[str, Datalist]) -> int:
    """Return the number of channels of the images; 0 for table rows."""
    name, datalist = next(iter(lists.items()))
    shape = open_array(top / name / datalist.image_array).shape
    return 0 if len(shape) == 2 else image_shape(shape)[0]


def _after_images(scale: FeatureScale, channels: int) -> FeatureScale:
    """Return the scale of images with features: mean 0 and deviation 1 for each image channel, then the features'."""
    return FeatureScale([0.0] * channels + scale.mean, [1.0] * channels + scale.std)


def site_sums(folder: Path, datalist: Datalist) -> FeatureSums:
    """Return the sums of a site's training rows.

    Args:
        folder: Folder of the site.
        datalist: Its data list, with typed columns or table rows.

    Raises:
        DataError: If the array is missing, or a record has no row or no features.
    """
    array, columns = open_array(folder / datalist.image_array), typed_columns(datalist.extra)
    place = f"site '{folder.name}', split 'training'"
    rows = feature_rows(columns, array, datalist.splits.get("training", []), place)
    assert rows is not None  # only data with typed columns have sums
    return sum_features(rows)


def _read(folder: Path) -> Datalist:
    return parse_datalist(read_datalist_bytes(folder), folder / DATALIST_FILE)
