"""What a run says on the terminal: its log, its scores at the end, and errors that the user can mend."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from rich.console import Console
from rich.table import Table

from medfl.contract import Meta

SHOWN = 3
"""Metrics in the table at the end of a run; the report has all."""


def show_scores(summary: Meta, metrics: Sequence[str], folder: Path) -> None:
    """Print the scores of a run by its first metrics as a table, and where its files are."""
    console = Console(width=None if sys.stdout.isatty() else 100, markup=False)
    ending = "" if summary["rounds"] == 1 else "s"
    table = Table(title=f"{summary['method']}: {summary['status']} after {summary['rounds']} round{ending}")
    for column in ("model", "split", "metric", "mean of sites", "worst site", "global test"):
        table.add_column(column)
    for model, splits in summary["scores"].items():
        for split, scores in splits.items():
            for metric in metrics[:SHOWN]:
                found = scores[metric]
                values = (found[key] for key in ("mean", "worst", "global_test"))
                table.add_row(model, split, metric, *("-" if value is None else f"{value:.3f}" for value in values))
    console.print(table if table.row_count else f"{table.title}; no scores, for nobody has test or validation images")
    if summary["reason"]:
        console.print(f"The run ended early: {summary['reason']}")
    models = folder / "sites" if (folder / "sites").is_dir() else "at the sites"
    console.print(f"Report: {folder / 'report.html'}; scores: {folder / 'metrics.csv'}; models: {models}")


def show_log() -> None:
    """Log medfl's messages to stderr unless the program has set up logging itself; ``MEDFL_DEBUG=1`` asks for all."""
    log = logging.getLogger("medfl")
    if not log.handlers and not logging.getLogger().handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
        log.addHandler(handler)
    log.setLevel(logging.DEBUG if os.environ.get("MEDFL_DEBUG") == "1" else logging.INFO)


def end(message: str, code: int) -> NoReturn:
    """End the process with a message and no traceback, unless ``MEDFL_DEBUG=1`` asks for one."""
    if os.environ.get("MEDFL_DEBUG") == "1":
        raise
    sys.stderr.write(message + "\n")
    raise SystemExit(code)
