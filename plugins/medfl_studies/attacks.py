"""Attacks on the finished runs of a study: command lines of the attacks, and tables of the results.

A study compares methods; each of its rows is a method with settings, and each row has one run for each seed.
Plugins define the attacks (`medfl.hooks.AttackRecord`). ``medfl attack NAME RUN`` writes a results file to
``RUN/attacks``. The command is run again if that file is older than the run's scores or has other options than the
study.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from medfl.errors import StoreError
from medfl.hooks import ATTACKS_FOLDER, AttackRecord
from medfl.plugins import Registry
from medfl.types import Meta
from medfl.utils.formats import table_lines
from medfl_report.statistics import mean_std, paired_t
from medfl_studies.jobs import RunJob, digest_of
from medfl_studies.launchers.resources import Resources
from medfl_studies.schema import Study

ATTACK_COLUMNS = [
    "kind",
    "label",
    "target",
    "round",
    "attack",
    "item",
    "measure",
    "seeds",
    "mean",
    "std",
    "low",
    "high",
]
"""Columns of the table of attack results, ``<data>-attacks.csv``, where ``<data>`` is the name of a data set."""

RESULT_KEY = ("target", "round", "attack", "item")
"""Fields of a result that distinguish it from the other results of the same attack on the same run."""

RUN_KEY = ("data", "row", "seed", "fold")
"""Fields of a run that distinguish it from the other runs of a study."""

VALUE_COLUMNS = (*RUN_KEY, "kind", *RESULT_KEY, "measure", "value")
"""Columns of the table of all attack results of a study. `kind` is the name of the attack's command."""


@dataclass(frozen=True, eq=False)
class AttackJob:
    """An attack on one run of a study.

    Attributes:
        record: The registered attack, which names the command and the results class.
        results_class: Class of the attack's results file.
        run: Job of the run that is attacked.
        options: Options of ``medfl attack`` by name.
    """

    record: AttackRecord
    results_class: Any
    run: RunJob
    options: Meta

    @property
    def title(self) -> str:
        """Name of the attack in messages."""
        return f"{self.record.name} of {self.run.title}"

    @property
    def folder(self) -> Path:
        """Folder of the attacked run; the attack writes into its folder ``attacks``."""
        return self.run.folder

    @property
    def log(self) -> Path:
        """Path of the attack's log file, beside the run's log."""
        return self.folder.with_name(f"{self.folder.name}-{self.record.name}.log")

    @property
    def resources(self) -> Resources:
        """Resources of the attacked run."""
        return self.run.resources

    @property
    def file(self) -> Path:
        """Path of the attack's results file, ``attacks/<attack>.json`` in the run folder."""
        path: Path = self.folder / ATTACKS_FOLDER / self.results_class.NAME
        return path

    def command(self) -> list[str]:
        """Return the words of the command line ``medfl attack ...``."""
        words = [sys.executable, "-m", "medfl", "attack", self.record.name, str(self.folder)]
        for name, value in self.options.items():
            words += [f"--{name.replace('_', '-')}", str(value)]
        for file in self.run.options.get("plugins", ()):
            words += ["--plugin", str(file)]
        return words

    def inputs_digest(self) -> str:
        """Return a digest of the command line; `is_done` compares the run's scores."""
        return digest_of(self.command())

    def results(self) -> Sequence[Any]:
        """Return the results from the file.

        They are empty if the attack has not run since the run ended, or ran with other options.
        """
        try:
            if self.file.stat().st_mtime_ns < (self.folder / "summary.json").stat().st_mtime_ns:
                return ()
            content = self.results_class.read(self.file)
        except (OSError, StoreError):
            return ()
        same = all(content.options.get(name.replace("-", "_")) == value for name, value in self.options.items())
        results: Sequence[Any] = content.results if same else ()
        return results

    def status(self) -> str:
        """Return ``finished`` or ``not run``."""
        return "finished" if self.results() else "not run"

    def is_done(self) -> bool:
        """Return whether the attack was run with these options on this state of the run."""
        return bool(self.results())

    def mark_done(self) -> None:
        """Do nothing: the results file already contains the options."""


def attack_jobs(study: Study, runs: Iterable[RunJob], registry: Registry) -> list[AttackJob]:
    """Return a job for each attack of a study on each of the runs, in the order of the runs.

    Args:
        study: The study.
        runs: Runs of the study.
        registry: Registry with the attacks.

    Raises:
        PluginError: If the class of an attack's results can't be imported.
    """
    return [
        AttackJob(registry.attacks[name], registry.attack_results(name), run, dict(attack.options))
        for run in runs
        for name, attack in study.attacks.items()
        if run.row in (attack.rows or study.rows) and run.data in (attack.data or study.data)
    ]


def attack_values(attacks: Iterable[AttackJob]) -> pd.DataFrame:
    """Return each finite measure of each result of the attacks.

    Args:
        attacks: Attacks, in the order of the study's rows. Attacks without results are left out.

    Returns:
        A table with `VALUE_COLUMNS`. `fold` is missing for runs without folds, `round` is empty for the last model,
            and `item` for attacks without an item.
    """
    rows = []
    for job in attacks:
        run = [job.run.data, job.run.row, job.run.seed, job.run.fold, job.record.name]
        for result in job.results():
            key = [str(getattr(result, name, None) or "") for name in RESULT_KEY]
            for measure in job.record.measures:
                value = getattr(result, measure)
                if value is not None and math.isfinite(value):
                    rows.append([*run, *key, measure, float(value)])
    return pd.DataFrame(rows, columns=list(VALUE_COLUMNS)).astype({"fold": "Int64"})


def attack_table(values: pd.DataFrame) -> pd.DataFrame:
    """Compute mean, standard deviation and confidence interval of each measure over the runs of each row of the study.

    The standard deviation has ddof = 1; the 95 % interval uses Student's t. Several results of a run with the same
    target, round, attack and item (such as one for each site) are averaged first.

    Args:
        values: Results of the attacks on one data set, from `attack_values`.

    Returns:
        A table with `ATTACK_COLUMNS`. `std`, `low` and `high` are NaN with one run.
    """
    rows: list[list[Any]] = []
    for key, results in values.groupby(["kind", "row", *RESULT_KEY, "measure"], sort=False):
        each = results.groupby(["seed", "fold"], dropna=False, sort=False)["value"].mean().tolist()
        (mean, std), over = mean_std(each), paired_t(each)
        ends = (math.nan, math.nan) if over is None else (over.low, over.high)
        rows.append([*key, len(each), mean, math.nan if std is None else std, *ends])
    return pd.DataFrame(rows, columns=ATTACK_COLUMNS)


def attacks_markdown(table: pd.DataFrame, attacks: Mapping[str, AttackRecord]) -> str:
    """Return a Markdown table for each attack, with a note on the meaning of its measures.

    Args:
        table: Table from `attack_table`.
        attacks: Attacks by name.

    Returns:
        Markdown that ends with a line break; empty without results.
    """
    parts = []
    for name, results in table.groupby("kind", sort=False):
        attack, keys = attacks[str(name)], [key for key in RESULT_KEY if (results[key] != "").any()]
        lines = [["method", "seeds", *keys, *attack.measures.values()]]
        for key, rows in results.groupby(["label", *keys], sort=False):
            cells = {
                row["measure"]: _format_measure(row, attack.has_intervals, attack.digits.get(row["measure"], 3))
                for row in rows.to_dict("records")
            }
            label, *what = (str(part) or "-" for part in key)
            lines.append(
                [label, str(rows["seeds"].max()), *what, *(cells.get(measure, "-") for measure in attack.measures)]
            )
        parts.append(f"### Attack: {name}\n\n{table_lines(lines)}\n\n- {attack.note}\n")
    return "\n".join(parts)


def _format_measure(row: dict[Any, Any], interval: bool, digits: int) -> str:
    """Format a mean with its interval or standard deviation."""
    mean, std, low, high = (row[name] for name in ("mean", "std", "low", "high"))
    if interval and not math.isnan(low):
        return f"{mean:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"
    return f"{mean:.{digits}f}" + ("" if math.isnan(std) else f" ± {std:.{digits}f}")
