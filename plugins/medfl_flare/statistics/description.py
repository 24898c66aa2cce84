"""What a site tells of its training images, in a form that is checked when it comes from elsewhere."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from medfl.settings import Strict

Text = Annotated[str, Field(max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]
Sentence = Annotated[str, Field(max_length=1000, pattern=r"^[^\x00-\x1f\x7f]*$")]
Count = Annotated[int, Field(ge=0, le=10**12)]
Value = Annotated[float, Field(allow_inf_nan=False, ge=-1e38, le=1e38)]

MOST = 5000
"""Tables and numbers of a description, at most."""

FACTS = ("size", "label_counts", "geometry", "intensities", "targets")
"""What a site's file can let be told: numbers of images and patients; tables of classes, findings, events, structures
and columns of two values; shape and spacing; quantiles of brightness and columns; quantiles of what is predicted."""

Fact = Literal["size", "label_counts", "geometry", "intensities", "targets"]


class Promise(Strict):
    """What noise guarantees for one training image, over all numbers of the description together."""

    unit: Literal["sample"] = "sample"
    """One training image."""

    adjacency: Literal["add_remove", "replace"]
    """Whether data sets are compared that have one image more, or another one."""

    epsilon: float = Field(gt=0, allow_inf_nan=False)
    """The budget."""

    delta: float = Field(gt=0, lt=1)
    """Probability that the guarantee fails."""

    deviation: float = Field(ge=0, allow_inf_nan=False)
    """Standard deviation of the noise in each count."""


class Counts(Strict):
    """A table; a count that is withheld is None."""

    title: Text
    """What is counted."""

    names: list[Text] = Field(max_length=MOST)
    """Of the cells."""

    counts: list[Count | None] = Field(max_length=MOST)
    """One for each name."""


class Numbers(Strict):
    """Quantiles over the images of a number of each image."""

    title: Text
    """What the number is."""

    kind: Literal["intensities", "targets"]
    """What it is of."""

    span: tuple[Value, Value] | None = None
    """The least and the largest number that it can be; None where only the data tell."""

    quantiles: list[Value | None] = Field(min_length=5, max_length=5)
    """At 5, 25, 50, 75 and 95 %; None where one is withheld."""


class Description(Strict):
    """What one site tells."""

    objective: Text
    """What is learned."""

    classes: list[Text] = Field([], max_length=MOST)
    """Names of the classes."""

    shape: list[Count] | None = Field(None, max_length=5)
    """Of an image: channels and edges; of a row of a table, how many numbers it has."""

    spacing: list[Value] | None = Field(None, max_length=4)
    """Of pixels, in millimetres; None if it is not known, or not told."""

    images: Count | None = None
    """Training images."""

    patients: Count | None = None
    """Whose they are; None if it is not known, or withheld."""

    tables: list[Counts] = Field([], max_length=MOST)
    """Counts."""

    numbers: list[Numbers] = Field([], max_length=MOST)
    """Quantiles."""

    withheld: list[Sentence] = Field([], max_length=MOST)
    """What is not told, and why, in sentences."""

    min_count: Annotated[int, Field(ge=1, le=10**9)]
    """Fewest images of which this site tells a number."""

    promise: Promise | None = None
    """What the noise guarantees; None where the numbers are exact."""
