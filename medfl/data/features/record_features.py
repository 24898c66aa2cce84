"""Features of table columns that belong to images: each record of a data list has the features of its image.

A data set of table rows alone has its features in the array instead (`medfl.data.ingest.columns.table_spec`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from medfl.data.targets import read_integers
from medfl.errors import DataError
from medfl.records.datalist import CaseRecord
from medfl.records.feature_columns import FeatureColumns

FEATURES_KEY = "features"
"""Key of a record: features of the image's table row, in the order of the list's features; None is a missing number."""


def count_image_features(columns: FeatureColumns | None, array_shape: Sequence[int]) -> int:
    """Return the number of features that belong to each image; 0 for table rows and for images without a table."""
    return 0 if columns is None or len(array_shape) == 2 else len(columns.features)


def image_features(
    columns: FeatureColumns | None, array_shape: Sequence[int], records: Sequence[CaseRecord], place: str
) -> np.ndarray | None:
    """Return the features of images, (n, F), float32, with NaN for missing numbers; None if the images have none.

    Args:
        columns: Typed columns of the data list; None if it has none.
        array_shape: Shape of the image array, (N, ...).
        records: Records of a split.
        place: Name of the split, for messages.

    Raises:
        DataError: If a record does not have a number for each feature.
    """
    count = count_image_features(columns, array_shape)
    if not count:
        return None
    features = np.zeros((len(records), count), dtype=np.float32)
    for number, record in enumerate(records):
        values = record.get(FEATURES_KEY)
        if not isinstance(values, list) or len(values) != count or not all(map(_is_feature, values)):
            raise DataError(
                "wrong_features",
                f"expected {count} numbers in '{FEATURES_KEY}' of record {number} of {place}, one for each feature of "
                "the list, got something else. Prepare the images again with `medfl prep folder`.",
                where=place,
                record=number,
                expected=count,
            )
        features[number] = [math.nan if value is None else value for value in values]
    return features


def feature_rows(
    columns: FeatureColumns | None, array: np.ndarray, records: Sequence[CaseRecord], place: str
) -> np.ndarray | None:
    """Return the features of a split, (n, F), from the array of table rows or from the records of images.

    Args:
        columns: Typed columns of the data list; None if it has none.
        array: Array of the data list.
        records: Records of the split.
        place: Name of the split, for messages.

    Returns:
        The features, with NaN for missing numbers; None for images without table columns.

    Raises:
        DataError: If a record is wrong.
    """
    if array.ndim == 2:
        return np.asarray(array[read_integers(records, "image", place)])
    return image_features(columns, array.shape, records, place)


def feature_entries(features: np.ndarray) -> list[list[float | None]]:
    """Return features (n, F) as entries of records, with None for NaN."""
    return [[None if math.isnan(value) else value for value in row] for row in features.tolist()]


def check_feature_names(columns: FeatureColumns | None, names: Sequence[object], array_shape: Sequence[int]) -> None:
    """Raise if a data list's names of features differ from its typed columns, or their number from the table rows.

    Args:
        columns: Typed columns of the data list; None if it has none.
        names: Names of the features in the data list.
        array_shape: Shape of the array, (N, ...).

    Raises:
        DataError: If they differ.
    """
    if columns is None:
        return
    features = columns.features
    if list(names) != features or (len(array_shape) == 2 and array_shape[1] != len(features)):
        raise DataError(
            "wrong_features",
            f"expected the {len(features)} features of the list's columns in '{FEATURES_KEY}' and the array, got "
            "others. Prepare the data again with `medfl prep`.",
            expected=len(features),
            found=list(array_shape[1:]),
        )


def _is_feature(value: object) -> bool:
    """Return whether a value is a finite number or None."""
    if value is None:
        return True
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
