"""Records of the evaluation of a calibration on test images."""

from __future__ import annotations

from medfl.records.record import Record

PART_COVERAGE = "coverage of "
"""Start of the names of the coverages of single classes or numbers."""


class Rate(Record):
    """Rate on test images with its 95 % confidence interval over patients.

    Attributes:
        name: Name of the rate, such as ``sensitivity``.
        value: The rate.
        low: Lower end of the interval.
        high: Upper end of the interval.
        images: Number of images behind the rate.
    """

    name: str
    value: float
    low: float
    high: float
    images: int


class ScoreChange(Record):
    """Score of the model's own and of the recalibrated predictions.

    Attributes:
        name: Name of the score.
        before: Score of the model's own predictions.
        after: Score of the recalibrated predictions.
    """

    name: str
    before: float
    after: float


class PatientsNeeded(Record):
    """Number of patients that detect a difference with a power of 80 % in a two-sided test at 5 %.

    Attributes:
        quantity: Measured quantity, such as ``sensitivity``.
        measured: Its value on the test images.
        difference: Difference between two models that is to be detected; for a hazard ratio, the ratio.
        units: Number of patients behind the quantity, such as patients with the class; events for a hazard ratio.
        patients: Number of all patients at the share of these in the test images.
    """

    quantity: str
    measured: float
    difference: float
    units: int
    patients: int


class CalibrationEvaluation(Record):
    """Evaluation of a calibration on the test images of a site.

    Attributes:
        site: Name of the site, or of all sites together.
        images: Number of test images.
        patients: Number of patients; None if patients are unknown.
        rates: Rates that have enough patients: at the threshold, and the coverage of prediction sets.
        scores: Scores before and after recalibration.
        set_size: Mean number of classes in a prediction set, or mean width of an interval; None without sets.
        needed: Numbers of patients needed to detect differences.
    """

    site: str
    images: int
    patients: int | None
    rates: tuple[Rate, ...] = ()
    scores: tuple[ScoreChange, ...] = ()
    set_size: tuple[float, ...] = ()
    needed: tuple[PatientsNeeded, ...] = ()

    def rate(self, name: str) -> Rate | None:
        """Return the rate of that name; None if it is not given."""
        return next((rate for rate in self.rates if rate.name == name), None)
