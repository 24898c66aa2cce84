"""Record of the statistics that one site discloses about its training images, validated wherever it is received."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from medfl.settings import StrictModel

Text = Annotated[str, Field(max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]
"""Type of a short text without control characters, such as a name."""

Sentence = Annotated[str, Field(max_length=1000, pattern=r"^[^\x00-\x1f\x7f]*$")]
"""Type of a longer text without control characters."""

Count = Annotated[int, Field(ge=0, le=10**12)]
"""Type of a number of images, patients, channels or pixels."""

Value = Annotated[float, Field(allow_inf_nan=False, ge=-1e38, le=1e38)]
"""Type of a finite measured value, such as a quantile."""

MAX_ENTRIES = 5000
"""Maximum number of entries of a list in the record."""

DISCLOSURE_KINDS = ("size", "label_counts", "geometry", "intensities", "targets")
"""Kinds of statistics that a site's own file can allow.

* ``size``: numbers of images and patients.
* ``label_counts``: tables of classes, findings, events, structures, and columns with two values.
* ``geometry``: shape and spacing.
* ``intensities``: quantiles of brightness and of table columns, and means and deviations of table columns.
* ``targets``: quantiles of regression targets, observation times and structure sizes."""

DisclosureKind = Literal["size", "label_counts", "geometry", "intensities", "targets"]
"""Type of one of `DISCLOSURE_KINDS`."""


class PrivacyGuarantee(StrictModel):
    """Differential privacy guarantee for one training image, over all numbers of the record together."""

    unit: Literal["sample"] = "sample"
    """Unit of privacy: one training image."""

    adjacency: Literal["add_remove", "replace"]
    """Definition of neighbouring data sets: one image is added or removed, or one image is replaced by another."""

    epsilon: float = Field(gt=0, allow_inf_nan=False)
    """Privacy budget epsilon."""

    delta: float = Field(gt=0, lt=1)
    """Probability that the guarantee fails."""

    deviation: float = Field(ge=0, allow_inf_nan=False)
    """Standard deviation of the noise in each count."""


class DisclosedCounts(StrictModel):
    """A table of counts; a suppressed count is None."""

    title: Text
    """Name of the counted property."""

    names: list[Text] = Field(max_length=MAX_ENTRIES)
    """Names of the cells."""

    counts: list[Count | None] = Field(max_length=MAX_ENTRIES)
    """Number of images in each cell."""


class DisclosedQuantiles(StrictModel):
    """Quantiles over the images of one number per image."""

    title: Text
    """Name of the number."""

    kind: Literal["intensities", "targets"]
    """Kind of disclosure (`DISCLOSURE_KINDS`) under which a site allows these quantiles."""

    span: tuple[Value, Value] | None = None
    """Smallest and largest possible number; None if only the data determine them."""

    quantiles: list[Value | None] = Field(min_length=5, max_length=5)
    """Quantiles at 5, 25, 50, 75 and 95 %; a suppressed one is None."""


class DisclosedMoments(StrictModel):
    """Mean and standard deviation of one feature of table rows that a run standardises; None if suppressed."""

    title: Text
    """Name of the feature."""

    count: Count = 0
    """Number of rows with a value; a lower bound if few rows lack one."""

    mean: Value | None = None
    """Mean of the known values."""

    deviation: Annotated[Value, Field(ge=0)] | None = None
    """Standard deviation of the known values."""


class SiteStatistics(StrictModel):
    """Statistics that one site discloses."""

    objective: Text
    """Name of the learning objective."""

    classes: list[Text] = Field([], max_length=MAX_ENTRIES)
    """Names of the classes."""

    shape: list[Count] | None = Field(None, max_length=5)
    """Shape of an image: channels, then edges; for tables the number of columns."""

    spacing: list[Value] | None = Field(None, max_length=4)
    """Pixel spacing in millimetres; None if unknown or not disclosed."""

    images: Count | None = None
    """Number of training images."""

    patients: Count | None = None
    """Number of patients of the training images; None if unknown or suppressed."""

    tables: list[DisclosedCounts] = Field([], max_length=MAX_ENTRIES)
    """Tables of counts."""

    numbers: list[DisclosedQuantiles] = Field([], max_length=MAX_ENTRIES)
    """Quantiles of each number that is measured for every image."""

    features: list[Text] = Field([], max_length=MAX_ENTRIES)
    """Names of the features of table rows, in order."""

    moments: list[DisclosedMoments] = Field([], max_length=MAX_ENTRIES)
    """Mean and deviation of each feature that a run standardises; suppressed if few rows are behind them, and with
    noise."""

    suppressed: list[Sentence] = Field([], max_length=MAX_ENTRIES)
    """Sentences on what is suppressed, and why."""

    min_count: Annotated[int, Field(ge=1, le=10**9)]
    """Minimum number of images behind a disclosed number."""

    guarantee: PrivacyGuarantee | None = None
    """Guarantee of the noise; None if the numbers are exact."""
