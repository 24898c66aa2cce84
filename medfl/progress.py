"""Progress of a run: a bar on a terminal, a plain line for each round elsewhere."""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from medfl.data.sites import NO_SITES
from medfl.evaluation import Row

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
    if not sys.stderr.isatty():
        yield _plain_lines(rounds, metric)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("round"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=rounds)

        def show(round_: int, rows: list[Row]) -> None:
            bar.update(task, completed=round_, description=_scores(rows, metric))

        yield show


def _plain_lines(rounds: int, metric: str) -> Callable[[int, list[Row]], None]:
    start = time.monotonic()

    def show(round_: int, rows: list[Row]) -> None:
        logger.info("round %d of %d, %.0f s %s", round_, rounds, time.monotonic() - start, _scores(rows, metric))

    return show


def _scores(rows: list[Row], metric: str) -> str:
    """Mean test score over the sites where it is defined, by model, of the round that was scored."""
    found: dict[tuple[int, str], list[float]] = {}
    for row in rows:
        its_own = row.site not in NO_SITES and "@" not in row.model  # not another site's model, as in the global test
        asked = (row.metric, row.split, row.moment) == (metric, "test", "aggregated")
        if its_own and asked and not math.isnan(row.value):
            found.setdefault((row.round, row.model), []).append(row.value)
    return "; ".join(
        f"{metric} after round {round_}: {sum(values) / len(values):.3f} ({model}, mean of {len(values)} test sets)"
        for (round_, model), values in found.items()
    )
