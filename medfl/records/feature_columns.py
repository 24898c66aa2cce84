"""Typed columns of a table: the file ``columns.json``, which sites share so that their rows have the same features."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, StringConstraints

from medfl.errors import DataError, MedflError
from medfl.records.record import FileRecord, Record


def _check_inert(text: str) -> str:
    """Return a text, or raise ValueError if MONAI would evaluate it in a bundle's configuration."""
    if text.lstrip()[:1] in ("$", "@", "%") or not text.isprintable():
        raise ValueError("a name begins with '$', '@' or '%', or has control characters")
    return text


PlainText = Annotated[str, StringConstraints(max_length=200), AfterValidator(_check_inert)]
"""Type of a text that is safe in the configurations of bundles."""


class FeatureColumn(Record):
    """Column of a table that networks take as input.

    Attributes:
        name: Name of the column in the table.
        kind: ``number`` or ``category``.
        unit: Unit of a number; empty if it is not stated.
        categories: Categories with a feature of their own, in order; all others share the feature ``other``.
    """

    name: PlainText
    kind: Literal["number", "category"]
    unit: PlainText = ""
    categories: tuple[PlainText, ...] = ()

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the features, the last of which is 1 where the value is missing and 0 elsewhere.

        A number has one further feature, and a category one for each of `categories` and one for all others.
        """
        unit = f" [{self.unit}]" if self.unit and not self.name.endswith(f"[{self.unit}]") else ""
        values = [f"{self.name}={category}" for category in (*self.categories, "(other)")]
        return (*([f"{self.name}{unit}"] if self.kind == "number" else values), f"{self.name} missing")


class FeatureColumns(FileRecord):
    """Columns of a table, in the order of the features.

    Attributes:
        columns: The columns.
    """

    NAME: ClassVar[str] = "columns.json"
    REPAIR: ClassVar[str] = "Copy it again from the site that prepared its table first."
    ERROR: ClassVar[type[MedflError]] = DataError

    columns: tuple[FeatureColumn, ...]

    @property
    def features(self) -> list[str]:
        """Names of all features, in order."""
        return [feature for column in self.columns for feature in column.features]

    @property
    def is_scaled(self) -> list[bool]:
        """Whether each feature is standardised: numbers are, and the features with only the values 0 and 1 are not."""
        return [
            column.kind == "number" and place == 0 for column in self.columns for place in range(len(column.features))
        ]
