"""HTML page of a membership attack: results, ROC curves, histograms and the attacker's knowledge.

The page contains no image and no information about a patient. A shadow set is the images that the attacker trains a
shadow network on. A result belongs to one attack on one model.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

from medfl.utils.files import write_atomic
from medfl.utils.formats import count, join_words
from medfl_attacks.attack_files import MembershipFile, MembershipResult
from medfl_report.figures import INK, STYLE, WIDTH, looks, svg
from medfl_report.section import render_template

TEMPLATE = "membership.html"
"""File name of the page's Jinja template."""

MAX_HISTOGRAMS = 8
"""Largest number of results for which all histograms are drawn.

For more results, one histogram is drawn for each attack: the one with the highest AUC.
"""

MAX_NAMED_CURVES = 12
"""Largest number of ROC curves that have their own colours and names; more curves share one colour and have no names.
"""

ATTACK_NAMES = {"loss_threshold": "loss threshold", "shadow_topk": "shadow model"}
"""Maps each attack to its name on the page."""

SHADOW_SET_NAMES = {"shared": "images that the run's sites shared", "validation": "the sites' validation images"}
"""Maps each kind of shadow set to its description on the page."""


def write_membership_page(content: MembershipFile, path: Path) -> None:
    """Write the HTML page of a membership attack; replace an existing file.

    Args:
        content: Results of the attack.
        path: Path of the page.

    Raises:
        StoreError: If the page can't be written.
    """
    write_atomic(path, render_membership_page(content).encode())


def render_membership_page(content: MembershipFile) -> str:
    """Return the HTML page of a membership attack; the same content gives the same bytes."""
    results, run = content.results, content.run
    kinds = [kind for kind in ATTACK_NAMES if any(row.attack == kind for row in results)]
    page = render_template(
        __file__,
        TEMPLATE,
        title=f"Membership attack: {run.method}, seed {run.seed}",
        sentences=[describe_auc(row) for row in strongest_results(results, kinds)],
        rows=[dict(row) | {"name": model_name(row), "kind": ATTACK_NAMES[row.attack]} for row in results],
        rocs=[draw_roc([row for row in results if row.attack == kind], kind) for kind in kinds],
        histograms=[
            draw_histogram(row, index)
            for index, row in enumerate(
                results if len(results) <= MAX_HISTOGRAMS else strongest_results(results, kinds)
            )
        ],
        shadows=content.shadow,
        source=SHADOW_SET_NAMES.get(str(content.options["shadow"]), ""),
        over=join_words(sorted({row.interval_over for row in results})),
        few=min(row.non_members for row in results) < 100,
        options=content.options,
        rounds="the rounds named above" if results[0].round else count(run.rounds, "round"),
    )
    return str(page)


def model_name(row: MembershipResult) -> str:
    """Return the name of the attacked model, with its round unless it is the last model."""
    return (row.site or "global model") + (f" after round {row.round}" if row.round else "")


def strongest_results(results: Sequence[MembershipResult], kinds: Sequence[str]) -> list[MembershipResult]:
    """Return for each of the attacks in `kinds` the result with the highest AUC."""
    return [max((row for row in results if row.attack == kind), key=lambda row: row.auc) for kind in kinds]


def describe_auc(row: MembershipResult) -> str:
    """Describe an AUC and its confidence interval in sentences, compared with guessing."""
    low, high = row.auc_interval
    right = round(100 * row.auc)
    text = (
        f"{ATTACK_NAMES[row.attack].capitalize()} on {_model_phrase(row)}: AUC {row.auc:.3f}, 95 % confidence interval "
        f"{low:.3f} to {high:.3f}. Given a training image and another image, the attack picks the training image in "
        f"{right} of 100 cases; guessing picks it in 50. At 1 % false positives the attack finds "
        f"{100 * row.tpr_at_1_fpr:.1f} % of the training images; guessing finds 1 %."
    )
    if low <= 0.5 <= high:
        return f"{text} On these images the attack is not distinguishable from guessing."
    if low > 0.5:
        return f"{text} The attack is better than guessing: the model reveals information about its training images."
    return f"{text} The attack is worse than guessing: its assumption is the opposite of this model's behaviour."


def _model_phrase(row: MembershipResult) -> str:
    """Return a phrase for the attacked model."""
    return f"the model of {row.site}" if row.site else f"the {model_name(row)}"


def draw_roc(rows: Sequence[MembershipResult], kind: str) -> tuple[Markup, str]:
    """Draw the ROC curves of an attack on logarithmic axes; return the figure and its caption.

    Source of the axes: Carlini et al., "Membership inference attacks from first principles", S&P 2022.
    """
    low = min(0.5 / images for row in rows for images in (row.members, row.non_members))
    names = [model_name(row) for row in rows]
    styles = looks(names)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 3.4), layout="constrained")
        axes = figure.add_subplot()
        axes.plot([low, 1], [low, 1], color=INK, linewidth=0.8, linestyle=(0, (1, 2)), label="guessing")
        for name, row in zip(names, rows, strict=True):
            rates = np.asarray(row.roc)
            recall = rates[:, 1].clip(low / 10)  # a rate of 0 is drawn below the axes' limit
            look = styles[name if len(rows) <= MAX_NAMED_CURVES else names[0]]
            label = name if len(rows) <= MAX_NAMED_CURVES else None
            axes.plot(rates[:, 0], recall, color=look.colour, linestyle=look.dashes, linewidth=1.4, label=label)
        axes.set(xscale="log", yscale="log", xlim=(low, 1.05), ylim=(low, 1.05))
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axis.set_minor_formatter(NullFormatter())
        axes.set(xlabel="false positive rate", ylabel="true positive rate")
        figure.legend(loc="outside upper left", ncols=2, handlelength=2.6)
    text = f"ROC curve of the attack by {ATTACK_NAMES[kind]}, logarithmic axes"
    return svg(figure, f"roc{kind.replace('_', '')}", text), f"{text}. The dotted line is guessing."


def draw_histogram(row: MembershipResult, index: int) -> tuple[Markup, str]:
    """Draw the scores of members and non-members; return the figure and its caption."""
    edges = np.asarray(row.histogram.edges)
    styles = looks(["members", "non-members"])
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 2.4), layout="constrained")
        axes = figure.add_subplot()
        for name, counts in (("members", row.histogram.members), ("non-members", row.histogram.non_members)):
            look = styles[name]
            axes.stairs(counts, edges, fill=True, color=look.colour, alpha=0.18)
            axes.stairs(counts, edges, color=look.colour, linestyle=look.dashes, linewidth=1.4, label=name)
        score = "negative loss" if row.attack == "loss_threshold" else "log-odds of membership"
        axes.set(xlabel=f"score: {score}", ylabel="images")
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        figure.legend(loc="outside upper left", ncols=2, handlelength=2.6)
    text = f"Scores by {ATTACK_NAMES[row.attack]}, {model_name(row)}"
    return svg(figure, f"scores{index}", text), f"{text}. The more the histograms overlap, the weaker the attack."
