"""Attacks on the finished runs of a study: their command lines, and the tables of what they find.

``medfl attack NAME RUN`` writes ``RUN/attacks/NAME.json``. It is given again where that file is older than the run's
scores, or was made with other options than the study asks for.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from medfl.engine.runs.attack_results import read_results, results_path
from medfl.errors import StoreError
from medfl.records.attacks import AttackResult, field_of
from medfl.types import Meta
from medfl.utils.formats import table_lines
from medfl_report.statistics import mean_std, paired_t
from medfl_studies.jobs import Job
from medfl_studies.schema import Study

MEASURES = {
    "membership": {
        "auc": "AUC",
        "tpr_at_1_fpr": "TPR at 1 % FPR",
        "recall_balanced": "recall, balanced",
        "recall": "recall, own threshold",
        "false_alarms": "false alarms, own threshold",
    },
    "inversion": {"mse": "MSE", "psnr": "PSNR (dB)", "ssim": "SSIM"},
    "poison": {"accuracy": "accuracy", "worst_accuracy": "worst honest site", "success": "attack success"},
}
"""Attack to the numbers that its table shows, and their headings."""

OVER_SEEDS = frozenset({"poison"})
"""Attacks whose table has intervals over the seeds, in place of standard deviations."""

DIGITS = {"mse": 4, "psnr": 1}
"""Decimals of measures that don't have three."""

NOTES = {
    "membership": "Which images a model was trained on. Chance is 0.5 for the AUC and for the recall on as many "
    "members as others, 0.01 for the true positive rate at 1 % false positives. Larger: more leaks. The plain recall "
    "by an attack's own threshold, which papers print, says something only beside its false alarms: guessing has as "
    "many of these.",
    "inversion": "What an attacker reconstructs, against the images themselves, in [0, 1]. A smaller MSE, a larger "
    "PSNR and SSIM: more leaks. The mean image of other people, which takes no attack, is what to compare with.",
    "poison": "What attackers reached: accuracy on all test images of honest sites and of the server, at the worst "
    "honest site, and how often a model gives the answer that attackers want, of the images where that is a wrong one. "
    "Ordinary errors give it, too, as rows without attackers show. In brackets: 95 % interval over the seeds, by "
    "Student's t. What a rule costs without an attack, and what an attack costs, are the differences in the tables "
    "above.",
}
"""Attack to what its numbers mean."""

COLUMNS = ["kind", "label", "target", "round", "attack", "item", "measure", "seeds", "mean", "std", "low", "high"]
"""Columns of ``<data>-attacks.csv``."""

KEY = ("target", "round", "attack", "item")
"""What tells the results of an attack on a run apart."""


@dataclass(frozen=True, eq=False)
class AttackJob:
    """An attack on one run of a study.

    Attributes:
        kind: ``membership``, ``inversion`` or ``poison``.
        run: The run.
        options: Options of ``medfl attack`` by name.
    """

    kind: str
    run: Job
    options: Meta

    @property
    def title(self) -> str:
        """How to call it."""
        return f"{self.kind} of {self.run.title}"

    @property
    def folder(self) -> Path:
        """The run folder."""
        return self.run.folder

    @property
    def log(self) -> Path:
        """Where its messages go, beside the run's log."""
        return self.folder.with_name(f"{self.folder.name}-{self.kind}.log")

    @property
    def file(self) -> Path:
        """What it writes."""
        return results_path(self.folder, self.kind)

    def command(self) -> list[str]:
        """The words of the command line."""
        words = [sys.executable, "-m", "medfl", "attack", self.kind, str(self.folder)]
        for name, value in self.options.items():
            words += [f"--{name.replace('_', '-')}", str(value)]
        for file in self.run.options.get("plugins", ()):
            words += ["--plugin", str(file)]
        return words

    def results(self) -> Sequence[AttackResult]:
        """Return the results; empty if the attack is still to do."""
        try:
            late = self.file.stat().st_mtime_ns < (self.folder / "summary.json").stat().st_mtime_ns
            content = None if late else read_results(self.folder, self.kind)
        except (OSError, StoreError):
            return ()
        if content is None:
            return ()
        same = all(content.options.get(name.replace("-", "_")) == value for name, value in self.options.items())
        return content.results if same else ()

    def status(self) -> str:
        """``finished``, or ``not run``."""
        return "finished" if self.results() else "not run"

    def is_done(self) -> bool:
        """Whether it was made with these options, of the run as it is."""
        return bool(self.results())

    def stamp(self) -> None:
        """Nothing more to note: its file has its options."""


def attack_jobs(study: Study, runs: Iterable[Job]) -> list[AttackJob]:
    """All attacks of a study, in the order of its runs.

    Args:
        study: The study.
        runs: Its runs.
    """
    return [
        AttackJob(kind, run, dict(attack.options))
        for run in runs
        for kind, attack in study.attacks.items()
        if run.row in (attack.rows or study.rows) and run.data in (attack.data or study.data)
    ]


def attack_table(attacks: Sequence[AttackJob]) -> pd.DataFrame:
    """Mean, standard deviation (ddof = 1) and 95 % interval by Student's t over the runs of each row.

    Several results of a run with the same target, round, attack and item (those of several sites) count as one, their
    mean.

    Args:
        attacks: In the order of the rows; those that are still to do are left out.

    Returns:
        `COLUMNS`; `round` is empty for the last model, `item` where the attack has none; `std`, `low` and `high` are
        NaN with one run.
    """
    values: dict[tuple[str, ...], dict[str, list[float]]] = {}
    for attack in attacks:
        for result in attack.results():
            for measure in MEASURES[attack.kind]:
                key = (attack.kind, attack.run.row, *(str(field_of(result, name) or "") for name in KEY), measure)
                value = field_of(result, measure)
                if value is not None and math.isfinite(value):
                    values.setdefault(key, {}).setdefault(attack.run.repetition, []).append(float(value))
    rows: list[list[Any]] = []
    for key, by_run in values.items():
        each = [math.fsum(same) / len(same) for same in by_run.values()]
        (mean, std), over = mean_std(each), paired_t(each)
        ends = (math.nan, math.nan) if over is None else (over.low, over.high)
        rows.append([*key, len(by_run), mean, math.nan if std is None else std, *ends])
    return pd.DataFrame(rows, columns=COLUMNS)


def attacks_markdown(table: pd.DataFrame) -> str:
    """A table for each attack, and what its numbers mean.

    Args:
        table: From `attack_table`.

    Returns:
        Text that ends with a line break; empty without results.
    """
    parts = []
    for kind, results in table.groupby("kind", sort=False):
        headings, keys = MEASURES[str(kind)], [name for name in KEY if (results[name] != "").any()]
        lines = [["method", "seeds", *keys, *headings.values()]]
        for key, rows in results.groupby(["label", *keys], sort=False):
            cells = {
                row["measure"]: _cell(row, str(kind) in OVER_SEEDS, DIGITS.get(row["measure"], 3))
                for row in rows.to_dict("records")
            }
            label, *what = (str(part) or "-" for part in key)
            lines.append([label, str(rows["seeds"].max()), *what, *(cells.get(name, "-") for name in headings)])
        parts.append(f"### Attack: {kind}\n\n{table_lines(lines)}\n\n- {NOTES[str(kind)]}\n")
    return "\n".join(parts)


def _cell(row: dict[Any, Any], interval: bool, digits: int) -> str:
    mean, std, low, high = (row[name] for name in ("mean", "std", "low", "high"))
    if interval and not math.isnan(low):
        return f"{mean:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"
    return f"{mean:.{digits}f}" + ("" if math.isnan(std) else f" ± {std:.{digits}f}")
