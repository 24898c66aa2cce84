"""Rule for reading images: the scale of their grey values, the spacing of volumes, and the series to take of a study.

A data list stores the rule under `IMAGE_READING_KEY` if it is not the default one, and an exported bundle contains it,
so that training and inference read a file in the same way.

The scales map grey values to [0, 1]:

- ``range``: each image by its own smallest and largest value. Images with 8 bits per channel keep their values.
- ``window``: a fixed interval of the file's values, which are Hounsfield units (HU) in CT; values outside are clipped.
- ``percentiles``: each image by its own 0.5th and 99.5th percentile; values outside are clipped.
- ``suv``: a fixed interval of the standardised uptake value of PET (`medfl.data.readers.suv`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, ValidationError, model_validator

from medfl.data.harmonisation.histogram_matching import LEVELS, Template, template_problem
from medfl.data.readers.pillow_images import scale_to_unit
from medfl.errors import DataError, SettingsError, check_choice, validation_message
from medfl.records.record import Record

IMAGE_READING_KEY = "image_reading"
"""Key of the rule in a data list and in a bundle's configuration."""

WINDOWS = {
    "lung": (-600.0, 1500.0),
    "mediastinum": (50.0, 350.0),
    "soft-tissue": (50.0, 400.0),
    "liver": (30.0, 150.0),
    "bone": (400.0, 1800.0),
    "brain": (40.0, 80.0),
}
"""Level and width of the named windows of CT, in HU."""

SCALES = ("range", "percentiles", "suv")
"""Scales that a user may name; a window gives the scale ``window``."""

PERCENTILES = (0.5, 99.5)
"""Percentiles of an image's values that the scale ``percentiles`` maps to 0 and 1."""

SUV_RANGE = (0.0, 20.0)
"""Standardised uptake values, in g/ml, that the scale ``suv`` maps to 0 and 1 if the user gives no window."""

PLANES = ("axial", "coronal", "sagittal")
"""Planes of the slices of a series."""


class SeriesChoice(Record):
    """Conditions for the one DICOM series of a study that is read; an empty condition accepts every series.

    Attributes:
        plane: Plane of the slices, one of `PLANES`.
        modality: DICOM modality, such as ``CT``.
        description: Regular expression that the series description must contain, in any case of letters.
    """

    plane: Literal["", "axial", "coronal", "sagittal"] = ""
    modality: str = Field(default="", pattern=r"^[A-Z0-9]{0,16}$")
    description: str = ""

    @model_validator(mode="after")
    def _check_description(self) -> Self:
        try:
            re.compile(self.description)
        except re.error as error:
            raise SettingsError(
                "invalid_value",
                f"expected a regular expression for the series description: {error}",
                setting="series_description",
            ) from None
        return self


PositiveEdge = Annotated[float, Field(gt=0, allow_inf_nan=False)]
"""Type of a length in millimetres."""


class ImageReading(Record):
    """Rule for reading an image.

    Attributes:
        scale: Scale of the grey values; see the module.
        low: Value that becomes 0: HU or another unit of the file, a percentile, or SUV. Unused for the scale ``range``.
        high: Value that becomes 1.
        hounsfield: Whether the interval is a named window of CT, so that DICOM files must be CT.
        series: Conditions for the DICOM series.
        spacing: Voxel spacing in millimetres along D, H and W to which volumes are resampled; they are then padded or
            cropped to their size. With None, volumes are resized and get the spacing that follows from their size.
        template: Quantiles to which the resized image is matched (`medfl.data.harmonisation`); empty without matching.
    """

    scale: Literal["range", "window", "percentiles", "suv"] = "range"
    low: float = Field(default=0.0, allow_inf_nan=False)
    high: float = Field(default=1.0, allow_inf_nan=False)
    hounsfield: bool = False
    series: SeriesChoice = SeriesChoice()
    spacing: tuple[PositiveEdge, PositiveEdge, PositiveEdge] | None = None
    template: Template = ()

    @model_validator(mode="after")
    def _check_template(self) -> Self:
        if problem := template_problem(self.template):
            raise SettingsError(
                "invalid_template", f"the template of the images is wrong: {problem}.", setting="template"
            )
        return self

    @model_validator(mode="after")
    def _check_interval(self) -> Self:
        if self.low >= self.high:
            raise SettingsError(
                "reversed_range",
                f"expected a window with a width above 0, got {self.low:g} to {self.high:g}",
                setting="window",
                found=[self.low, self.high],
            )
        return self

    @property
    def window(self) -> tuple[float, float] | None:
        """Values that become 0 and 1; None if the scale is not a window."""
        return (self.low, self.high) if self.scale == "window" else None

    def unit_values(self, values: np.ndarray) -> np.ndarray:
        """Return values scaled to [0, 1], float32.

        Args:
            values: Values of one image or volume: HU or other units of the file, or SUV for the scale ``suv``.

        Raises:
            DataError: If a value is not finite, or the percentiles of an image that is not constant are equal.
        """
        if self.scale == "range":
            return scale_to_unit(values)
        low, high = self.low, self.high
        if not np.isfinite(values).all():
            raise DataError(
                "not_finite", "the image has values that are not finite (NaN or infinite). Replace them in the file."
            )
        if self.scale == "percentiles":
            low, high = (float(value) for value in np.percentile(values, (self.low, self.high)))
            if low == high and values.min() < values.max():
                raise DataError(
                    "equal_percentiles",
                    f"{self.high - self.low:g} % of the image have one value, so percentiles can't scale it. Give "
                    "--scale range, or leave it out.",
                    low=self.low,
                    high=self.high,
                )
        if low == high:
            return np.zeros_like(values, dtype=np.float32)
        unit = (np.asarray(values, dtype=np.float32) - np.float32(low)) / np.float32(high - low)
        return np.clip(unit, 0, 1, out=unit)

    def require_units(self, kind: str, *, deep: bool, modality: str = "") -> None:
        """Raise if the values of an image do not have the units that the scale needs.

        Args:
            kind: Kind of the file: ``dicom``, ``volume`` (NIfTI, NRRD, MHA) or ``picture``.
            deep: Whether the image is grey with more than 8 bits, or of DICOM or a volume.
            modality: Modality of a DICOM file.

        Raises:
            DataError: If the scale can't be applied.
        """
        if self.scale == "range":
            return
        if not deep or (kind == "picture" and self.scale == "window"):
            raise DataError(
                "values_without_unit",
                f"expected values with a unit for the scale '{self.scale}', got a picture. Leave out --window and "
                "--scale for pictures, and prepare them as a data set of their own.",
                scale=self.scale,
            )
        wanted = "PT" if self.scale == "suv" else "CT" if self.hounsfield else ""
        if (kind == "dicom" and wanted and modality != wanted) or (kind != "dicom" and self.scale == "suv"):
            shown = modality if re.fullmatch("[A-Z]{2,4}", modality) else "a file without one"
            raise DataError(
                "wrong_modality",
                f"expected a DICOM file of modality {wanted} for this scale, got {shown}. Give the window as "
                "LEVEL,WIDTH in the unit of the file, or leave the file out.",
                expected=wanted,
                found=shown,
            )

    def entries(self) -> dict[str, Any]:
        """Return the data list entries that record the rule; empty for the default rule."""
        if self == DEFAULT_READING:
            return {}
        return {"intensities": self.describe(), IMAGE_READING_KEY: self.to_json()}

    def describe_template(self) -> str:
        """Return the histogram matching in words; empty without a template."""
        if not self.template:
            return ""
        levels = ", ".join(f"{100 * level:g}" for level in LEVELS)
        values = "; ".join(", ".join(f"{value:.3f}" for value in channel) for channel in self.template)
        return f"histogram matched to a shared template (quantiles at {levels} %: {values})"

    def describe(self) -> str:
        """Return the scale in words."""
        if self.scale == "range":
            return "each image: its smallest value 0, its largest 1; 8-bit images keep their values"
        unit = {"window": " HU" if self.hounsfield else "", "percentiles": "th percentile", "suv": " SUV"}[self.scale]
        return f"{self.low:g} to {self.high:g}{unit} mapped to [0, 1], values outside clipped"


DEFAULT_READING = ImageReading()
"""Rule that scales each image by its own range, resizes volumes, and accepts every series."""


def make_image_reading(
    *,
    window: str | None = None,
    scale: str = "range",
    plane: str = "",
    modality: str = "",
    description: str = "",
    spacing: Sequence[float] | None = None,
) -> ImageReading:
    """Return the rule that a user describes with options.

    Args:
        window: Name of one of `WINDOWS`, or ``LEVEL,WIDTH`` in the unit of the files; None gives no window.
        scale: One of `SCALES`. With ``suv``, a window is an interval of SUV.
        plane: See `SeriesChoice`.
        modality: See `SeriesChoice`.
        description: See `SeriesChoice`.
        spacing: Voxel spacing (D, H, W) in millimetres; see `ImageReading`.

    Raises:
        SettingsError: If an option is invalid, or a window is given with the scale ``percentiles``.
    """
    check_choice("scale", scale, SCALES)
    series = {"plane": plane, "modality": modality.upper(), "description": description}
    common = {"series": series, "spacing": spacing}
    if window is None:
        low, high = {"range": (0.0, 1.0), "percentiles": PERCENTILES, "suv": SUV_RANGE}[scale]
        return parse_image_reading({"scale": scale, "low": low, "high": high, **common})
    if scale == "percentiles" or (scale == "suv" and window in WINDOWS):
        raise SettingsError(
            "conflicting_settings",
            f"--window {window} and --scale {scale} contradict each other. Give one of them.",
            settings=["window", "scale"],
        )
    level, width = _parse_window(window)
    return parse_image_reading(
        {
            "scale": "suv" if scale == "suv" else "window",
            "low": level - width / 2,
            "high": level + width / 2,
            "hounsfield": window in WINDOWS,
            **common,
        }
    )


def _parse_window(window: str) -> tuple[float, float]:
    """Return level and width of a window."""
    if window in WINDOWS:
        return WINDOWS[window]
    words = [word for word in re.split(r"[,\s]+", window.strip()) if word]
    try:
        level, width = map(float, words)
    except ValueError:
        raise SettingsError(
            "invalid_value",
            f"expected one of {', '.join(WINDOWS)}, or LEVEL,WIDTH as in -600,1500 for --window, got '{window}'",
            setting="window",
            found=window,
        ) from None
    return level, width


def parse_image_reading(entry: Mapping[str, Any] | None) -> ImageReading:
    """Return the rule in a data list or a bundle's configuration; None gives the default rule.

    Raises:
        SettingsError: If an entry is unknown or has a wrong type.
    """
    try:
        return ImageReading.model_validate(entry or {})
    except ValidationError as error:
        raise SettingsError(
            "invalid_value",
            f"expected a rule for reading images in '{IMAGE_READING_KEY}': {validation_message(error.errors()[0])}",
            setting=IMAGE_READING_KEY,
        ) from None
