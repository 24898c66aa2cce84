"""The live view in a terminal, and plain lines where there is none."""

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
from medfl_report.monitor.folders import MonitoredFolder
from medfl_report.monitor.view import Drawn, View

POLL = 0.5
"""Seconds between two looks."""

FASTEST, TICK = 1.5, 5.0
"""Seconds between two pictures of a terminal, at least and at most: drawing it takes longer than looking."""

BLOCKS = "▁▂▃▄▅▆▇█"
"""From the lowest to the highest value of a curve."""

WIDEST = 60
"""Rounds of a curve, and of the matrix of sites and rounds: the last ones."""

COLOURS = {"work": "cyan", "good": "green", "warn": "yellow", "bad": "red", "idle": "dim", "info": ""}
"""Level to how it looks."""

MARKS: dict[str | None, tuple[str, str]] = {TOOK_PART: ("■", "green"), MISSED: ("×", "bold red")}
"""What a site did in a round to how it is drawn; a dot for a round that it was not asked in."""

DETAILED = 2
"""Runs at work that are shown in full beside the table of all."""


def monitor(
    folder: MonitoredFolder,
    console: Console,
    follow: bool,
    wait: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Show a folder until its runs are over, or somebody interrupts.

    Args:
        folder: What is watched.
        console: Where it is shown.
        follow: Whether to go on until the runs are over; else it is shown once, as it stands.
        wait: Lets seconds pass.
        clock: Seconds that only go on.
    """
    if not follow or (is_over(folder) and not folder.runs):
        console.print(frame(folder.views()))
        return
    if not console.is_terminal:
        _follow_in_lines(folder, lambda line: console.print(line, soft_wrap=True), wait)
        return
    with Live(frame(folder.views()), console=console, auto_refresh=False) as live:
        drawn, news = clock(), False
        while not is_over(folder):
            wait(POLL)
            news, since = folder.look() or news, clock() - drawn
            if since >= TICK or (news and since >= FASTEST):
                live.update(frame(folder.views()), refresh=True)
                drawn, news = clock(), False
        live.update(frame(folder.views()), refresh=True)


def _follow_in_lines(folder: MonitoredFolder, say: Say, wait: Callable[[float], None]) -> None:
    """Say what happens in plain lines: what the logs have, and who is silent."""
    known: dict[str, str] = {}
    seen: dict[str, int] = {}
    while True:
        views = {view.name: view for view in folder.views()}
        for run in folder.runs.values():
            prefix = "" if folder.single else f"{run.name}: "
            new = run.state.lines - seen.get(run.name, 0)
            for line in list(run.state.log)[-new:] if new > 0 else ():
                say(f"{time.strftime('%H:%M:%S', time.localtime(line.at))} {prefix}{line.text}")
            seen[run.name] = run.state.lines
            silent = ", ".join(site.name for site in views[run.name].sites if site.now.startswith("silent"))
            if silent and known.get(run.name) != silent:
                say(f"{prefix}silent: {silent}")
            known[run.name] = silent
        if is_over(folder):
            for view in views.values():
                say(f"{view.name}: {view.status}, {view.round} of {view.rounds} rounds")
            return
        wait(2 * POLL)
        folder.look()


def is_over(folder: MonitoredFolder) -> bool:
    """Whether nothing more comes unless somebody continues a run, or begins one."""
    return not folder.stays and not folder.at_work and all(view.over for view in folder.views())


def frame(views: Sequence[View]) -> RenderableType:
    """All runs: in full if there is one, else a table and the first ones at work in full."""
    if not views:
        return Text("No run has begun there yet.")
    if len(views) == 1:
        return run_frame(views[0])
    at_work = [view for view in views if not view.over][:DETAILED]
    return Group(runs_table(views), *map(run_frame, at_work))


def runs_table(views: Sequence[View]) -> Table:
    """A line for each run."""
    table = Table(title=f"{len(views)} runs, {sum(view.over for view in views)} over", title_justify="left")
    for column in ("run", "method", "rounds", "status", "score", "sites"):
        table.add_column(column)
    for view in views:
        number = view.curves[0].mean[-1] if view.curves and view.curves[0].sites else None
        cells = view.name, view.title, f"{view.round} of {view.rounds}"
        status = Text(view.status, COLOURS[view.level])
        table.add_row(*map(Text, cells), status, score(number), Text(view.summary or MISSING))
    return table


def run_frame(view: View) -> Group:
    """One run in full."""
    facts = Table.grid(padding=(0, 2))
    rounds = f"{view.round} of {view.rounds} {bar(view.round, view.rounds)}"
    rows = [("run", view.title), ("status", view.status), ("rounds", rounds)]
    rows += [("time", view.time), ("score", view.score), ("traffic", view.costs)]
    rows += [("privacy", view.privacy)] if view.privacy else []
    for name, text in rows:
        facts.add_row(Text(name, "bold"), Text(text, COLOURS[view.level] if name == "status" else ""))
    parts: list[RenderableType] = [facts, *map(_curve_line, view.curves), sites_table(view)]
    parts += [_matrix(view)] if view.last_round else []
    parts += [Text(f"{at} {text}", COLOURS[level]) for at, text, level in view.log]
    return Group(Rule(Text(view.name), align="left"), *parts)


def sites_table(view: View) -> Table:
    """A line for each site."""
    private = any(site.epsilon is not None for site in view.sites)
    table = Table(box=None, pad_edge=False)
    columns = ("site", "now", "batches", "took part", "seconds (all)", "sent", "received", "score")
    for column in (*columns, *(("epsilon",) if private else ())):
        table.add_column(
            column, justify="left" if column in ("site", "now", "batches") else "right", header_style="bold"
        )
    for site in view.sites:
        share = "" if site.share is None else f"{bar(site.share, 1.0, 10)} {site.share:4.0%}"
        cells = [Text(site.name), Text(site.now, COLOURS[site.level]), Text(share), Text(site.rounds)]
        cells += [Text(site.seconds), Text(site.sent), Text(site.received), Text(score(site.score))]
        cells += [Text(MISSING if site.epsilon is None else f"{site.epsilon:.3g}")] if private else []
        table.add_row(*cells)
    return table


def bar(done: float, total: float, width: int = 24) -> str:
    """How far something is, drawn: ``████░░░░``."""
    full = round(width * min(1.0, done / total)) if total else 0
    return "█" * full + "░" * (width - full)


def spark(values: Sequence[float]) -> str:
    """Values as blocks, from the lowest to the highest; all the same ones are drawn in the middle."""
    low, high = min(values), max(values)
    if high == low:
        return BLOCKS[3] * len(values)
    return "".join(BLOCKS[round((value - low) / (high - low) * (len(BLOCKS) - 1))] for value in values)


def _curve_line(curve: Drawn) -> Text:
    values = curve.mean[-WIDEST:]
    ends = f"{values[0]:.3f} to {values[-1]:.3f}, rounds {curve.rounds[-len(values)]} to {curve.rounds[-1]}"
    return Text.assemble((f"{curve.title} ", "bold"), (spark(values), "cyan"), f" {ends}")


def _matrix(view: View) -> Table:
    """Sites and the last rounds: who took part."""
    last = view.last_round
    shown = range(max(1, last - WIDEST + 1), last + 1)
    table = Table(box=None, pad_edge=False)
    table.add_column(f"rounds {shown[0]} to {last}", header_style="bold")
    table.add_column("■ took part, × missed, · not asked", header_style="dim")
    for site, known in sorted(view.attendance.items()):
        line = Text()
        for did, rounds in groupby(shown, key=known.get):
            mark, look = MARKS.get(did, ("·", "dim"))
            line.append(mark * len(list(rounds)), look)
        table.add_row(Text(site), line)
    return table
