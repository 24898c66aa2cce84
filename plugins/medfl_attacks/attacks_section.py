"""The section of a report about attacks on its runs: who was in the training, what comes back, what poison did."""

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
from medfl.utils.formats import MISSING, listed, number
from medfl_attacks.attack_files import FILES, AttackResult, Interval, MembershipResult, read_results, results_path
from medfl_report.cards.card_parts import CardPart, PartTable
from medfl_report.curves import curves_svg, ends
from medfl_report.figures import Curve, Look, looks
from medfl_report.gains import mean_known
from medfl_report.groups import Group
from medfl_report.notices import Named
from medfl_report.scores import named_runs, value_over
from medfl_report.section import ReportData, TemplateSection

WORDS = {
    "global": "global model",
    "personal": "models of the sites, their mean",
    "shared": "shared images",
    "update": "update of a site",
    "model": "model",
    "shadow_topk": "shadow model",
    "loss_threshold": "loss threshold",
    "gradient": "gradient descent",
    "decoder": "trained decoder",
    "fixed_point": "fixed point",
    "none": "none: what was sent, as it is",
    "mean_image": "none: the mean image",
    "class mean": "mean image of the class",
    "nearest image": "nearest training image",
    "x_s": "part without noise (x_s)",
    "x_p": "part with noise (x_p)",
    "raw": "whole image",
}
"""What a file calls a target, an attack or an item to what a reader does."""

COLUMNS = {
    "membership": {
        "auc": ("AUC", "0.5 is guessing", ".3f"),
        "tpr_at_1_fpr": ("TPR at 1 % FPR", "0.01 is guessing", ".3f"),
        "recall_balanced": ("balanced recall", "0.5 is guessing", ".3f"),
        "recall": ("recall", "own threshold", ".3f"),
        "false_alarms": ("false alarms", "own threshold", ".3f"),
    },
    "inversion": {
        "mse": ("MSE", "0: the same image", ".4f"),
        "psnr": ("PSNR", "dB", ".1f"),
        "ssim": ("SSIM", "1: the same image", ".3f"),
    },
    "poisoning": {
        "accuracy": ("accuracy", "honest sites and server", ".3f"),
        "worst_accuracy": ("worst honest site", "accuracy", ".3f"),
        "success": ("attack success", "as the attacker wants", ".3f"),
    },
}
"""Kind of attack to its numbers, with heading, note and format."""

KEYS = {
    "membership": ("target", "attack"),
    "inversion": ("target", "attack", "item"),
    "poisoning": ("target", "attack"),
}
"""Kind of attack to what tells its results on a run apart."""

IMAGES = {"membership": ("members", "non_members"), "inversion": ("images",), "poisoning": ("images",)}
"""Kind of attack to the numbers of images in its results."""


@dataclass(frozen=True)
class Attacked:
    """What attacks of one kind on one run found.

    Attributes:
        name: Of the run on the page.
        group: Label of its group.
        results: Results of the attacks.
        page: Address of the attack's own page; empty where there is none to link to.
    """

    name: str
    group: str
    results: Sequence[AttackResult]
    page: str


class AttacksSection(TemplateSection):
    """What attacks on the runs found."""

    template = "attacks.html"

    def content(self, data: ReportData) -> Meta | None:
        """Tables and pictures, where a run was attacked."""
        return {"attacks": attacks} if (attacks := attacks_section(data.groups, data.folder)) else None

    def card(self, data: ReportData) -> CardPart:
        """Return the tables of the section, or a sentence that says that nobody attacked the run."""
        values = self.values(data)
        if values is None:
            return CardPart(texts=("Unknown: this run was not attacked (medfl attack).",))
        attacks = values["attacks"]
        return CardPart(
            tables=tuple(_card_table(kind, attacks[kind]) for kind in FILES if attacks[kind]),
            texts=(*attacks["notices"], "An attack that fails proves nothing."),
        )


def attacks_section(groups: Sequence[Group], folder: Path | None) -> Meta | None:
    """The section; None where no run was attacked.

    Args:
        groups: Of the page.
        folder: Where the page will lie; None for no links.
    """
    names = {id(run): name for name, run in named_runs(groups)}
    runs = [(group.label, (names[id(run)], run)) for group in groups for run in group.runs]
    within = os.path.commonpath([run.folder.absolute().parent for _, (_, run) in runs])
    start = folder if folder is not None and _near(folder, Path(within)) else None
    notices: list[str] = []
    by_kind = {kind: _read_all(runs, kind, start, notices) for kind in FILES}
    if not notices and not any(by_kind.values()):
        return None
    return {
        "notices": notices,
        "membership": _table("membership", by_kind["membership"]),
        "rounds": _pictures(by_kind["membership"], looks([group.label for group in groups])),
        "inversion": _table("inversion", by_kind["inversion"]),
        "poisoning": _table("poisoning", by_kind["poisoning"]),
        "links": [
            (f"{attacked.name}, {kind}", attacked.page) for kind in FILES for attacked in by_kind[kind] if attacked.page
        ],
    }


def _near(folder: Path, runs: Path) -> bool:
    """Whether the way from the page to the runs leads through no folder but theirs, whose names the page has anyway."""
    return folder.is_relative_to(runs) or runs.is_relative_to(folder)


# ---- reading


def _read_all(runs: Sequence[tuple[str, Named]], kind: str, start: Path | None, notices: list[str]) -> list[Attacked]:
    """What attacks of a kind found, run by run; a notice for each file that can't be used."""
    attacked = []
    for group, (name, run) in runs:
        try:
            content = read_results(run.folder, kind)
        except StoreError:  # its message has the whole path
            notices.append(
                f"What the {kind} attack on {name} found is left out: {ATTACKS_FOLDER}/{kind}.json in its run folder "
                f"is damaged or of another version. `medfl attack {kind}` writes it anew."
            )
            continue
        if content is not None:
            attacked.append(Attacked(name, group, content.results, _page(run, kind, start)))
    return attacked


def _page(run: RunRecord, kind: str, start: Path | None) -> str:
    page = results_path(run.folder.absolute(), kind).with_suffix(".html")
    if start is None or not page.is_file():
        return ""
    return quote(Path(os.path.relpath(page, start)).as_posix())


# ---- tables


def _card_table(kind: str, table: Meta) -> PartTable:
    """Return a table of the section without the column of runs, with each interval behind its number."""
    head = ["target", "attack", *(["item"] if len(table["rows"][0]["names"]) > 3 else []), "images"]
    rows = []
    for row in table["rows"]:
        pairs = zip(row["cells"], row["intervals"], strict=True)
        cells = [cell + (" [{:.3f}, {:.3f}]".format(*ends) if ends else "") for cell, ends in pairs]
        rows.append((*row["names"][1:], row["images"], *cells))
    return PartTable(title=kind, head=(*head, *(f"{name} ({note})" for name, note in table["heads"])), rows=tuple(rows))


def _table(kind: str, attacked: Sequence[Attacked]) -> Meta | None:
    """A row for each group, target, attack and item, as mean over the group's runs; None without results.

    Several results of a run of the same kind, such as those of several sites, count as one, their mean.
    """
    rows: dict[tuple[str, ...], dict[str, list[AttackResult]]] = {}
    every = [result for run in attacked for result in run.results]
    for run in attacked:
        for result in run.results:
            target, *rest = (_text(getattr(result, name, None)) for name in KEYS[kind])
            round_ = getattr(result, "round", None)
            key = (run.group, target + (f", round {round_}" if round_ else ""), *rest)
            rows.setdefault(key, {}).setdefault(run.name, []).append(result)
    if not rows:
        return None
    return {
        "heads": [(head, note) for head, note, _ in COLUMNS[kind].values()],
        "several": any(len(runs) > 1 for runs in rows.values()),
        "over": listed(
            sorted({over for result in every if (over := getattr(result, "interval_over", None)) is not None})
        ),
        "rows": [_row(kind, names, list(runs.values())) for names, runs in rows.items()],
    }


def _pictures(attacked: Sequence[Attacked], styles: Mapping[str, Look]) -> list[Markup]:
    """How an attack fares over the rounds whose models were kept: a picture for each number; none for fewer than two.

    The attack is the one by a shadow network, where there was one; of several runs of a group it is the mean.
    """
    rows = pd.DataFrame(
        [
            {"group": run.group, "attack": row.attack, "round": row.round, "recall": row.recall, "auc": row.auc}
            for run in attacked
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
            label = COLUMNS["membership"][measure][0]
            text = f"{label} of the membership attack by round. {ends(curves)}"
            pictures.append(curves_svg(curves, styles, label, f"attack{measure}", text))
    return pictures


def _row(kind: str, names: tuple[str, ...], runs: Sequence[Sequence[AttackResult]]) -> Meta:
    every = [result for results in runs for result in results]
    return {
        "names": names,
        "images": " and ".join(_counts(every, key) for key in IMAGES[kind]),
        "cells": [
            _cell([mean_known(_number(getattr(result, key, None)) for result in results) for results in runs], form)
            for key, (_, _, form) in COLUMNS[kind].items()
        ],
        "intervals": [_interval(every[0], key) if len(every) == 1 else None for key in COLUMNS[kind]],
    }


def _cell(values: Sequence[float | None], form: str) -> str:
    value = value_over(values)
    spread = "" if value.spread is None else f" ± {value.spread:{form}}"
    return MISSING if value.mean is None else f"{value.mean:{form}}{spread}"


def _text(value: Any) -> str:
    return WORDS.get(value, value) if isinstance(value, str) and value else MISSING


def _number(value: Any) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)


def _counts(results: Sequence[AttackResult], key: str) -> str:
    known = sorted({int(value) for result in results if (value := getattr(result, key, None)) is not None})
    if not known:
        return MISSING
    return number(known[0]) if len(known) == 1 else f"{number(known[0])} to {number(known[-1])}"


def _interval(result: AttackResult, key: str) -> Interval | None:
    """Return a number's 95 % interval, or None if there is none."""
    interval: Interval | None = getattr(result, f"{key}_interval", None)
    return None if interval is None or not all(map(math.isfinite, interval)) else interval
