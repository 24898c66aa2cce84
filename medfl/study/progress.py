"""Progress of a study: a bar of runs on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


@contextmanager
def study_progress(runs: int) -> Iterator[tuple[Callable[[str], None], Callable[[int], None]]]:
    """Show the runs of a study as they end.

    Args:
        runs: How many there are.

    Yields:
        A function that prints a line, and one to call with the number of runs that are over.
    """
    console = Console(stderr=True, markup=False, highlight=False, emoji=False, soft_wrap=True)

    def say(line: str) -> None:
        console.print(line)

    if not sys.stderr.isatty():
        yield say, lambda over: None
        return
    columns = (TextColumn("runs"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("", total=runs)
        yield say, lambda over: bar.update(task, completed=over)
