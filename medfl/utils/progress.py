"""How far a piece of work is: a bar on a terminal, and elsewhere whatever the caller says in plain lines."""

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
"""How often a plain line comes."""


class Show(Protocol):
    """Shows how far it is."""

    def __call__(self, done: int, total: int | None = None, text: str | None = None) -> None:
        """Show it.

        Args:
            done: How much is done by now.
            total: How much there is to do; None leaves it as it was.
            text: What stands beside the bar; None leaves it as it was.
        """
        ...


def silent(done: int, total: int | None = None, text: str | None = None) -> None:
    """Shows nothing."""


@contextmanager
def progress_bar(
    what: str,
    total: int | None = None,
    *,
    plain: Show = silent,
    text: str | None = None,
    clock: Literal["left", "spent", None] = "left",
    in_bytes: bool = False,
    transient: bool = False,
    console: Console | None = None,
) -> Iterator[Show]:
    """Show how far a piece of work is.

    Args:
        what: What is done, for example ``reading``.
        total: How much there is to do, >= 0; None if that is not known.
        plain: Shows it where there is no terminal.
        text: What stands beside the bar at first; None leaves no room for it.
        clock: Which time is shown: that which is left, or was spent.
        in_bytes: Whether bytes are counted; they are shown in MB.
        transient: Whether the bar vanishes in the end.
        console: Where the bar goes; None means stderr.

    Yields:
        A function to call with how much is done by now.
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
def progress(what: str, total: int | None, unit: str, say: Say, *, in_bytes: bool = False) -> Iterator[Show]:
    """Show how far reading or downloading is: a bar on a terminal, a plain line every few seconds elsewhere.

    Args:
        what: What is done, for example ``reading``.
        total: How much there is to do, >= 0; None if that is not known.
        unit: What is counted, for example ``images``.
        say: Gets the plain lines.
        in_bytes: Whether bytes are counted; they are shown in MB.

    Yields:
        A function to call with how much is done by now.
    """
    plain = _plain_lines(what, total, unit, say, 1_000_000 if in_bytes else 1)
    with progress_bar(what, total, plain=plain, text="" if in_bytes else unit, in_bytes=in_bytes) as show:
        yield show


def _plain_lines(what: str, total: int | None, unit: str, say: Say, scale: int) -> Show:
    last = time.monotonic()
    of = "" if total is None else f" of {total // scale}"

    def show(done: int, total: int | None = None, text: str | None = None) -> None:
        nonlocal last
        if time.monotonic() - last >= EVERY_SECONDS:
            last = time.monotonic()
            say(f"{what}: {done // scale}{of} {unit}")

    return show
