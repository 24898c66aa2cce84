"""Scores of a model card: tables of metrics with confidence intervals, and the bins of the calibration."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from medfl.records.record import Record


class ScoreEstimate(Record):
    """A score with its 95 % confidence interval.

    Attributes:
        value: Score on the test images.
        low: Lower end of the interval.
        high: Upper end of the interval.
    """

    value: float
    low: float
    high: float


class CardRow(Record):
    """Scores of a group of test images.

    Attributes:
        name: Name of the group: a site, a subgroup or a class.
        cases: Number of test images; None in a mean, and in a group of too few patients.
        patients: Number of patients; None if no patients are known.
        scores: Maps each metric to its estimate; a metric that is not defined for the group has none.
    """

    name: str
    cases: int | None
    patients: int | None
    scores: dict[str, ScoreEstimate]


class CardTable(Record):
    """Scores of several groups of test images.

    Attributes:
        part: How the test images are divided into groups; ``all`` for all of them and the mean of the sites.
        metrics: Metrics of the table, in the order of its columns.
        rows: Rows of the table.
    """

    part: Literal["all", "site", "sex", "centre", "class"]
    metrics: tuple[str, ...]
    rows: tuple[CardRow, ...]


class CalibrationBin(Record):
    """Test images with similar predicted probabilities.

    Attributes:
        images: Number of images.
        mean: Mean of the probabilities.
        share: Share of the images for which the prediction is right, or the finding is present.
    """

    images: int
    mean: float
    share: float


class CardScores(Record):
    """All scores of a model card; empty without test images.

    Attributes:
        tables: Tables of scores, the one of all test images first.
        bins: Bins of the calibration; empty if the objective has no probabilities.
    """

    tables: tuple[CardTable, ...] = ()
    bins: tuple[CalibrationBin, ...] = ()

    @property
    def overall(self) -> CardRow | None:
        """Row of all test images, or None without test images."""
        return next((row for table in self.tables if table.part == "all" for row in table.rows), None)

    def values(self) -> Iterator[tuple[str, float | str | None]]:
        """Yield each value with a name in words for its place, such as ``sex female accuracy``."""
        yield "parts", ", ".join(table.part for table in self.tables)
        for table in self.tables:
            yield f"{table.part} metrics", ", ".join(table.metrics)
            yield f"{table.part} rows", ", ".join(row.name for row in table.rows)
            for row in table.rows:
                place = f"{table.part} {row.name}"
                yield f"{place} images", row.cases
                yield f"{place} patients", row.patients
                for metric, estimate in row.scores.items():
                    yield f"{place} {metric}", estimate.value
                    yield f"{place} {metric}, lower end", estimate.low
                    yield f"{place} {metric}, upper end", estimate.high
        for number, bin_ in enumerate(self.bins, 1):
            yield f"bin {number} images", bin_.images
            yield f"bin {number} mean", bin_.mean
            yield f"bin {number} share", bin_.share
