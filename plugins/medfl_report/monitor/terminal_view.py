"""View of monitored runs in a terminal: a live display, or plain log lines if the output is not a terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import groupby

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from medfl.engine.attendance import MISSED, TOOK_PART
from medfl.utils.formats import MISSING, score
from medfl.utils.text import Say
from medfl_report.monitor.monitored_folders import MonitoredFolder
from medfl_report.monitor.run_view import ProgressCurve, RunView

POLL_SECONDS = 0.5
"""Seconds between two checks for new events."""

MIN_REDRAW_SECONDS, MAX_REDRAW_SECONDS = 1.5, 5.0
"""Bounds of the seconds between two redraws of the terminal: drawing takes longer than reading events."""

BLOCKS = "▁▂▃▄▅▆▇█"
"""Characters of a sparkline, from the lowest to the highest value."""

MAX_ROUNDS = 60
"""Maximum number of latest rounds in a sparkline and in the attendance table."""

COLOURS = {"work": "cyan", "good": "green", "warn": "yellow", "bad": "red", "idle": "dim", "info": ""}
"""Mapping from each level of a status, activity or log line to a text style of Rich."""

ATTENDANCE_MARKS: dict[str | None, tuple[str, str]] = {TOOK_PART: ("■", "green"), MISSED: ("×", "bold red")}
"""Mapping from each kind of participation to (mark, style); a round without a request is shown as a dim dot."""

MAX_DETAILED_RUNS = 2
"""Maximum number of running runs that are shown in full below the table of all runs."""


def monitor(
    folder: MonitoredFolder,
    console: Console,
    follow: bool,
    wait: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Show the runs of a folder until they are over.

    Args:
        folder: The monitored folder.
        console: Console for the output.
        follow: Whether to wait for the end of the runs; False shows the current view once.
        wait: Function that sleeps for some seconds.
        clock: Monotonic clock in seconds.
    """
    if not follow or (is_over(folder) and not folder.runs):
        console.print(render_views(folder.views()))
        return
    if not console.is_terminal:
        _follow_in_lines(folder, lambda line: console.print(line, soft_wrap=True), wait)
        return
    with Live(render_views(folder.views()), console=console, auto_refresh=False) as live:
        drawn_at, has_news = clock(), False
        while not is_over(folder):
            wait(POLL_SECONDS)
            has_news, since_redraw = folder.read_events() or has_news, clock() - drawn_at
            if since_redraw >= MAX_REDRAW_SECONDS or (has_news and since_redraw >= MIN_REDRAW_SECONDS):
                live.update(render_views(folder.views()), refresh=True)
                drawn_at, has_news = clock(), False
        live.update(render_views(folder.views()), refresh=True)


def _follow_in_lines(folder: MonitoredFolder, say: Say, wait: Callable[[float], None]) -> None:
    """Print each new log line, and the names of silent sites when they change, until the runs are over."""
    silent_by_run: dict[str, str] = {}
    printed_by_run: dict[str, int] = {}
    while True:
        views = {view.name: view for view in folder.views()}
        for run in folder.runs.values():
            prefix = "" if folder.is_single_run else f"{run.name}: "
            new = run.state.log_line_count - printed_by_run.get(run.name, 0)
            for line in list(run.state.log)[-new:] if new > 0 else ():
                say(f"{time.strftime('%H:%M:%S', time.localtime(line.at))} {prefix}{line.text}")
            printed_by_run[run.name] = run.state.log_line_count
            silent = ", ".join(site.name for site in views[run.name].sites if site.activity.startswith("silent"))
            if silent and silent_by_run.get(run.name) != silent:
                say(f"{prefix}silent: {silent}")
            silent_by_run[run.name] = silent
        if is_over(folder):
            for view in views.values():
                say(f"{view.name}: {view.status}, {view.rounds_done} of {view.rounds} rounds")
            return
        wait(2 * POLL_SECONDS)
        folder.read_events()


def is_over(folder: MonitoredFolder) -> bool:
    """Return whether all runs are over and no process is about to start another one."""
    return not folder.gets_more_runs and not folder.has_writer and all(view.is_over for view in folder.views())


def render_views(views: Sequence[RunView]) -> RenderableType:
    """Return a single run in full, or a table of several runs followed by some running ones in full."""
    if not views:
        return Text("No run has started there yet.")
    if len(views) == 1:
        return render_run(views[0])
    running = [view for view in views if not view.is_over][:MAX_DETAILED_RUNS]
    return Group(render_runs_table(views), *map(render_run, running))


def render_runs_table(views: Sequence[RunView]) -> Table:
    """Return a table with a row for each run."""
    table = Table(title=f"{len(views)} runs, {sum(view.is_over for view in views)} over", title_justify="left")
    for column in ("run", "method", "rounds", "status", "score", "sites"):
        table.add_column(column)
    for view in views:
        mean_score = view.curves[0].mean[-1] if view.curves and view.curves[0].sites else None
        cells = view.name, view.title, f"{view.rounds_done} of {view.rounds}"
        status = Text(view.status, COLOURS[view.level])
        table.add_row(*map(Text, cells), status, score(mean_score), Text(view.summary or MISSING))
    return table


def render_run(view: RunView) -> Group:
    """Return a run in full: status, curves, sites, attendance and log."""
    overview = Table.grid(padding=(0, 2))
    rounds = f"{view.rounds_done} of {view.rounds} {progress_bar(view.rounds_done, view.rounds)}"
    rows = [("run", view.title), ("status", view.status), ("rounds", rounds)]
    rows += [("time", view.time), ("score", view.score), ("traffic", view.costs)]
    rows += [("privacy", view.privacy)] if view.privacy else []
    for name, text in rows:
        overview.add_row(Text(name, "bold"), Text(text, COLOURS[view.level] if name == "status" else ""))
    parts: list[RenderableType] = [overview, *map(_curve_line, view.curves), render_sites_table(view)]
    parts += [_attendance_table(view)] if view.last_round else []
    parts += [Text(f"{entry.time} {entry.text}", COLOURS[entry.level]) for entry in view.log]
    return Group(Rule(Text(view.name), align="left"), *parts)


def render_sites_table(view: RunView) -> Table:
    """Return a table with a row for each site; it has a column for epsilon if any epsilon is known."""
    has_epsilon = any(site.epsilon is not None for site in view.sites)
    table = Table(box=None, pad_edge=False)
    columns = ("site", "activity", "batches", "took part", "seconds (all)", "sent", "received", "score")
    for column in (*columns, *(("epsilon",) if has_epsilon else ())):
        table.add_column(
            column, justify="left" if column in ("site", "activity", "batches") else "right", header_style="bold"
        )
    for site in view.sites:
        share = "" if site.share is None else f"{progress_bar(site.share, 1.0, 10)} {site.share:4.0%}"
        cells = [Text(site.name), Text(site.activity, COLOURS[site.level]), Text(share), Text(site.rounds)]
        cells += [Text(site.seconds), Text(site.sent), Text(site.received), Text(score(site.score))]
        cells += [Text(MISSING if site.epsilon is None else f"{site.epsilon:.3g}")] if has_epsilon else []
        table.add_row(*cells)
    return table


def progress_bar(done: float, total: float, width: int = 24) -> str:
    """Return a bar such as ``████░░░░``; it is empty if `total` is 0.

    Args:
        done: Amount that is done; more than `total` fills the bar.
        total: Total amount, >= 0.
        width: Length of the bar in characters.
    """
    full = round(width * min(1.0, done / total)) if total else 0
    return "█" * full + "░" * (width - full)


def sparkline(values: Sequence[float]) -> str:
    """Return values as block characters, scaled from their minimum to their maximum; equal values get the middle."""
    low, high = min(values), max(values)
    if high == low:
        return BLOCKS[3] * len(values)
    return "".join(BLOCKS[round((value - low) / (high - low) * (len(BLOCKS) - 1))] for value in values)


def _curve_line(curve: ProgressCurve) -> Text:
    """Return the mean of a curve as a line: title, sparkline, first and last value."""
    values = curve.mean[-MAX_ROUNDS:]
    ends = f"{values[0]:.3f} to {values[-1]:.3f}, rounds {curve.rounds[-len(values)]} to {curve.rounds[-1]}"
    return Text.assemble((f"{curve.title} ", "bold"), (sparkline(values), "cyan"), f" {ends}")


def _attendance_table(view: RunView) -> Table:
    """Return a table of sites and the latest rounds that marks in which rounds each site took part."""
    last = view.last_round
    rounds = range(max(1, last - MAX_ROUNDS + 1), last + 1)
    table = Table(box=None, pad_edge=False)
    table.add_column(f"rounds {rounds[0]} to {last}", header_style="bold")
    table.add_column("■ took part, × missed, · not asked", header_style="dim")
    for site, attendance in sorted(view.attendance.items()):
        line = Text()
        for participation, stretch in groupby(rounds, key=attendance.get):
            mark, style = ATTENDANCE_MARKS.get(participation, ("·", "dim"))
            line.append(mark * len(list(stretch)), style)
        table.add_row(Text(site), line)
    return table
