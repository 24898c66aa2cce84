"""Section of a report on the attacks on its runs: membership inference, inversion and poisoning.

A result has a target (the attacked model or information), an attack, and for inversion an item (the information that
the attack started from). A group is the runs of one method that differ only in seed and fold.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pandas as pd
from markupsafe import Markup

from medfl.engine.runs.records import RunRecord
from medfl.errors import StoreError
from medfl.hooks import ATTACKS_FOLDER
from medfl.types import Meta
from medfl.utils.formats import MISSING, join_words, number
from medfl_attacks.attack_files import (
    ATTACK_FILES,
    AttackResult,
    Interval,
    MembershipResult,
    read_results,
    results_path,
)
from medfl_report.cards.section_content import SectionContent, SectionTable
from medfl_report.curves import curves_svg, last_values
from medfl_report.figures import Curve, Look, looks
from medfl_report.groups import Group
from medfl_report.notices import NamedRun
from medfl_report.scores import named_runs, value_over
from medfl_report.section import ReportData, TemplateSection
from medfl_report.site_comparison import mean_known

DISPLAY_NAMES = {
    "global": "global model",
    "personal": "models of the sites (mean)",
    "shared": "shared images",
    "update": "update of a site",
    "model": "global model",
    "shadow_topk": "shadow model",
    "loss_threshold": "loss threshold",
    "gradient": "gradient descent",
    "decoder": "trained decoder",
    "fixed_point": "fixed point",
    "none": "none",
    "mean_image": "mean image (baseline)",
    "class mean": "mean image of the class",
    "nearest image": "nearest training image",
    "x_s": "shared part without noise (x_s)",
    "x_p": "shared part as sent (x_p)",
    "raw": "original image",
}
"""Maps names of targets, attacks and items in the attack files to the names that the report shows."""

MEASURE_COLUMNS = {
    "membership": {
        "auc": ("AUC", "guessing: 0.5", ".3f"),
        "tpr_at_1_fpr": ("TPR at 1 % FPR", "guessing: 0.01", ".3f"),
        "recall_balanced": ("balanced recall", "guessing: 0.5", ".3f"),
        "recall": ("recall", "attack's threshold", ".3f"),
        "false_alarms": ("false positive rate", "attack's threshold", ".3f"),
    },
    "inversion": {
        "mse": ("MSE", "0: identical image", ".4f"),
        "psnr": ("PSNR", "dB", ".1f"),
        "ssim": ("SSIM", "1: identical image", ".3f"),
    },
    "poisoning": {
        "accuracy": ("accuracy", "honest sites and server", ".3f"),
        "worst_accuracy": ("worst honest site", "accuracy", ".3f"),
        "success": ("attack success rate", "wanted class predicted", ".3f"),
    },
}
"""Mapping from each kind of attack to its measures: (column heading, explanatory note, number format) by field name."""

RESULT_KEYS = {
    "membership": ("target", "attack"),
    "inversion": ("target", "attack", "item"),
    "poisoning": ("target", "attack"),
}
"""Maps each kind of attack to the fields that identify a result within a run."""

IMAGE_COUNT_FIELDS = {"membership": ("members", "non_members"), "inversion": ("images",), "poisoning": ("images",)}
"""Maps each kind of attack to the fields that contain numbers of images."""


@dataclass(frozen=True)
class RunAttackResults:
    """Results of the attacks of one kind on one run.

    Attributes:
        name: Name of the run on the page.
        group: Label of the run's group.
        results: Results of the attacks.
        page: Relative link to the attack's own page; empty if no page can be linked.
    """

    name: str
    group: str
    results: Sequence[AttackResult]
    page: str


class AttacksSection(TemplateSection):
    """Section of a report with the results of attacks on the runs."""

    template = "attacks.html"
    """File name of the section's Jinja template."""

    def content(self, data: ReportData) -> Meta | None:
        """Return the variables of the template, or None if no run was attacked.

        They contain the tables and figures under the key ``attacks``.
        """
        return {"attacks": attacks} if (attacks := attacks_section(data.groups, data.folder)) else None

    def card(self, data: ReportData) -> SectionContent:
        """Return the tables of the section for a model card, or a sentence saying that the run was not attacked."""
        values = self.values(data)
        if values is None:
            return SectionContent(texts=("Unknown: no attack was run on this model (medfl attack).",))
        attacks = values["attacks"]
        return SectionContent(
            tables=tuple(_card_table(kind, attacks[kind]) for kind in ATTACK_FILES if attacks[kind]),
            texts=(*attacks["notices"], "A failed attack doesn't prove that the model reveals nothing."),
        )


def attacks_section(groups: Sequence[Group], folder: Path | None) -> Meta | None:
    """Build the values of the section's template; return None if no run was attacked.

    Args:
        groups: Groups of runs on the page.
        folder: Folder that the page will be written to; None for a section without links.

    Returns:
        Dictionary with the keys ``notices``, ``membership``, ``rounds``, ``inversion``, ``poisoning`` and ``links``.
    """
    names = {id(run): name for name, run in named_runs(groups)}
    runs = [(group.label, (names[id(run)], run)) for group in groups for run in group.runs]
    within = os.path.commonpath([run.folder.absolute().parent for _, (_, run) in runs])
    start = folder if folder is not None and _may_link(folder, Path(within)) else None
    notices: list[str] = []
    by_kind = {kind: _read_results_by_run(runs, kind, start, notices) for kind in ATTACK_FILES}
    if not notices and not any(by_kind.values()):
        return None
    return {
        "notices": notices,
        "membership": _table("membership", by_kind["membership"]),
        "rounds": _draw_rounds(by_kind["membership"], looks([group.label for group in groups])),
        "inversion": _table("inversion", by_kind["inversion"]),
        "poisoning": _table("poisoning", by_kind["poisoning"]),
        "links": [
            (f"{run_results.name}, {kind}", run_results.page)
            for kind in ATTACK_FILES
            for run_results in by_kind[kind]
            if run_results.page
        ],
    }


def _may_link(folder: Path, runs: Path) -> bool:
    """Return whether a relative link to the runs reveals no folder names.

    This holds if the page is in the folder of the runs, or above it.
    """
    return folder.is_relative_to(runs) or runs.is_relative_to(folder)


# ---- reading


def _read_results_by_run(
    runs: Sequence[tuple[str, NamedRun]], kind: str, start: Path | None, notices: list[str]
) -> list[RunAttackResults]:
    """Read the results of a kind of attack for each run.

    Append a notice for each file that can't be read.
    """
    run_results = []
    for group, (name, run) in runs:
        try:
            content = read_results(run.folder, kind)
        except StoreError:  # the error's message contains the whole path, which must not be on the page
            notices.append(
                f"The results of the {kind} attack on {name} are left out: {ATTACKS_FOLDER}/{kind}.json in its run "
                f"folder is damaged or has another version. Run `medfl attack {kind}` again."
            )
            continue
        if content is not None:
            run_results.append(RunAttackResults(name, group, content.results, _page_link(run, kind, start)))
    return run_results


def _page_link(run: RunRecord, kind: str, start: Path | None) -> str:
    """Return the relative link to the page of an attack, or an empty string without one."""
    page = results_path(run.folder.absolute(), kind).with_suffix(".html")
    if start is None or not page.is_file():
        return ""
    return quote(Path(os.path.relpath(page, start)).as_posix())


# ---- tables


def _card_table(kind: str, table: Meta) -> SectionTable:
    """Return a table for the model card: without the column of runs, and with each interval after its value."""
    head = ["target", "attack", *(["item"] if len(table["rows"][0]["names"]) > 3 else []), "images"]
    rows = []
    for row in table["rows"]:
        pairs = zip(row["cells"], row["intervals"], strict=True)
        cells = [cell + (" [{:.3f}, {:.3f}]".format(*interval) if interval else "") for cell, interval in pairs]
        rows.append((*row["names"][1:], row["images"], *cells))
    return SectionTable(
        title=kind, head=(*head, *(f"{name} ({note})" for name, note in table["heads"])), rows=tuple(rows)
    )


def _table(kind: str, run_results: Sequence[RunAttackResults]) -> Meta | None:
    """Build a table with a row for each group, target, attack and item; return None without results.

    A row contains means over the runs of the group. If a run has several results for a row, such as one for each site,
    they are averaged first.

    Returns:
        Dictionary with the keys ``heads``, ``several``, ``over`` and ``rows``.
    """
    rows: dict[tuple[str, ...], dict[str, list[AttackResult]]] = {}
    every = [result for run in run_results for result in run.results]
    for run in run_results:
        for result in run.results:
            target, *rest = (_display_name(getattr(result, name, None)) for name in RESULT_KEYS[kind])
            round_ = getattr(result, "round", None)
            key = (run.group, target + (f", round {round_}" if round_ else ""), *rest)
            rows.setdefault(key, {}).setdefault(run.name, []).append(result)
    if not rows:
        return None
    return {
        "heads": [(head, note) for head, note, _ in MEASURE_COLUMNS[kind].values()],
        "several": any(len(runs) > 1 for runs in rows.values()),
        "over": join_words(
            sorted({over for result in every if (over := getattr(result, "interval_over", None)) is not None})
        ),
        "rows": [_table_row(kind, names, list(runs.values())) for names, runs in rows.items()],
    }


def _draw_rounds(run_results: Sequence[RunAttackResults], styles: Mapping[str, Look]) -> list[Markup]:
    """Draw recall and AUC of the membership attack over the rounds whose models were kept, a figure for each measure.

    The figures show the shadow-model attack, or the loss threshold attack if no run has the former. They show means
    over the runs of a group. A figure needs at least two rounds.
    """
    rows = pd.DataFrame(
        [
            {"group": run.group, "attack": row.attack, "round": row.round, "recall": row.recall, "auc": row.auc}
            for run in run_results
            for row in run.results
            if isinstance(row, MembershipResult) and row.round is not None
        ]
    )
    if rows.empty:
        return []
    kind = "shadow_topk" if "shadow_topk" in set(rows["attack"]) else rows["attack"].iloc[0]
    means = rows[rows["attack"] == kind].groupby(["group", "round"], sort=False)[["recall", "auc"]].mean()
    pictures = []
    for measure in ("recall", "auc"):
        table = means[measure].unstack("round").sort_index(axis=1)
        known = {str(name): values.dropna() for name, values in table.iterrows()}
        curves = [Curve(name, list(series.index), list(series)) for name, series in known.items() if len(series) > 1]
        if curves:
            label = MEASURE_COLUMNS["membership"][measure][0]
            text = f"{label} of the membership attack by round. {last_values(curves)}"
            pictures.append(curves_svg(curves, styles, label, f"attack{measure}", text))
    return pictures


def _table_row(kind: str, names: tuple[str, ...], runs: Sequence[Sequence[AttackResult]]) -> Meta:
    """Build a row of the table: names, numbers of images, formatted values and intervals."""
    every = [result for results in runs for result in results]
    return {
        "names": names,
        "images": " and ".join(_format_image_count(every, key) for key in IMAGE_COUNT_FIELDS[kind]),
        "cells": [
            _format_mean(
                [mean_known(_finite_or_none(getattr(result, key, None)) for result in results) for results in runs],
                form,
            )
            for key, (_, _, form) in MEASURE_COLUMNS[kind].items()
        ],
        "intervals": [_interval(every[0], key) if len(every) == 1 else None for key in MEASURE_COLUMNS[kind]],
    }


def _format_mean(values: Sequence[float | None], form: str) -> str:
    """Format the mean and standard deviation over the runs."""
    value = value_over(values)
    spread = "" if value.spread is None else f" ± {value.spread:{form}}"
    return MISSING if value.mean is None else f"{value.mean:{form}}{spread}"


def _display_name(value: Any) -> str:
    """Return the display name of a value, or `MISSING` if there is no value."""
    return DISPLAY_NAMES.get(value, value) if isinstance(value, str) and value else MISSING


def _finite_or_none(value: Any) -> float | None:
    """Return the value as a float, or None if it is missing or not finite."""
    return None if value is None or not math.isfinite(value) else float(value)


def _format_image_count(results: Sequence[AttackResult], key: str) -> str:
    """Format a number of images, or its range over the results."""
    known = sorted({int(value) for result in results if (value := getattr(result, key, None)) is not None})
    if not known:
        return MISSING
    return number(known[0]) if len(known) == 1 else f"{number(known[0])} to {number(known[-1])}"


def _interval(result: AttackResult, key: str) -> Interval | None:
    """Return a measure's 95 % confidence interval, or None if there is none."""
    interval: Interval | None = getattr(result, f"{key}_interval", None)
    return None if interval is None or not all(map(math.isfinite, interval)) else interval
