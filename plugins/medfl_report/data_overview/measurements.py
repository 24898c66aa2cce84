"""Numbers of each image that the overview compares between sites, and faults of images."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from medfl_report.data_overview.cases import DataSetImages
from medfl_report.data_overview.near_duplicates import make_thumbnails

BINS = 64
"""Number of bins of the histograms."""

MAX_PIXELS = 1 << 14
"""Number of values of an image above which quantiles use regularly chosen values."""

MAX_CLIPPED = 0.25
"""Share of the pixels with the largest value of an image from which the image counts as overexposed."""

MIN_CONTRAST = 0.02
"""Smallest contrast, as a share of the median contrast of the data set, of an image that is not nearly blank."""


@dataclass(frozen=True)
class Feature:
    """A number that is measured of each image.

    Attributes:
        title: Name.
        larger: Words for an image with a larger number.
        smaller: Words for an image with a smaller number.
    """

    title: str
    larger: str
    smaller: str


FEATURES = (
    Feature("brightness (mean)", "brighter", "darker"),
    Feature("contrast (standard deviation)", "more contrast", "less contrast"),
    Feature("dark parts (5 % quantile)", "dark parts are brighter", "dark parts are darker"),
    Feature("middle tones (median)", "middle tones are brighter", "middle tones are darker"),
    Feature("bright parts (95 % quantile)", "bright parts are brighter", "bright parts are darker"),
    Feature("fine detail (difference of neighbours)", "sharper or noisier", "smoother or blurred"),
)
"""Features of all images; `FRAME_FEATURES` and `COLOUR_FEATURES` follow."""

FRAME_FEATURES = {
    2: (
        Feature("filled height", "fill more of the frame's height", "fill less of the frame's height"),
        Feature("filled width", "fill more of the frame's width", "fill less of the frame's width"),
    ),
    3: (
        Feature("filled depth", "fill more of the frame's depth", "fill less of the frame's depth"),
        Feature("filled height", "fill more of the frame's height", "fill less of the frame's height"),
        Feature("filled width", "fill more of the frame's width", "fill less of the frame's width"),
    ),
}
"""Features of the part of the frame that is not a border of one value, by the number of spatial axes."""

COLOUR_FEATURES = (
    Feature("red share", "redder", "less red"),
    Feature("green share", "greener", "less green"),
    Feature("blue share", "bluer", "less blue"),
)
"""Features of images with three channels."""

FAULTS = {
    "not_finite": "damaged",
    "constant": "blank",
    "faint": "nearly blank",
    "clipped": "overexposed",
}
"""Faults of an image, as adjectives. A damaged image has values that are not numbers."""


@dataclass(frozen=True, eq=False)
class ImageMeasurements:
    """Measurements of all images of a data set.

    Attributes:
        features: Measured features.
        values: Value of each feature, (N, F), float64; NaN for an image with values that are not numbers.
        histograms: Share of the pixels in each bin, (N, `BINS`), float32.
        edges: Edges of the bins, (`BINS` + 1,). Values outside count in the first and the last bin.
        thumbnails: Small grey versions, see `make_thumbnails`.
        faults: Maps the position of an image to the keys of its faults in `FAULTS`.
    """

    features: tuple[Feature, ...]
    values: np.ndarray
    histograms: np.ndarray
    edges: np.ndarray
    thumbnails: np.ndarray
    faults: dict[int, list[str]]


def measure_images(data: DataSetImages) -> ImageMeasurements:
    """Measure all images of a data set. Float images are read twice: first for the range of the histograms."""
    low, high = _value_range(data)
    edges = np.linspace(low, high, BINS + 1)
    values, histograms, thumbnails = [], [], []
    clipped, constant = [], []
    spatial = channels = 1
    for pixels in data.batches():
        spatial, channels = pixels.ndim - 2, pixels.shape[-1]
        with np.errstate(invalid="ignore", over="ignore"):  # values that are not finite, a fault of the image
            parts = [_tones(pixels) / (high - low), _detail(pixels), _frame(pixels, high - low)]
            if channels == len(COLOUR_FEATURES):
                parts.append(_colours(pixels))
        values.append(np.concatenate(parts, axis=1))
        histograms.append(_histograms(pixels, low, high))
        thumbnails.append(make_thumbnails(pixels))
        flat = pixels.reshape(len(pixels), -1)
        clipped.append((flat == flat.max(axis=1, keepdims=True)).mean(axis=1))
        constant.append(flat.max(axis=1) == flat.min(axis=1))
    features = FEATURES + FRAME_FEATURES[spatial] + (COLOUR_FEATURES if channels == len(COLOUR_FEATURES) else ())
    numbers = np.round(np.concatenate(values), 3)  # rounding noise of normalised images is no difference
    numbers[~np.isfinite(numbers).all(axis=1)] = np.nan
    faults = _find_faults(numbers, np.concatenate(clipped), np.concatenate(constant))
    return ImageMeasurements(features, numbers, np.concatenate(histograms), edges, np.concatenate(thumbnails), faults)


def _value_range(data: DataSetImages) -> tuple[float, float]:
    """Return 0 and 1 for images of such values; else the medians over images of the 0.5 % and 99.5 % quantiles."""
    if all(site.images.dtype.kind == "u" for site in data.sites.values()):
        return 0.0, 1.0
    ends, is_unit = [np.zeros((2, 0))], True
    for pixels in data.batches():
        flat = _thinned(pixels)
        is_unit = is_unit and not bool(((flat < 0) | (flat > 1)).any())
        ends.append(np.quantile(flat[np.isfinite(flat).all(axis=1)], (0.005, 0.995), axis=1))
    joined = np.concatenate(ends, axis=1)
    if is_unit or not joined.shape[1]:
        return 0.0, 1.0
    low, high = np.median(joined, axis=1).tolist()
    return (low, high) if high > low else (low - 0.5, low + 0.5)


def _thinned(pixels: np.ndarray) -> np.ndarray:
    """Return at most about `MAX_PIXELS` regularly chosen values of each image, (B, values)."""
    flat = pixels.reshape(len(pixels), -1)
    return flat[:, :: -(-flat.shape[1] // MAX_PIXELS)]


def _tones(pixels: np.ndarray) -> np.ndarray:
    """Return mean, standard deviation and the quantiles at 5, 50 and 95 % of images (B, *spatial, C), (B, 5)."""
    flat = pixels.reshape(len(pixels), -1).astype(np.float64)
    low, middle, high = np.quantile(_thinned(pixels), (0.05, 0.5, 0.95), axis=1)
    return np.stack([flat.mean(axis=1), flat.std(axis=1), low, middle, high], axis=1)


def _detail(pixels: np.ndarray) -> np.ndarray:
    """Return the mean absolute difference of neighbours, divided by the standard deviation, (B, 1)."""
    steps = np.abs(np.diff(pixels, axis=-2)).reshape(len(pixels), -1).mean(axis=1, dtype=np.float64)
    spread = pixels.reshape(len(pixels), -1).std(axis=1, dtype=np.float64)
    return np.divide(steps, spread, out=np.zeros_like(steps), where=spread != 0)[:, np.newaxis]


def _frame(pixels: np.ndarray, span: float) -> np.ndarray:
    """Return the share of each spatial axis that is not a border of the corner's value, (B, axes)."""
    spatial = pixels.ndim - 2
    corner = pixels[(slice(None), *[slice(0, 1)] * spatial)]
    content = (np.abs(pixels - corner) > 0.01 * span).any(axis=-1)
    shares = []
    for axis in range(1, spatial + 1):
        occupied = content.any(axis=tuple(other for other in range(1, spatial + 1) if other != axis))
        first, last = occupied.argmax(axis=1), occupied.shape[1] - occupied[:, ::-1].argmax(axis=1)
        shares.append(np.where(occupied.any(axis=1), (last - first) / occupied.shape[1], 0.0))
    return np.stack(shares, axis=1)


def _colours(pixels: np.ndarray) -> np.ndarray:
    """Return the share of each channel in the brightness of an image, (B, 3); a third each in a black image."""
    means = pixels.reshape(len(pixels), -1, pixels.shape[-1]).mean(axis=1, dtype=np.float64)
    total = means.sum(axis=1, keepdims=True)
    return np.divide(means, total, out=np.full_like(means, 1 / 3), where=total != 0)


def _histograms(pixels: np.ndarray, low: float, high: float) -> np.ndarray:
    """Return the share of the pixels of each image in each bin, (B, `BINS`), float32."""
    flat = pixels.reshape(len(pixels), -1)
    bins = np.clip(np.nan_to_num((flat - low) * (BINS / (high - low))), 0, BINS - 1).astype(np.int64)
    counts = np.bincount((bins + np.arange(len(bins))[:, np.newaxis] * BINS).ravel(), minlength=len(bins) * BINS)
    return (counts.reshape(len(bins), BINS) / bins.shape[1]).astype(np.float32)


def _find_faults(numbers: np.ndarray, clipped: np.ndarray, constant: np.ndarray) -> dict[int, list[str]]:
    """Return the faults of the images that have any.

    Args:
        numbers: Features, (N, F); the second one is the contrast.
        clipped: Share of the pixels with the largest value of the image, (N,).
        constant: Whether all pixels of an image have one value, (N,).
    """
    finite, contrast = np.isfinite(numbers).all(axis=1), numbers[:, 1]
    typical = float(np.median(contrast[finite])) if finite.any() else 0.0
    faults = {
        "not_finite": ~finite,
        "constant": constant,
        "faint": finite & ~constant & (contrast < MIN_CONTRAST * typical),
        "clipped": finite & ~constant & (clipped >= MAX_CLIPPED),
    }
    places = np.flatnonzero(np.any(list(faults.values()), axis=0)).tolist()
    return {place: [key for key, has in faults.items() if has[place]] for place in places}
