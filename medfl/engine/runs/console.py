"""Terminal output of a run: log, progress, scores, and errors without a traceback."""

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

from medfl.engine.evaluation import MetricRow
from medfl.engine.runs.summary import describe_unavailable
from medfl.errors import STOPPED_RUN, MedflError, explain
from medfl.plugin_sources import ENTRY_POINT_GROUP
from medfl.records.summary import Summary
from medfl.types import NON_SITE_NAMES
from medfl.utils.formats import score
from medfl.utils.progress import progress_bar
from medfl.utils.text import visible, visible_lines

MAX_METRICS = 3
"""Maximum number of metrics in the table at the end of a run; the report has all metrics."""


def show_scores(summary: Summary, metrics: Sequence[str], folder: Path) -> None:
    """Print a table with the scores of a run, and the paths of its files.

    Args:
        summary: Summary of the run.
        metrics: Names of the task's metrics. The table has the first `MAX_METRICS` metrics.
        folder: Path of the run folder.
    """
    console = Console(width=None if sys.stdout.isatty() else 100, markup=False)
    ending = "" if summary.rounds == 1 else "s"
    status = f"{summary.status}{describe_unavailable(summary)}"
    table = Table(title=f"{summary.method}: {status} after {summary.rounds} round{ending}")
    for column in ("model", "split", "metric", "mean of sites", "worst site", "server's test set"):
        table.add_column(column)
    for model, splits in summary.scores.items():
        for split, scores in splits.items():
            for metric in metrics[:MAX_METRICS]:
                shown = scores[metric]
                values = (shown.mean, shown.worst, shown.server_test)
                numbers = map(score, values)
                table.add_row(*map(visible, (model, split, metric)), *numbers)
    console.print(table if table.row_count else f"{table.title}; no scores, as no site has test or validation images")
    if summary.reason:
        console.print(f"The run ended early: {visible(summary.reason)}")
    models = folder / "sites" if (folder / "sites").is_dir() else "at the sites"
    console.print(f"Report: {folder / 'report.html'}; scores: {folder / 'metrics.csv'}; models: {models}")


class _EscapingFormatter(logging.Formatter):
    """Log formatter that escapes control characters, because names and reasons come from other machines and files."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the text of a log record, with control characters escaped."""
        return visible_lines(super().format(record))


def show_log() -> None:
    """Log messages of medfl and its plugins to stderr, unless the program has configured logging itself.

    The environment variable ``MEDFL_DEBUG=1`` sets the level DEBUG instead of INFO.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(_EscapingFormatter("%(levelname)s %(message)s"))
    for name in sorted({"medfl", *(point.module.partition(".")[0] for point in entry_points(group=ENTRY_POINT_GROUP))}):
        log = logging.getLogger(name)
        if not log.handlers and not logging.getLogger().handlers:
            log.addHandler(handler)
        log.setLevel(logging.DEBUG if os.environ.get("MEDFL_DEBUG") == "1" else logging.INFO)


MONAI_COMMAND = "monai.bundle.__main__"
"""Name of the main module of MONAI's command line, ``python -m monai.bundle``."""


@contextmanager
def ends_monai_command() -> Iterator[None]:
    """Return a context in which an error or Ctrl+C ends MONAI's command line without a traceback.

    MONAI would print a traceback of its own frames. In any other program, such as a notebook or medfl's command line,
    the exception is raised to the caller. With ``MEDFL_DEBUG=1`` it is always raised.
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
def round_progress(rounds: int, metric: str) -> Iterator[Callable[[int, list[MetricRow]], None]]:
    """Show a progress bar of a run's rounds, or log a line for each round if there is no terminal.

    Args:
        rounds: Number of rounds of the run.
        metric: Name of the metric to show, averaged over the sites.

    Yields:
        A function to call with (round, rows) after each round. The rows may contain scores of an earlier round.
    """
    start = time.monotonic()

    def log_round(done: int, total: int | None = None, text: str | None = None) -> None:
        logger.info("round %d of %d, %.0f s %s", done, rounds, time.monotonic() - start, text)

    with progress_bar("round", rounds, plain=log_round, text="") as show:
        yield lambda round_, rows: show(round_, text=_describe_scores(rows, metric))


def _describe_scores(rows: list[MetricRow], metric: str) -> str:
    """Return a text with the mean test score of each kind of model over the sites with a defined score."""
    by_model: dict[tuple[int, str], list[float]] = {}
    for row in rows:
        is_own_model = row.site not in NON_SITE_NAMES and "@" not in row.model  # "@": cross-site evaluation
        is_test_score = (row.metric, row.split, row.moment) == (metric, "test", "aggregated")
        if is_own_model and is_test_score and not math.isnan(row.value):
            by_model.setdefault((row.round, row.model), []).append(row.value)
    return "; ".join(
        f"{metric} after round {round_}: {sum(values) / len(values):.3f} ({model}, mean of {len(values)} test sets)"
        for (round_, model), values in by_model.items()
    )
