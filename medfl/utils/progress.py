"""Progress of a task: a bar on a terminal, or plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, Protocol

from medfl.utils.text import Say

if TYPE_CHECKING:
    from rich.console import Console

EVERY_SECONDS = 5.0
"""Minimum seconds between two plain lines of progress, for output that is not a terminal."""


class ShowProgress(Protocol):
    """Function that shows the progress."""

    def __call__(self, done: int, total: int | None = None, text: str | None = None) -> None:
        """Show the progress.

        Args:
            done: Amount that is done.
            total: Total amount; None keeps the previous one.
            text: Text next to the bar; None keeps the previous one.
        """
        ...


def show_nothing(done: int, total: int | None = None, text: str | None = None) -> None:
    """Discard progress: a `ShowProgress` function that shows nothing."""


@contextmanager
def progress_bar(
    what: str,
    total: int | None = None,
    *,
    plain: ShowProgress = show_nothing,
    text: str | None = None,
    clock: Literal["left", "spent", None] = "left",
    in_bytes: bool = False,
    transient: bool = False,
    console: Console | None = None,
) -> Iterator[ShowProgress]:
    """Show the progress of a task within the block.

    Args:
        what: Name of the task, for example ``reading``.
        total: Total amount, >= 0; None if unknown.
        plain: Function that shows the progress if there is no terminal.
        text: Initial text next to the bar; None shows no text.
        clock: Displayed time: ``left``, ``spent``, or None.
        in_bytes: Whether amounts are bytes, shown in MB.
        transient: Whether the bar disappears at the end.
        console: Console for the bar; None is stderr.

    Yields:
        Function to call with the amount that is done.
    """
    if not sys.stderr.isatty():
        yield plain
        return
    from rich import progress as bars
    from rich.console import Console

    count = bars.DownloadColumn() if in_bytes else bars.MofNCompleteColumn()
    columns: list[bars.ProgressColumn] = [bars.TextColumn("{task.description}", markup=False), bars.BarColumn(), count]
    columns += [] if text is None else [bars.TextColumn("{task.fields[text]}", markup=False)]
    times = {"left": bars.TimeRemainingColumn, "spent": bars.TimeElapsedColumn}
    columns += [] if clock is None else [times[clock]()]
    with bars.Progress(*columns, console=console or Console(stderr=True), transient=transient) as bar:
        task = bar.add_task(what, total=total, text=text)

        def show(done: int, total: int | None = None, text: str | None = None) -> None:
            fields: dict[str, Any] = {} if text is None else {"text": text}
            bar.update(task, completed=done, total=total, **fields)

        yield show


@contextmanager
def progress(what: str, total: int | None, unit: str, say: Say, *, in_bytes: bool = False) -> Iterator[ShowProgress]:
    """Show the progress of reading or downloading: a bar on a terminal, a plain line every few seconds elsewhere.

    Args:
        what: Name of the task, for example ``reading``.
        total: Total amount, >= 0; None if unknown.
        unit: Unit of the amount, for example ``images``.
        say: Function that receives the plain lines.
        in_bytes: Whether amounts are bytes, shown in MB.

    Yields:
        Function to call with the amount that is done.
    """
    plain = _plain_lines(what, total, unit, say, 1_000_000 if in_bytes else 1)
    with progress_bar(what, total, plain=plain, text="" if in_bytes else unit, in_bytes=in_bytes) as show:
        yield show


def _plain_lines(what: str, total: int | None, unit: str, say: Say, scale: int) -> ShowProgress:
    """Return a function that reports the progress in plain lines."""
    last = time.monotonic()
    of = "" if total is None else f" of {total // scale}"

    def show(done: int, total: int | None = None, text: str | None = None) -> None:
        nonlocal last
        if time.monotonic() - last >= EVERY_SECONDS:
            last = time.monotonic()
            say(f"{what}: {done // scale}{of} {unit}")

    return show
