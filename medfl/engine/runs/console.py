"""What a run says on the terminal: its log, its progress, its scores, and errors that the user can mend."""

from __future__ import annotations

import logging
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import entry_points
from pathlib import Path

from rich.console import Console
from rich.table import Table

from medfl.engine.evaluation import Row
from medfl.engine.runs.summary import ended_on
from medfl.errors import STOPPED_RUN, MedflError, explain
from medfl.plugin_sources import GROUP
from medfl.records.summary import Summary
from medfl.types import NO_SITES
from medfl.utils.formats import score
from medfl.utils.progress import progress_bar
from medfl.utils.text import visible, visible_lines

MAX_METRICS = 3
"""Metrics in the table at the end of a run; the report has all."""


def show_scores(summary: Summary, metrics: Sequence[str], folder: Path) -> None:
    """Print the scores of a run by its first metrics as a table, and where its files are."""
    console = Console(width=None if sys.stdout.isatty() else 100, markup=False)
    ending = "" if summary.rounds == 1 else "s"
    status = f"{summary.status}{ended_on(summary)}"
    table = Table(title=f"{summary.method}: {status} after {summary.rounds} round{ending}")
    for column in ("model", "split", "metric", "mean of sites", "worst site", "global test"):
        table.add_column(column)
    for model, splits in summary.scores.items():
        for split, scores in splits.items():
            for metric in metrics[:MAX_METRICS]:
                shown = scores[metric]
                values = (shown.mean, shown.worst, shown.global_test)
                numbers = map(score, values)
                table.add_row(*map(visible, (model, split, metric)), *numbers)
    console.print(table if table.row_count else f"{table.title}; no scores, for nobody has test or validation images")
    if summary.reason:
        console.print(f"The run ended early: {visible(summary.reason)}")
    models = folder / "sites" if (folder / "sites").is_dir() else "at the sites"
    console.print(f"Report: {folder / 'report.html'}; scores: {folder / 'metrics.csv'}; models: {models}")


class _Visible(logging.Formatter):
    """Writes out what would steer a terminal: names and reasons come from other machines and from files."""

    def format(self, record: logging.LogRecord) -> str:
        """A record as text."""
        return visible_lines(super().format(record))


def show_log() -> None:
    """Log messages of medfl and its plugins to stderr, unless the program has set up logging itself.

    The environment variable ``MEDFL_DEBUG=1`` asks for all messages.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(_Visible("%(levelname)s %(message)s"))
    for name in sorted({"medfl", *(point.module.partition(".")[0] for point in entry_points(group=GROUP))}):
        log = logging.getLogger(name)
        if not log.handlers and not logging.getLogger().handlers:
            log.addHandler(handler)
        log.setLevel(logging.DEBUG if os.environ.get("MEDFL_DEBUG") == "1" else logging.INFO)


MONAI_COMMAND = "monai.bundle.__main__"
"""Module that runs as the main program of ``python -m monai.bundle``."""


@contextmanager
def ends_monai_command() -> Iterator[None]:
    """End the process without a traceback, if MONAI's command line is the program and an error or Ctrl+C ends the run.

    MONAI would show a traceback of its own frames. In any other program, such as a notebook or medfl's command line,
    the exception goes on to the caller. ``MEDFL_DEBUG=1`` lets it go on everywhere.
    """
    main = sys.modules.get("__main__")
    name = getattr(getattr(main, "__spec__", None), "name", "")
    try:
        yield
    except (MedflError, KeyboardInterrupt) as error:
        if name != MONAI_COMMAND or os.environ.get("MEDFL_DEBUG") == "1":
            raise
        explanation = explain(error, STOPPED_RUN)
        sys.stderr.write(visible_lines(explanation.message) + "\n")
        raise SystemExit(explanation.status) from None


logger = logging.getLogger(__name__)


@contextmanager
def round_progress(rounds: int, metric: str) -> Iterator[Callable[[int, list[Row]], None]]:
    """Show the rounds of a run as they end.

    Args:
        rounds: How many there will be.
        metric: Name of the metric to show, averaged over the sites.

    Yields:
        A function to call with (round, rows); rows may hold the scores of an earlier round.
    """
    start = time.monotonic()

    def plain(done: int, total: int | None = None, text: str | None = None) -> None:
        logger.info("round %d of %d, %.0f s %s", done, rounds, time.monotonic() - start, text)

    with progress_bar("round", rounds, plain=plain, text="") as show:
        yield lambda round_, rows: show(round_, text=_scores(rows, metric))


def _scores(rows: list[Row], metric: str) -> str:
    """Mean test score over the sites where it is defined, by model, of the round that was scored."""
    by_model: dict[tuple[int, str], list[float]] = {}
    for row in rows:
        its_own = row.site not in NO_SITES and "@" not in row.model  # not another site's model, as in the global test
        of_metric = (row.metric, row.split, row.moment) == (metric, "test", "aggregated")
        if its_own and of_metric and not math.isnan(row.value):
            by_model.setdefault((row.round, row.model), []).append(row.value)
    return "; ".join(
        f"{metric} after round {round_}: {sum(values) / len(values):.3f} ({model}, mean of {len(values)} test sets)"
        for (round_, model), values in by_model.items()
    )
