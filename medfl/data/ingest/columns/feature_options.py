"""Options for the table columns that networks take as input, in ``medfl prep table`` and ``medfl prep folder``."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import numpy as np

from medfl.data.ingest.columns.feature_types import choose_columns
from medfl.data.ingest.columns.labels import LabelledRows, TableOptions
from medfl.data.ingest.columns.target_option import parse_target
from medfl.data.ingest.options import Words
from medfl.errors import SettingsError
from medfl.records.feature_columns import FeatureColumns
from medfl.utils.text import first_names


class FeatureOptions(TableOptions):
    """Options of specs whose networks take columns of a hospital's table as input."""

    number: Words = ()
    """Columns with numbers that networks take as input, separated by commas, each with its unit in brackets if it has
    one: age[years],psa."""
    category: Words = ()
    """Columns with categories that networks take as input, separated by commas."""
    columns: Path | None = None
    """File columns.json of the site that prepared its data first, instead of --number and --category."""

    def feature_columns(
        self, rows: LabelledRows, image: str | None, target: str | None, ignored: Collection[str] = ()
    ) -> FeatureColumns:
        """Return the typed columns that the options name, or all columns that can be features if they name none.

        Args:
            rows: Rows of the table.
            image: Column with the path of the image file; None for a table without images.
            target: Text of the option ``--target``, or None.
            ignored: Columns that are no features.

        Raises:
            DataError: If a column is not as expected, or the file does not contain columns.
            SettingsError: If --columns is given beside other columns, or a column is named twice.
        """
        if self.columns is not None and (self.number or self.category):
            raise SettingsError(
                "incompatible_settings",
                "--columns names all features. Leave out --number and --category.",
                settings=["columns", "number", "category"],
            )
        if self.columns is not None:
            return FeatureColumns.read(self.columns)
        option = None if target is None else parse_target(target)
        targets = () if option is None else option.columns(rows.table)
        excluded = {column.name for column in targets} | {*ignored}
        roles = (image, self.group_column, self.site_column, self.split_column)
        excluded |= {name for name in roles if name is not None}
        return choose_columns(rows.table, self.number, self.category, excluded, tuple(self.missing or ()))


def describe_features(columns: FeatureColumns, features: np.ndarray) -> list[str]:
    """Return lines with the features by type, and with the number of missing values of each column.

    Args:
        columns: Typed columns.
        features: Features of all rows, (N, F).
    """
    lines = []
    for kind, text in (("number", "numbers"), ("category", "categories")):
        names = [column.name for column in columns.columns if column.kind == kind]
        if names:
            lines.append(f"{text}: {', '.join(names)}")
    counts = dict(zip(columns.features, np.nansum(features, axis=0), strict=True))
    incomplete = [
        f"{column.name} in {round(counts[column.features[-1]])}"
        for column in columns.columns
        if counts[column.features[-1]]
    ]
    return lines + ([f"missing values: {first_names(incomplete, 20)} of {len(features)} rows"] if incomplete else [])
