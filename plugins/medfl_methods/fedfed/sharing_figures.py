"""Figures and sentences of the report section on shared images: the course of stage 1, and colours of residuals.

In stage 1 the sites train a generator, which reconstructs images, and a classifier of the residual (image minus
reconstruction). A site may freeze, that is, stop this training early. Then each site sends its residuals with noise:
the shared images. A group of runs contains the runs that differ only in seed or fold.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from medfl.types import Meta
from medfl.utils.formats import count, join_words, score
from medfl_report.figures import INK, LOCAL_COLOUR, STYLE, THIN, Curve, Look, curves_figure, looks
from medfl_report.rasters import STEPS, strips

FIGURE_WIDTH = 6.2
"""Width of the figure of stage 1, in inches."""

MAX_NAMED_SITES = 8
"""Maximum number of frozen sites with separate colours in the figure of stage 1. With more, all share one style and the
table lists their names."""

MAX_DOTTED_ROUNDS = 12
"""Maximum number of rounds for which the curves in the figure have a dot for each value."""

MAX_LISTED_SITES = 12
"""Maximum number of sites that the report's text lists one by one."""

DIVERGING_COLOURS = (
    *("#08306b", "#2c4f86", "#516e9b", "#7488a5", "#999999"),
    *("#b9a98a", "#d8b877", "#f2cf7a", "#ffe9a8"),
)
"""Colours for residuals, from the lowest to the highest value, with 0 in the middle. They go from dark to light, so
they do not depend on colour vision."""


@dataclass(frozen=True)
class DistillationStage:
    """Course of stage 1, in which the sites trained generator and classifier together.

    Attributes:
        rounds: Numbers of the completed rounds, increasing.
        accuracy: Mapping from each site to a mapping from round to the accuracy of the global generator and classifier
            on its validation images, in [0, 1]. Rounds without an accuracy are left out.
        weights: Mapping from each site to a mapping from round to a factor in [0, 1]. The factor reduces the weight of
            a frozen site when the networks of the sites are averaged.
        frozen: Mapping from each frozen site to the round in which it stopped training generator and classifier.
        threshold: Accuracy that every site must reach for the stage to end before its last round, or None.
        errors: Mapping from each site to the mean squared errors of the last generator and of the mean image, on the
            site's images.
    """

    rounds: tuple[int, ...]
    accuracy: Mapping[str, Mapping[int, float]]
    weights: Mapping[str, Mapping[int, float]]
    frozen: Mapping[str, int]
    threshold: float | None
    errors: Mapping[str, tuple[float, float]]

    @property
    def mean(self) -> dict[int, float]:
        """Mapping from each round to the mean of `accuracy` over the sites that have a value in that round."""
        by_round = {
            round_: [values[round_] for values in self.accuracy.values() if round_ in values] for round_ in self.rounds
        }
        return {round_: fmean(values) for round_, values in by_round.items() if values}


def read_stage(sharing: Meta) -> DistillationStage:
    """Read the course of stage 1 from the metadata that a run recorded; missing entries are left out.

    Args:
        sharing: Value of the key ``sharing`` of the recorded metadata.
    """
    history = sorted(sharing.get("history") or [], key=lambda entry: int(entry["round"]))
    return DistillationStage(
        tuple(int(entry["round"]) for entry in history),
        _by_site(history, "accuracy"),
        _by_site(history, "weights"),
        {str(site): int(round_) for site, round_ in sorted((sharing.get("frozen") or {}).items())},
        (sharing.get("stage1") or {}).get("threshold"),
        {
            str(site): (float(generator_error), float(mean_image_error))
            for site, (generator_error, mean_image_error) in (sharing.get("errors") or {}).items()
        },
    )


def _by_site(history: list[Meta], key: str) -> dict[str, dict[int, float]]:
    """Return a mapping from site to round to value, of one key of the history.

    Values that are not finite are left out.
    """
    by_site: dict[str, dict[int, float]] = {}
    for entry in history:
        for site, value in sorted((entry.get(key) or {}).items()):
            if value is not None and math.isfinite(value):
                by_site.setdefault(str(site), {})[int(entry["round"])] = float(value)
    return by_site


def describe_end(sharing: Meta, stage: DistillationStage) -> str:
    """Return a sentence that says when and why stage 1 ended.

    Args:
        sharing: Findings' metadata under the key ``sharing``.
        stage: Course of stage 1 from the same metadata.
    """
    stage1 = sharing.get("stage1") or {}
    done, ended = len(stage.rounds), stage1.get("ended")
    rounds = count(int(stage1.get("rounds") or done), "round")
    if not ended:
        return f"Stage 1 has not ended: {count(done, 'round')} of it {'is' if done == 1 else 'are'} complete."
    if ended == "accuracy":
        goal = "the threshold" if stage.threshold is None else f"the threshold of {stage.threshold:g}"
        return f"Stage 1 ended after {rounds}: the accuracy at each site reached {goal}."
    if ended == "round limit":
        return f"Stage 1 ended after {rounds}, at the round limit{_sites_below_threshold(stage)}."
    return f"Stage 1 ended after {rounds}: {ended}."


def _sites_below_threshold(stage: DistillationStage) -> str:
    """Return a clause on the sites below the threshold in the last round, or an empty string."""
    if stage.threshold is None or not stage.rounds:
        return ""
    last = {site: values[stage.rounds[-1]] for site, values in stage.accuracy.items() if stage.rounds[-1] in values}
    below = {site: value for site, value in last.items() if value < stage.threshold}
    if not below:
        return ""
    least = min(below, key=lambda site: (below[site], site))
    return (
        f": {len(below)} of {count(len(last), 'site')} had not reached the threshold of {stage.threshold:g}; "
        f"the lowest accuracy was {score(below[least])} ({least})"
    )


def describe_freezing(stage: DistillationStage) -> str:
    """Return a sentence on the sites that froze, or an empty string if no site froze and the run has no threshold."""
    if not stage.frozen:
        return "" if stage.threshold is None else "No site froze its generator and classifier."
    start = f"{count(len(stage.frozen), 'site')} froze"
    if len(stage.frozen) > MAX_LISTED_SITES:
        return f"{start}; the table lists the rounds."
    return f"{start}: {join_words([f'{site} in round {round_}' for site, round_ in stage.frozen.items()])}."


def describe_generator_error(stage: DistillationStage) -> str:
    """Return a sentence on the errors of generator and mean image, or an empty string if no site reported them."""
    if not stage.errors:
        return ""
    generator_error, mean_image_error = (fmean(values) for values in zip(*stage.errors.values(), strict=True))
    return (
        f"The generator reconstructs the sites' images with a mean squared error of {generator_error:.4f}. For "
        f"comparison, the mean image of a site has an error of {mean_image_error:.4f} (means over "
        f"{count(len(stage.errors), 'site')})."
    )


# ---- figures


def stage_figure(stage: DistillationStage) -> Figure:
    """Draw the course of stage 1 of one run over the rounds.

    The upper part shows the accuracies, with a mark where a site froze, the lower part the weights of frozen sites.

    Args:
        stage: Course of stage 1, with at least one accuracy or one weight of a frozen site.
    """
    styles = frozen_looks(stage)
    panels = ["accuracy"] * bool(stage.accuracy) + ["weights"] * bool(stage.weights.keys() & styles.keys())
    entries = len({_label(stage, site) for site in styles}) + 3
    height = sum({"accuracy": 2.5, "weights": 1.3}[panel] for panel in panels) + 0.18 * np.ceil(entries / 2)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(FIGURE_WIDTH, height + 0.3), layout="constrained")
        ratios = [{"accuracy": 2.2, "weights": 1.0}[panel] for panel in panels]
        rows = figure.subplots(len(panels), sharex=True, squeeze=False, height_ratios=ratios)[:, 0]
        for panel, axes in zip(panels, rows, strict=True):
            (_draw_accuracy if panel == "accuracy" else _draw_weights)(axes, stage, styles)
        rows[-1].set_xlabel("round")
        rows[-1].set_xlim(stage.rounds[0] - 0.3, stage.rounds[-1] + 0.3)
        rows[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
        handles, labels = rows[0].get_legend_handles_labels()
        legend = dict(zip(labels, handles, strict=True))
        figure.legend(legend.values(), legend.keys(), loc="outside upper left", ncols=2, handlelength=3.2)
    return figure


def frozen_looks(stage: DistillationStage) -> dict[str, Look]:
    """Return the line style of each site that froze; a single style for all if there are many."""
    if len(stage.frozen) > MAX_NAMED_SITES:
        return dict.fromkeys(stage.frozen, looks(["all"])["all"])
    return looks(list(stage.frozen))


def _label(stage: DistillationStage, site: str) -> str:
    """Return the legend entry of a frozen site."""
    if len(stage.frozen) > MAX_NAMED_SITES:
        return "frozen sites, marked in the round of the freeze"
    return f"{site}, froze in round {stage.frozen[site]}"


def _draw_accuracy(axes: Axes, stage: DistillationStage, styles: Mapping[str, Look]) -> None:
    """Draw the accuracies of all sites, their mean and the threshold."""
    _draw_line(axes, stage.mean, color=INK, linewidth=2.4, label="mean of sites", zorder=4)
    if stage.threshold is not None:
        style: Any = {"color": INK, "linewidth": 1.1, "linestyle": (0, (6, 3))}
        axes.axhline(stage.threshold, label=f"threshold {stage.threshold:g}", **style)
    label = "site that did not freeze" if styles else "site"
    for site, values in stage.accuracy.items():
        if site not in styles:
            _draw_line(axes, values, color=LOCAL_COLOUR, linewidth=0.8, label=label)
    _draw_frozen(axes, stage, stage.accuracy, styles, [THIN] * len(styles))
    if len(stage.rounds) <= MAX_DOTTED_ROUNDS:
        for site, values in stage.accuracy.items():
            dot = styles[site].colour if site in styles else LOCAL_COLOUR
            _draw_line(axes, values, color=dot, linestyle="none", marker=".", markersize=4)
        _draw_line(axes, stage.mean, color=INK, linestyle="none", marker=".", markersize=7)
    low, high = axes.get_ylim()
    axes.set_ylim(max(low, -0.02), min(high, 1.02))
    axes.set_ylabel("accuracy on\nvalidation images")


def _draw_line(axes: Axes, values: Mapping[int, float], **style: Any) -> None:
    """Draw a line through values by round."""
    axes.plot(list(values), list(values.values()), **style)


def _draw_weights(axes: Axes, stage: DistillationStage, styles: Mapping[str, Look]) -> None:
    """Draw the weights of frozen sites from the round in which they froze."""
    nested = np.linspace(2.8, THIN, len(styles)).tolist()  # weights of sites that froze together are the same
    weights = {
        site: {round_: weight for round_, weight in stage.weights.get(site, {}).items() if round_ >= start}
        for site, start in stage.frozen.items()
    }
    _draw_frozen(axes, stage, weights, styles, nested)
    axes.set_ylim(-0.04, 1.08)
    axes.set_ylabel("weight when\nfrozen")


def _draw_frozen(
    axes: Axes,
    stage: DistillationStage,
    weights: Mapping[str, Mapping[int, float]],
    styles: Mapping[str, Look],
    widths: Sequence[float],
) -> None:
    """Draw a line for each site that froze, with a mark in that round."""
    for (site, look), width in zip(styles.items(), widths, strict=True):
        values = weights.get(site, {})
        _draw_line(
            axes,
            values,
            color=look.colour,
            linestyle=look.dashes,
            linewidth=width,
            label=_label(stage, site),
            marker=look.marker,
            markevery=[place for place, round_ in enumerate(values) if round_ == stage.frozen[site]],
            markersize=9,
            markerfacecolor=(look.colour, 0.25),
            markeredgecolor=look.colour,
            markeredgewidth=1.6,
            zorder=5,
        )


def stages_figure(
    stages: Mapping[str, Sequence[DistillationStage]], styles: Mapping[str, Look]
) -> tuple[Figure, list[Curve]]:
    """Draw the mean accuracies in stage 1 of several groups of runs, with a band from the lowest to the highest run.

    Source: FedTPF, figure 9.

    Args:
        stages: Mapping from each group to the stages of its runs, each with at least one accuracy.
        styles: Mapping from each group to its line style.

    Returns:
        The figure and its curves.
    """
    curves = []
    for name, runs in stages.items():
        table = pd.DataFrame([stage.mean for stage in runs]).sort_index(axis=1).dropna(axis=1)  # rounds that all have
        curves.append(Curve(name, [*table], [*table.mean()], [*table.min()], [*table.max()]))
    return curves_figure(curves, styles, "accuracy on\nvalidation images"), curves


# ---- the shared images


def diverging_layer(levels: np.ndarray) -> str:
    """Return SVG paths that draw a map in `DIVERGING_COLOURS`, with the most frequent level as background.

    Args:
        levels: Integers from -`STEPS` to `STEPS`, 0 for the value 0, from `medfl_report.rasters.overlay_levels`; shape
            (rows, columns).
    """
    ground = int(np.bincount((levels + STEPS).ravel()).argmax())
    height, width = levels.shape
    others = [level for level in range(len(DIVERGING_COLOURS)) if level != ground]
    base = f'<path d="M0 0h{width}v{height}h-{width}z" fill="{DIVERGING_COLOURS[ground]}"/>'
    return base + "".join(strips(levels + STEPS == level, DIVERGING_COLOURS[level]) for level in others)


def scale_bar() -> Markup:
    """Draw `DIVERGING_COLOURS` from the lowest to the highest value as SVG, as a legend within a line of text."""
    cells = "".join(
        f'<rect x="{18 * place}" width="18" height="14" fill="{colour}"/>'
        for place, colour in enumerate(DIVERGING_COLOURS)
    )
    return Markup(f'<svg aria-hidden="true" width="{18 * len(DIVERGING_COLOURS)}" height="14">{cells}</svg>')  # noqa: S704
