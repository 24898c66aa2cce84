"""Match the grey values of an image to a template of quantiles, so that images of different scanners look alike.

A template contains, for each channel, the values in [0, 1] that the quantiles of an image at `LEVELS` receive. Between
the quantiles, values are interpolated linearly; 0 and 1 keep their values. The mapping never reverses the order of two
grey values. It depends on the image alone, not on its site, so it can be applied to a new image in the same way.

Source: Nyul and Udupa 1999, On standardizing the MR image intensity scale, with landmarks at quantiles.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Levels of the quantiles of a template."""

Template = tuple[tuple[float, ...], ...]
"""Quantiles at `LEVELS` for each channel, in [0, 1], not decreasing."""


def template_problem(template: Sequence[Sequence[float]]) -> str | None:
    """Return what is wrong with a template, as a clause; None if it is valid."""
    for channel in template:
        values = np.asarray(channel, dtype=np.float64)
        if values.shape != (len(LEVELS),):
            return f"expected {len(LEVELS)} quantiles for each channel, got {values.size}"
        if not (np.isfinite(values).all() and values.min() >= 0 and values.max() <= 1 and (np.diff(values) >= 0).all()):
            return "expected quantiles in [0, 1] that do not decrease"
        if values[0] == values[-1]:
            return "expected quantiles that are not all equal"
    return None


def image_quantiles(images: np.ndarray, channels: int) -> np.ndarray:
    """Return the quantiles of each image at `LEVELS`, (B, channels, levels), float64, in [0, 1].

    Args:
        images: Images, (B, *spatial) or (B, *spatial, C); unsigned integers, or floating-point numbers in [0, 1].
        channels: Number of channels; 1 for images without a channel axis.
    """
    flat = images.reshape(len(images), -1, channels)
    return np.moveaxis(np.quantile(flat, LEVELS, axis=1), 0, 2) / _top(images.dtype)


def match_histogram(pixels: np.ndarray, template: Template) -> np.ndarray:
    """Return an image of the same type and shape whose quantiles at `LEVELS` are those of a template.

    If several quantiles of the image are equal, as in a dark background, their value receives the mean of the
    template's values; a value of 0 or 1 keeps its value.

    Args:
        pixels: Image, (*spatial) for a template of one channel, else (*spatial, C); unsigned integers, or
            floating-point numbers in [0, 1].
        template: Template with as many channels as the image.
    """
    channels = len(template)
    quantiles = image_quantiles(pixels[np.newaxis], channels)[0]
    unit = pixels.reshape(-1, channels).astype(np.float64) / _top(pixels.dtype)
    matched = np.empty_like(unit)
    for channel, (own, wanted) in enumerate(zip(quantiles, template, strict=True)):
        inside = (own > 0) & (own < 1)
        places, index = np.unique(own[inside], return_inverse=True)
        values = np.bincount(index, weights=np.asarray(wanted)[inside]) / np.bincount(index)
        matched[:, channel] = np.interp(unit[:, channel], [0.0, *places, 1.0], [0.0, *values, 1.0])
    if pixels.dtype.kind == "u":
        matched = np.rint(matched * _top(pixels.dtype))
    return matched.astype(pixels.dtype).reshape(pixels.shape)


def _top(dtype: np.dtype) -> float:
    """Return the value that counts as 1: the largest one of an integer type, or 1."""
    return float(np.iinfo(dtype).max) if dtype.kind == "u" else 1.0
