"""Schema of ``configs/calibration.json``: decisions of an exported model that were chosen on validation images.

K is the number of values that a model predicts for a case: class probabilities, numbers, or a risk.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from medfl.records.record import FileRecord, Record

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
"""Finite number > 0."""

Finite = Annotated[float, Field(allow_inf_nan=False)]
"""Finite number."""

Share = Annotated[float, Field(gt=0, lt=1)]
"""Number between 0 and 1, both exclusive."""

Probability = Annotated[float, Field(ge=0, le=1)]
"""Number in [0, 1]."""

Rule = Literal["sensitivity", "youden", "cost"]
"""Rule by which a threshold is chosen."""


class TemperatureScaling(Record):
    """Recalibration of class probabilities: the softmax of their logarithms divided by a temperature.

    Attributes:
        kind: Kind of the recalibration.
        temperature: Temperature; above 1 makes probabilities less extreme. The most probable class never changes.
    """

    kind: Literal["temperature"] = "temperature"
    temperature: Positive


class IsotonicCurve(Record):
    """Non-decreasing, piecewise linear function of a probability, constant outside its knots.

    Attributes:
        knots: Probabilities of the model, increasing.
        values: Recalibrated probability at each knot, non-decreasing.
    """

    knots: tuple[Probability, ...]
    values: tuple[Probability, ...]


class IsotonicScaling(Record):
    """Recalibration of class probabilities by isotonic regression, one class against all others.

    Attributes:
        kind: Kind of the recalibration.
        curves: Function of each class. For two classes only the second one has a curve. For more classes the
            values are divided by their sum.
    """

    kind: Literal["isotonic"] = "isotonic"
    curves: tuple[IsotonicCurve, ...]


class LinearScaling(Record):
    """Recalibration of predicted numbers: intercept + slope x prediction, for each of K numbers.

    Attributes:
        kind: Kind of the recalibration.
        intercepts: Intercepts, in the unit of the numbers; 0 for a risk.
        slopes: Slopes; of a risk > 0.
    """

    kind: Literal["linear"] = "linear"
    intercepts: tuple[Finite, ...]
    slopes: tuple[Finite, ...]


Recalibration = Annotated[TemperatureScaling | IsotonicScaling | LinearScaling, Field(discriminator="kind")]
"""Function that maps a model's predictions to recalibrated ones."""


class DecisionThreshold(Record):
    """Probability at and above which a case is assigned to a class.

    Below it, the most probable other class is predicted.

    Attributes:
        class_number: Number of the class, from 0.
        threshold: The threshold, of the recalibrated probability.
        rule: Rule by which the threshold was chosen.
        minimum_sensitivity: Sensitivity that the rule ``sensitivity`` asks for; None for other rules.
        cost_false_negative: Cost of a false negative relative to a false positive, in the rule ``cost``; None for other
            rules.
        sensitivity: Sensitivity on the validation images.
        specificity: Specificity on the validation images.
    """

    class_number: Annotated[int, Field(ge=0)]
    threshold: Probability
    rule: Rule
    minimum_sensitivity: Share | None = None
    cost_false_negative: Positive | None = None
    sensitivity: Probability
    specificity: Probability


class ConformalSet(Record):
    """Prediction sets of classes: all classes whose probability is at least `minimum`, and the most probable one.

    Attributes:
        coverage: Probability, over new patients of the same population, with which a set contains the true class.
        minimum: Smallest probability of a class in a set. It applies to the model's own probabilities, before
            recalibration, so that the coverage does not depend on it.
    """

    coverage: Share
    minimum: Finite


class ConformalInterval(Record):
    """Prediction intervals of K numbers: the model's own prediction, before recalibration, plus two offsets.

    Attributes:
        coverage: Probability, over new patients of the same population, with which an interval contains the true value;
            for each number separately.
        low: Offset of each interval's lower end, in the unit of the number.
        high: Offset of each interval's upper end.
    """

    coverage: Share
    low: tuple[Finite, ...]
    high: tuple[Finite, ...]


class ChosenOn(Record):
    """Validation images on which a calibration was chosen.

    Attributes:
        sites: Names of the sites.
        images: Number of images.
        patients: Number of patients; None if patients are unknown, so that each image counts as one.
    """

    sites: tuple[str, ...]
    images: int
    patients: int | None


class Calibration(FileRecord):
    """Content of ``configs/calibration.json``: recalibration, threshold and prediction sets of an exported model.

    Attributes:
        objective: Name of the task's objective.
        outputs: Number K of predicted values of a case.
        weights: SHA-256 of the file of the model's weights. A calibration is valid for these weights only.
        chosen_on: Validation images on which everything was chosen. No test image was used.
        recalibration: Recalibration; None if the model's predictions are kept.
        threshold: Threshold of a class; None for the most probable class.
        conformal_set: Prediction sets of classes; None for other objectives.
        conformal_interval: Prediction intervals of numbers; None for other objectives.
        risk_threshold: Recalibrated risk above which a case is in the higher-risk group; None for other objectives.
    """

    NAME: ClassVar[str] = "calibration.json"
    """Name of the file in its folder."""
    HAS_CHECKSUM: ClassVar[bool] = True
    """Whether the file holds a checksum of its other content, which the reader verifies."""
    REPAIR: ClassVar[str] = "Write it again with `medfl calibrate`."
    """Sentence that tells a user what to do about a damaged file."""

    objective: str
    outputs: Annotated[int, Field(ge=1)]
    weights: str
    chosen_on: ChosenOn
    recalibration: Recalibration | None = None
    threshold: DecisionThreshold | None = None
    conformal_set: ConformalSet | None = None
    conformal_interval: ConformalInterval | None = None
    risk_threshold: Finite | None = None
