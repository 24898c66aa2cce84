"""The page of a membership attack: what was found, curves, what the attacker knew. No image and no patient on it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

from medfl.utils.files import write_atomic
from medfl.utils.formats import count, listed
from medfl_attacks.attack_files import MembershipFile, MembershipResult
from medfl_report.figures import INK, STYLE, WIDTH, looks, svg
from medfl_report.section import render_template

TEMPLATE = "membership.html"

DRAWN = 8
"""With more results than this only the histogram of each attack's highest AUC is drawn."""

NAMED = 12
"""With more curves than this they have one colour and no names."""

ATTACKS = {"loss_threshold": "loss threshold", "shadow_topk": "shadow model"}
"""Attack to its name on the page."""

SETS = {"shared": "images that the run's sites shared", "validation": "the sites' validation images"}
"""What a shadow network was trained on, in words."""


def write_page(content: MembershipFile, path: Path) -> None:
    """Write the page of a membership attack.

    Args:
        content: Results of the attack.
        path: The page.

    Raises:
        StoreError: If it can't be written.
    """
    write_atomic(path, render(content).encode())


def render(content: MembershipFile) -> str:
    """Return the page as HTML; the same content gives the same bytes."""
    results, run = content.results, content.run
    kinds = [kind for kind in ATTACKS if any(row.attack == kind for row in results)]
    page = render_template(
        __file__,
        TEMPLATE,
        title=f"Membership attack: {run.method}, seed {run.seed}",
        sentences=[verdict(row) for row in strongest(results, kinds)],
        rows=[dict(row) | {"name": name_of(row), "kind": ATTACKS[row.attack]} for row in results],
        rocs=[roc_picture([row for row in results if row.attack == kind], kind) for kind in kinds],
        histograms=[
            histogram_picture(row, index)
            for index, row in enumerate(results if len(results) <= DRAWN else strongest(results, kinds))
        ],
        shadows=content.shadow,
        source=SETS.get(str(content.options["shadow"]), ""),
        over=listed(sorted({row.interval_over for row in results})),
        few=min(row.non_members for row in results) < 100,
        options=content.options,
        rounds="the rounds named above" if results[0].round else count(run.rounds, "round"),
    )
    return str(page)


def name_of(row: MembershipResult) -> str:
    """Return the name of the attacked model, with its round unless it is the last model."""
    return (row.site or "global model") + (f" after round {row.round}" if row.round else "")


def strongest(results: Sequence[MembershipResult], kinds: Sequence[str]) -> list[MembershipResult]:
    """Return the result with the highest AUC of each attack."""
    return [max((row for row in results if row.attack == kind), key=lambda row: row.auc) for kind in kinds]


def verdict(row: MembershipResult) -> str:
    """Return sentences that say what an AUC means."""
    low, high = row.auc_interval
    right = round(100 * row.auc)
    text = (
        f"{ATTACKS[row.attack].capitalize()} on {_of(row)}: AUC {row.auc:.3f}, 95 % interval {low:.3f} to "
        f"{high:.3f}. Of a training image and another image the attack names the training image in {right} of 100 "
        "cases; guessing does in 50."
    )
    if low <= 0.5 <= high:
        return f"{text} From these images it can't be told from guessing."
    if low > 0.5:
        return f"{text} It is better than guessing: the model gives away something about who was in the training."
    return f"{text} It is worse than guessing: it expects the opposite of what this model does, and finds no members."


def _of(row: MembershipResult) -> str:
    return f"the model of {row.site}" if row.site else f"the {name_of(row)}"


def roc_picture(rows: Sequence[MembershipResult], kind: str) -> tuple[Markup, str]:
    """The ROC curves of an attack on logarithmic axes, and a caption.

    Source of the axes: Carlini et al., "Membership inference attacks from first principles", S&P 2022.
    """
    low = min(0.5 / images for row in rows for images in (row.members, row.non_members))
    names = [name_of(row) for row in rows]
    styles = looks(names)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 3.4), layout="constrained")
        axes = figure.add_subplot()
        axes.plot([low, 1], [low, 1], color=INK, linewidth=0.8, linestyle=(0, (1, 2)), label="guessing")
        for name, row in zip(names, rows, strict=True):
            rates = np.asarray(row.roc)
            recall = rates[:, 1].clip(low / 10)  # none found: below the picture
            look = styles[name if len(rows) <= NAMED else names[0]]
            label = name if len(rows) <= NAMED else None
            axes.plot(rates[:, 0], recall, color=look.colour, linestyle=look.dashes, linewidth=1.4, label=label)
        axes.set(xscale="log", yscale="log", xlim=(low, 1.05), ylim=(low, 1.05))
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axis.set_minor_formatter(NullFormatter())
        axes.set(xlabel="false alarms: others called members", ylabel="members found")
        figure.legend(loc="outside upper left", ncols=2, handlelength=2.6)
    text = f"ROC curve of the attack by {ATTACKS[kind]}, logarithmic axes"
    return svg(figure, f"roc{kind.replace('_', '')}", text), f"{text}. On the dotted line an attack guesses."


def histogram_picture(row: MembershipResult, index: int) -> tuple[Markup, str]:
    """The scores of members and of others, and a caption."""
    edges = np.asarray(row.histogram.edges)
    styles = looks(["members", "others"])
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 2.4), layout="constrained")
        axes = figure.add_subplot()
        for name, counts in (("members", row.histogram.members), ("others", row.histogram.non_members)):
            look = styles[name]
            axes.stairs(counts, edges, fill=True, color=look.colour, alpha=0.18)
            axes.stairs(counts, edges, color=look.colour, linestyle=look.dashes, linewidth=1.4, label=name)
        says = "minus the loss" if row.attack == "loss_threshold" else "log-odds of being a member"
        axes.set(xlabel=f"score: {says}", ylabel="images")
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        figure.legend(loc="outside upper left", ncols=2, handlelength=2.6)
    text = f"Scores by {ATTACKS[row.attack]}, {name_of(row)}"
    return svg(figure, f"scores{index}", text), f"{text}. The more the two overlap, the less the attack knows."
