"""Pictures of shared images: how the stage before the sharing went, and what every participant then holds."""

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
from medfl.utils.formats import count, listed, score
from medfl_report.figures import ALONE, INK, STYLE, THIN, Curve, Look, curves_figure, looks
from medfl_report.rasters import STEPS, strips

WIDTH = 6.2
"""Of the picture of a stage, in inches."""

NAMED = 8
"""With more sites that froze than this they share one look, and the table has their names."""

DOTTED = 12
"""Up to so many rounds each score has a dot."""

TOLD = 12
"""Up to so many sites are told one by one."""

DIVERGING = (
    *("#08306b", "#2c4f86", "#516e9b", "#7488a5", "#999999"),
    *("#b9a98a", "#d8b877", "#f2cf7a", "#ffe9a8"),
)
"""From the lowest to the highest value, 0 in the middle: dark to light, so that nobody needs to see the hue."""


@dataclass(frozen=True)
class Stage:
    """The stage in which generator and classifier were trained together.

    Attributes:
        rounds: Those that are over, growing.
        accuracy: Site to round to the accuracy of the global generator and classifier on its validation images, in
            [0, 1]; without rounds that have none.
        weights: Site to round to the factor of its weight in the mean of generator and classifier.
        frozen: Site to the round in which it stopped to train them.
        threshold: Accuracy that every site must reach for the stage to end before its last round, if there is one.
        errors: Site to the mean squared errors of the last generator and of the mean image, on the site's images.
    """

    rounds: tuple[int, ...]
    accuracy: Mapping[str, Mapping[int, float]]
    weights: Mapping[str, Mapping[int, float]]
    frozen: Mapping[str, int]
    threshold: float | None
    errors: Mapping[str, tuple[float, float]]

    @property
    def mean(self) -> dict[int, float]:
        """Round to the mean accuracy of the sites that have one."""
        by_round = {
            round_: [values[round_] for values in self.accuracy.values() if round_ in values] for round_ in self.rounds
        }
        return {round_: fmean(values) for round_, values in by_round.items() if values}


def read_stage(sharing: Meta) -> Stage:
    """The stage, from the meta of a run's findings; what is not there is left out."""
    history = sorted(sharing.get("history") or [], key=lambda entry: int(entry["round"]))
    return Stage(
        tuple(int(entry["round"]) for entry in history),
        _by_site(history, "accuracy"),
        _by_site(history, "weights"),
        {str(site): int(round_) for site, round_ in sorted((sharing.get("frozen") or {}).items())},
        (sharing.get("stage1") or {}).get("threshold"),
        {str(site): (float(own), float(usual)) for site, (own, usual) in (sharing.get("errors") or {}).items()},
    )


def _by_site(history: list[Meta], key: str) -> dict[str, dict[int, float]]:
    by_site: dict[str, dict[int, float]] = {}
    for entry in history:
        for site, value in sorted((entry.get(key) or {}).items()):
            if value is not None and math.isfinite(value):
                by_site.setdefault(str(site), {})[int(entry["round"])] = float(value)
    return by_site


def how_it_ended(sharing: Meta, stage: Stage) -> str:
    """When the stage ended, and why, as a sentence.

    Args:
        sharing: The meta of a run's findings.
        stage: Read from it.
    """
    stage1 = sharing.get("stage1") or {}
    done, ended = len(stage.rounds), stage1.get("ended")
    rounds = count(int(stage1.get("rounds") or done), "round")
    if not ended:
        return f"The first stage is not over: {count(done, 'round')} of it {'is' if done == 1 else 'are'} known."
    if ended == "accuracy":
        goal = "the threshold" if stage.threshold is None else f"the threshold of {stage.threshold:g}"
        return f"The first stage ended after {rounds}: the accuracy at each site had reached {goal}."
    if ended == "round limit":
        return f"The first stage ended after {rounds}, at the round limit{_missed(stage)}."
    return f"The first stage ended after {rounds}: {ended}."


def _missed(stage: Stage) -> str:
    """Which sites were below the threshold in the last round."""
    if stage.threshold is None or not stage.rounds:
        return ""
    last = {site: values[stage.rounds[-1]] for site, values in stage.accuracy.items() if stage.rounds[-1] in values}
    below = {site: value for site, value in last.items() if value < stage.threshold}
    if not below:
        return ""
    least = min(below, key=lambda site: (below[site], site))
    return (
        f": {len(below)} of {count(len(last), 'site')} had not reached the threshold of {stage.threshold:g}, "
        f"the lowest was {least} with {score(below[least])}"
    )


def who_froze(stage: Stage) -> str:
    """Which sites stopped to train generator and classifier, as a sentence; empty where there is no such rule."""
    if not stage.frozen:
        return "" if stage.threshold is None else "No site froze its generator and classifier."
    start = f"{count(len(stage.frozen), 'site')} froze"
    if len(stage.frozen) > TOLD:
        return f"{start}; the table says when."
    return f"{start}: {listed([f'{site} in round {round_}' for site, round_ in stage.frozen.items()])}."


def how_close(stage: Stage) -> str:
    """How well the generator rebuilds images, beside the mean image; empty where nobody told."""
    if not stage.errors:
        return ""
    own, usual = (fmean(values) for values in zip(*stage.errors.values(), strict=True))
    return (
        f"The generator rebuilds the sites' images with a mean squared error of {own:.4f}; the mean image of a site "
        f"has {usual:.4f} (means over {count(len(stage.errors), 'site')})."
    )


# ---- its picture


def stage_figure(stage: Stage) -> Figure:
    """Accuracies over the rounds with a mark where a site froze, and below the weights of the frozen sites.

    Args:
        stage: With at least one accuracy or one weight of a frozen site.
    """
    styles = frozen_looks(stage)
    parts = ["accuracy"] * bool(stage.accuracy) + ["weights"] * bool(stage.weights.keys() & styles.keys())
    entries = len({_label(stage, site) for site in styles}) + 3
    height = sum({"accuracy": 2.5, "weights": 1.3}[part] for part in parts) + 0.18 * np.ceil(entries / 2)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, height + 0.3), layout="constrained")
        ratios = [{"accuracy": 2.2, "weights": 1.0}[part] for part in parts]
        rows = figure.subplots(len(parts), sharex=True, squeeze=False, height_ratios=ratios)[:, 0]
        for part, axes in zip(parts, rows, strict=True):
            (_draw_accuracy if part == "accuracy" else _draw_weights)(axes, stage, styles)
        rows[-1].set_xlabel("round")
        rows[-1].set_xlim(stage.rounds[0] - 0.3, stage.rounds[-1] + 0.3)
        rows[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
        handles, labels = rows[0].get_legend_handles_labels()
        legend = dict(zip(labels, handles, strict=True))
        figure.legend(legend.values(), legend.keys(), loc="outside upper left", ncols=2, handlelength=3.2)
    return figure


def frozen_looks(stage: Stage) -> dict[str, Look]:
    """The look of each site that froze: its own, or with many sites one for all."""
    if len(stage.frozen) > NAMED:
        return dict.fromkeys(stage.frozen, looks(["all"])["all"])
    return looks(list(stage.frozen))


def _label(stage: Stage, site: str) -> str:
    if len(stage.frozen) > NAMED:
        return "sites that froze, marked in that round"
    return f"{site}, froze in round {stage.frozen[site]}"


def _draw_accuracy(axes: Axes, stage: Stage, styles: Mapping[str, Look]) -> None:
    _line(axes, stage.mean, color=INK, linewidth=2.4, label="mean of sites", zorder=4)
    if stage.threshold is not None:
        style: Any = {"color": INK, "linewidth": 1.1, "linestyle": (0, (6, 3))}
        axes.axhline(stage.threshold, label=f"threshold {stage.threshold:g}", **style)
    label = "a site that did not freeze" if styles else "a site"
    for site, values in stage.accuracy.items():
        if site not in styles:
            _line(axes, values, color=ALONE, linewidth=0.8, label=label)
    _draw_frozen(axes, stage, stage.accuracy, styles, [THIN] * len(styles))
    if len(stage.rounds) <= DOTTED:
        for site, values in stage.accuracy.items():
            dot = styles[site].colour if site in styles else ALONE
            _line(axes, values, color=dot, linestyle="none", marker=".", markersize=4)
        _line(axes, stage.mean, color=INK, linestyle="none", marker=".", markersize=7)
    low, high = axes.get_ylim()
    axes.set_ylim(max(low, -0.02), min(high, 1.02))
    axes.set_ylabel("accuracy on\nvalidation images")


def _line(axes: Axes, values: Mapping[int, float], **style: Any) -> None:
    axes.plot(list(values), list(values.values()), **style)


def _draw_weights(axes: Axes, stage: Stage, styles: Mapping[str, Look]) -> None:
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
    stage: Stage,
    weights: Mapping[str, Mapping[int, float]],
    styles: Mapping[str, Look],
    widths: Sequence[float],
) -> None:
    """A line for each site that froze, with a mark in that round."""
    for (site, look), width in zip(styles.items(), widths, strict=True):
        values = weights.get(site, {})
        _line(
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


def stages_figure(stages: Mapping[str, Sequence[Stage]], styles: Mapping[str, Look]) -> tuple[Figure, list[Curve]]:
    """The accuracies of the first stages of several groups of runs in one picture, with a band over the runs.

    Source: FedTPF, figure 9.

    Args:
        stages: Group to the stages of its runs; each has at least one accuracy.
        styles: Group to its look.
    """
    curves = []
    for name, runs in stages.items():
        table = pd.DataFrame([stage.mean for stage in runs]).sort_index(axis=1).dropna(axis=1)  # rounds that all have
        curves.append(Curve(name, [*table], [*table.mean()], [*table.min()], [*table.max()]))
    return curves_figure(curves, styles, "accuracy on\nvalidation images"), curves


# ---- the shared images


def diverging_layer(levels: np.ndarray) -> str:
    """Values of `medfl_report.rasters.strengths` as SVG; the most frequent one is the ground of all others."""
    ground = int(np.bincount((levels + STEPS).ravel()).argmax())
    height, width = levels.shape
    others = [level for level in range(len(DIVERGING)) if level != ground]
    base = f'<path d="M0 0h{width}v{height}h-{width}z" fill="{DIVERGING[ground]}"/>'
    return base + "".join(strips(levels + STEPS == level, DIVERGING[level]) for level in others)


def scale_bar() -> Markup:
    """The colours from the lowest to the highest value, for a line of text."""
    cells = "".join(
        f'<rect x="{18 * place}" width="18" height="14" fill="{colour}"/>' for place, colour in enumerate(DIVERGING)
    )
    return Markup(f'<svg aria-hidden="true" width="{18 * len(DIVERGING)}" height="14">{cells}</svg>')  # noqa: S704
