"""Records of a model card's scores: tables of metrics with confidence intervals, baseline and calibration."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from medfl.records.calibration_evaluation import CalibrationEvaluation
from medfl.records.evaluation import ScoreEstimate
from medfl.records.record import Record


class CardRow(Record):
    """Scores of a group of test images.

    Attributes:
        name: Name of the group: a site, a subgroup or a class.
        cases: Number of test images; None for a mean, and for a group of too few patients.
        patients: Number of patients; None if patients are unknown.
        scores: Maps each metric to its estimate; metrics that are undefined for the group are left out.
    """

    name: str
    cases: int | None
    patients: int | None
    scores: dict[str, ScoreEstimate]


class CardTable(Record):
    """Scores of several groups of test images.

    Attributes:
        part: Grouping of the test images: by site, sex, centre or class. ``all`` has a row for all test images, and one
            for the mean of the sites.
        metrics: Metrics of the table, in the order of its columns.
        rows: Rows of the table.
    """

    part: Literal["all", "site", "sex", "centre", "class"]
    metrics: tuple[str, ...]
    rows: tuple[CardRow, ...]


class CalibrationBin(Record):
    """Bin of the calibration curve: test images with similar predicted probabilities.

    Attributes:
        images: Number of images.
        mean: Mean predicted probability.
        share: Observed frequency: fraction of the images whose prediction is right, or whose finding is present.
    """

    images: int
    mean: float
    share: float


class MajorityBaseline(Record):
    """Scores of a constant prediction: the most frequent class of the test images, without looking at the image.

    Attributes:
        class_name: Name of the most frequent class.
        class_images: Number of test images of that class.
        images: Number of all test images, >= 1.
        balanced_accuracy: Balanced accuracy of the constant prediction: 1 / number of classes with test images.
    """

    class_name: str
    class_images: int
    images: Annotated[int, Field(ge=1)]
    balanced_accuracy: float

    @property
    def accuracy(self) -> float:
        """Accuracy of the constant prediction, in [0, 1]."""
        return self.class_images / self.images


class CardScores(Record):
    """All scores of a model card; empty without test images.

    Attributes:
        tables: Tables of scores; the table of all test images is first.
        baseline: Scores of the majority-class baseline; None without classes, without finite predictions, and for too
            few patients.
        bins: Bins of the calibration curve; empty if the objective has no probabilities.
        calibrated: Evaluation of the model's calibration (`medfl calibrate`) at each site; empty without one.
    """

    tables: tuple[CardTable, ...] = ()
    baseline: MajorityBaseline | None = None
    bins: tuple[CalibrationBin, ...] = ()
    calibrated: tuple[CalibrationEvaluation, ...] = ()

    @property
    def overall(self) -> CardRow | None:
        """Row of all test images; None without test images."""
        return next((row for table in self.tables if table.part == "all" for row in table.rows), None)

    def values(self) -> Iterator[tuple[str, float | str | None]]:
        """Yield each value as (name, value); the name says its place in words, such as ``sex female accuracy``."""
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
        if self.baseline is not None:
            yield "baseline class", self.baseline.class_name
            yield "baseline class images", self.baseline.class_images
            yield "baseline images", self.baseline.images
            yield "baseline balanced accuracy", self.baseline.balanced_accuracy
        for number, bin_ in enumerate(self.bins, 1):
            yield f"bin {number} images", bin_.images
            yield f"bin {number} mean", bin_.mean
            yield f"bin {number} share", bin_.share
        for evaluation in self.calibrated:
            yield from _evaluation_values(evaluation)


def _evaluation_values(evaluation: CalibrationEvaluation) -> Iterator[tuple[str, float | str | None]]:
    """Yield each value of a calibration's evaluation at a site as (name, value)."""
    place = f"calibrated {evaluation.site}"
    yield f"{place} images", evaluation.images
    yield f"{place} patients", evaluation.patients
    for rate in evaluation.rates:
        yield f"{place} {rate.name}", rate.value
        yield f"{place} {rate.name}, lower end", rate.low
        yield f"{place} {rate.name}, upper end", rate.high
        yield f"{place} {rate.name}, images", rate.images
    for change in evaluation.scores:
        yield f"{place} {change.name} before", change.before
        yield f"{place} {change.name} after", change.after
    for number, size in enumerate(evaluation.set_size, 1):
        yield f"{place} size {number}", size
    for need in evaluation.needed:
        yield f"{place} patients for {need.quantity} {need.difference:.3g}", need.patients
