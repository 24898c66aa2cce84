"""Formatting of numbers, metrics and tables for reports."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

if TYPE_CHECKING:
    import pandas as pd

MISSING = "–"
"""Text for a missing number."""


def score(value: float | None) -> str:
    """Format a score with three decimals, for example ``0.875``."""
    return MISSING if value is None else f"{value:.3f}"


def signed(value: float | None) -> str:
    """Format a difference with sign and three decimals, for example ``+0.125``; 0 has no sign."""
    if value is None:
        return MISSING
    text = f"{abs(value):.3f}"
    if not float(text):
        return text
    return ("+" if value > 0 else "−") + text


def size(count: float) -> str:
    """Format bytes in decimal units, for example ``26.6 MB``."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 999.95 or unit == "bytes" and count < 1000:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def duration(seconds: float) -> str:
    """Format a duration, for example ``35 ms``, ``1.6 s``, ``3 min 20 s`` or ``2 h 5 min``."""
    if 0 < seconds < 0.0995:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 99.95:
        return f"{seconds:.1f} s"
    if seconds < 3599.5:
        return f"{round(seconds) // 60} min {round(seconds) % 60} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min"


def setting_text(value: Any) -> str:
    """Format a setting's value: text unchanged, None as ``none``, a list with commas, anything else as JSON."""
    if value is None:
        return "none"
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return ", ".join(setting_text(element) for element in value) or "none"
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def join_words(words: Sequence[str]) -> str:
    """Join words as ``a, b and c``."""
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def sentence(text: str) -> str:
    """Capitalise the first letter of a text."""
    return text[:1].upper() + text[1:]


def number(value: int) -> str:
    """Format an integer, for example ``12 345``, with narrow non-breaking spaces."""
    return f"{value:,}".replace(",", "\u202f")


def count(value: int, word: str, plural: str = "") -> str:
    """Format a number with its noun, for example ``1 site`` or ``2 sites``."""
    return f"{number(value)} {word if value == 1 else plural or word + 's'}"


def none_if_nan(value: float | None) -> float | None:
    """Return the value, or None for NaN and None."""
    return None if value is None or math.isnan(value) else value


def p_value(value: float, digits: int = 4) -> str:
    """Format a p-value for a table; ``< 0.0001`` in place of ``0.0000``, and ``-`` for NaN.

    Args:
        value: The p-value.
        digits: Number of decimals.
    """
    if math.isnan(value):
        return "-"
    smallest = 10.0**-digits
    return f"< {smallest:.{digits}f}" if value < smallest / 2 else f"{value:.{digits}f}"


def p_phrase(value: float) -> str:
    """Format a p-value for a sentence with three decimals, for example ``p = 0.012`` or ``p < 0.001``."""
    text = p_value(value, digits=3)
    return f"p {text}" if text.startswith("<") else f"p = {text}"


def plus_minus(mean: float, std: float) -> str:
    """Format a mean with its standard deviation, if known, for Markdown; ``-`` for a missing mean."""
    if math.isnan(mean):
        return "-"
    return f"{mean:.3f}" if math.isnan(std) else f"{mean:.3f} ± {std:.3f}"


def table_lines(lines: Sequence[Sequence[str]]) -> str:
    """Format rows of cells as a Markdown table; the first row is the header."""
    ruled = [lines[0], ["---"] * len(lines[0]), *lines[1:]]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in ruled)


def csv_cell(text: str) -> str:
    """Protect a text cell of a CSV file from interpretation as a formula.

    A text that starts like a formula and is not a number gets an apostrophe as prefix, which marks text in
    spreadsheets.
    """
    return f"'{text}" if text[:1] in (*"=+-@\t\r",) and not _NUMBERS.fullmatch(text) else text


def csv_table(table: pd.DataFrame) -> str:
    """Return a table as CSV, with `csv_cell` applied to each text and heading."""

    def harmless(value: object) -> object:
        return csv_cell(value) if isinstance(value, str) else value

    return table.map(harmless).rename(columns=harmless).to_csv(index=False)


def as_text(text: str) -> str:
    """Escape all special characters of Markdown in a text."""
    return re.sub(r"([!-/:-@\[-`{-~])", r"\\\1", text)


_NUMBERS = re.compile(r"(?:[-+\d.,%()/±e ]|to|inf|nan)*")
"""Pattern of numbers with signs, intervals and standard deviations, which are not formulas."""


def commands(text: str) -> Markup:
    """Convert a sentence to HTML, with the text between backticks as code."""
    return Markup(re.sub(r"`([^`]*)`", r"<code>\1</code>", str(escape(text))))  # noqa: S704


METRIC_WORDS = {
    "accuracy": ("accuracy", "share of the images that are classified correctly"),
    "balanced_accuracy": (
        "balanced accuracy",
        "mean of the sensitivities (recalls) of all classes, so that each class has the same weight",
    ),
    "auc": (
        "AUC",
        "probability that an image of a class scores higher than an image of another class; 0.5 is chance, 1 is best",
    ),
    "ece": (
        "calibration error",
        "expected calibration error (ECE): mean difference between confidence and accuracy; lower is better",
    ),
    "precision": (
        "precision",
        "share of the images predicted as a class that are of this class (positive predictive value)",
    ),
    "recall": ("recall", "share of the images of a class that are predicted as this class (sensitivity)"),
    "specificity": ("specificity", "share of the images of other classes that are not predicted as the class"),
    "f1": ("F1", "harmonic mean of precision and recall"),
    "sensitivity": ("sensitivity", "share of the images with the finding that are predicted to have it (recall)"),
    "brier": (
        "Brier score",
        "mean squared error of the predicted probability; lower is better, 0.25 for a constant probability of 0.5",
    ),
    "macro_auc": ("mean AUC", "mean over the findings of the AUC over the images in which the finding is labelled"),
    "map": ("mean average precision", "mean over the findings of the average precision"),
    "mae": (
        "mean absolute error",
        "mean absolute difference between prediction and reference, in the unit of the reference; lower is better",
    ),
    "rmse": (
        "root mean squared error",
        "root of the mean squared difference, in which large errors have more weight; lower is better",
    ),
    "r2": ("R²", "share of the reference's variance that is explained; 0 for predicting its mean, 1 is best"),
    "pearson": ("Pearson's correlation", "linear correlation of prediction and reference, from -1 to 1"),
    "c_index": (
        "C-index",
        "share of comparable pairs in which the patient with the higher risk has the event first; 0.5 is chance",
    ),
    "dice": (
        "Dice",
        "overlap of predicted and reference mask of a case, mean over its classes and then over the cases",
    ),
    "hd95": (
        "HD95",
        "95th percentile of the distance between the two surfaces, mean over the cases; lower is better",
    ),
    "surface_dice": ("surface Dice", "share of both surfaces within a tolerance of the other surface"),
    "lesion_f1": ("lesion-wise F1", "F1 of the detection of single lesions"),
}
"""Display name and meaning of each metric, by metric name."""

NUMBERED_PARTS = {"auc": "finding", "dice": "class"}
"""Meaning of the number in metrics with numbered parts, such as ``dice_1``, by the metric's name without number."""


def name_or_number(number: int, names: Sequence[str]) -> str:
    """Return an output's name, or its number if it has no name."""
    return names[number] if number < len(names) else str(number)


def metric_words(metric: str, names: Sequence[str] = ()) -> str:
    """Return the display name of a metric.

    Args:
        metric: Name of the metric.
        names: Name of each output of the networks (`medfl.engine.runs.records.common_output_names`); empty if unknown.
    """
    whole, _, number = metric.rpartition("_")
    if whole in NUMBERED_PARTS and number.isdigit():
        part = names[int(number)] if int(number) < len(names) else f"{NUMBERED_PARTS[whole]} {number}"
        return f"{METRIC_WORDS[whole][0]} of {part}"
    return METRIC_WORDS[metric][0] if metric in METRIC_WORDS else metric


def metric_meaning(metric: str) -> str:
    """Return the meaning of a metric as the rest of a sentence; empty for an unknown metric."""
    whole, _, number = metric.rpartition("_")
    if whole in NUMBERED_PARTS and number.isdigit():
        return f"{METRIC_WORDS[whole][1]}, for this {NUMBERED_PARTS[whole]} only"
    return METRIC_WORDS[metric][1] if metric in METRIC_WORDS else ""
