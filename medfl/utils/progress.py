"""Progress of reading and downloading: a bar on a terminal, a plain line every few seconds elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

EVERY_SECONDS = 5.0
"""How often a plain line comes."""


@contextmanager
def progress(
    what: str, total: int | None, unit: str, say: Callable[[str], None], *, in_bytes: bool = False
) -> Iterator[Callable[[int], None]]:
    """Show how far a piece of work is.

    Args:
        what: What is done, for example ``reading``.
        total: How much there is to do, >= 0; None if that is not known.
        unit: What is counted, for example ``images``.
        say: Gets the plain lines.
        in_bytes: Whether bytes are counted; they are shown in MB.

    Yields:
        A function to call with how much is done by now.
    """
    if not sys.stderr.isatty():
        yield _plain_lines(what, total, unit, say, 1_000_000 if in_bytes else 1)
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    count = DownloadColumn() if in_bytes else MofNCompleteColumn()
    columns = (TextColumn("{task.description}"), BarColumn(), count, TextColumn("" if in_bytes else unit))
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.update(task, completed=done)


def _plain_lines(
    what: str, total: int | None, unit: str, say: Callable[[str], None], scale: int
) -> Callable[[int], None]:
    last = time.monotonic()

    def show(done: int) -> None:
        nonlocal last
        if time.monotonic() - last >= EVERY_SECONDS:
            last = time.monotonic()
            of = "" if total is None else f" of {total // scale}"
            say(f"{what}: {done // scale}{of} {unit}")

    return show
